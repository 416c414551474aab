"""NBD without a library, for clients that leave words unfinished."""

import socket
import struct

from world import MIB, check

READ, WRITE, FLUSH, BLOCK_STATUS = 0, 1, 3, 7
OPT_GO, OPT_STRUCTURED_REPLY, OPT_SET_META_CONTEXT = 7, 8, 10
ACK, REFUSALS = 1, 1 << 31


def dial(path, seconds=20):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(seconds)
    connection.connect(str(path))
    return connection


class Client:
    """An NBD client of few words."""

    def __init__(self, path, export, seconds=20, context=False):
        """With a context, the client may ask for extents. It takes no answers then."""
        self.socket = dial(path, seconds)
        check(self.take(18)[:16] == b"NBDMAGICIHAVEOPT", "no NBD server")
        self.socket.sendall(struct.pack(">I", 3))
        name = export.encode()
        name = struct.pack(">I", len(name)) + name
        if context:
            query = b"base:allocation"
            self.option(OPT_STRUCTURED_REPLY, b"")
            queries = struct.pack(">II", 1, len(query)) + query
            self.option(OPT_SET_META_CONTEXT, name + queries)
        self.option(OPT_GO, name + struct.pack(">H", 0))

    def option(self, option, data):
        self.socket.sendall(b"IHAVEOPT" + struct.pack(">II", option, len(data)) + data)
        kind = None
        while kind != ACK:
            _, _, kind, length = struct.unpack(">QIII", self.take(20))
            check(kind < REFUSALS, f"option {option} is refused: {kind:x}")
            self.take(length)

    def take(self, count):
        data = bytearray()
        while len(data) < count:
            part = self.socket.recv(min(count - len(data), MIB))
            if not part:
                raise EOFError("the server has closed the connection")
            data += part
        return bytes(data)

    def send(self, command, offset, length, data=b""):
        head = struct.pack(">IHHQQI", 0x25609513, 0, command, 7, offset, length)
        self.socket.sendall(head + data)

    def call(self, command, offset, length, data=b""):
        self.send(command, offset, length, data)
        magic, error, _ = struct.unpack(">IIQ", self.take(16))
        check((magic, error) == (0x67446698, 0), f"command {command} fails with {error}")
        return self.take(length) if command == READ else b""

    def close(self):
        self.socket.close()
