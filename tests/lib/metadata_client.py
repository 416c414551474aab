"""A client of a pool's metadata service that keeps to no rule but that of the protocol.

    session = Session(json.loads(credential.read_text()))
    session.open("disk")
    capability = session.issue(7)

It shares no code with what is tested. crates/server/src/metadata has the protocol, docs/formats.md
has capabilities and roots.
"""

import json
import os
import socket
import struct

from formats import crc32c, reply, request, siphash128

LIST, FENCE, PUT_ROOT = 1, 2, 3


class Denied(Exception):
    """The service refuses, or cannot tell at the moment."""


class Session:
    """A session with a service, and the layout of the volume that it opened last."""

    def __init__(self, credential):
        host, port = credential["metadata"][0].rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 20)
        self.lines = self.socket.makefile("rb")
        number = os.urandom(16).hex()
        who = {key: credential[key] for key in ("pool", "client")}
        hello = {"version": 1, "random": number, **who}
        self.socket.sendall(json.dumps(hello).encode() + b"\n")
        welcome = json.loads(self.lines.readline())
        if "random" not in welcome:
            raise Denied(welcome)
        numbers = [credential["pool"], number, welcome["random"]]
        parts = [int(digits, 16).to_bytes(16, "little") for digits in numbers]
        begin = b"fieldstone metadata session" + b"".join(parts) + credential["client"].encode()
        self.key = siphash128(bytes.fromhex(credential["secret"]), begin)
        self.sent = 0
        self.layout = None

    def end(self):
        """Hangs up. A socket alone stays open as long as a file of it is."""
        self.lines.close()
        self.socket.close()

    def ask(self, operation, **fields):
        text = json.dumps({"op": operation, **fields}).encode()
        seal = siphash128(self.key, b"\0" + struct.pack("<Q", self.sent) + text)
        self.sent += 1
        self.socket.sendall(seal.hex().encode() + b" " + text + b"\n")
        line = self.lines.readline()
        answer = json.loads(line[line.find(b"{") :]) if line else {"answer": "closed"}
        if answer.get("answer") not in ("layout", "issued", "present"):
            raise Denied(answer)
        return answer

    def open(self, volume):
        self.layout = self.ask("open", volume=volume, instance=os.urandom(16).hex())

    def issue(self, epoch):
        """A capability, as it goes over the wire."""
        found = self.ask("issue", epoch=epoch)["capability"]
        volume = int(found["volume"], 16).to_bytes(16, "little")
        names = ("epoch", "rights", "segment_first", "segment_last", "expires_ns")
        return volume + struct.pack("<QIQQQ", *map(found.get, names)) + bytes.fromhex(found["mac"])

    def nodes(self):
        """A connection to each node, one after the other."""
        for address in self.layout["nodes"]:
            with reach(address) as connection:
                yield connection

    def connections(self):
        """A connection to each node, all at the same time."""
        return [reach(address) for address in self.layout["nodes"]]


def reach(address):
    """A connection to a node."""
    kind, place = address.split(":", 1)
    if kind == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(place)
        return connection
    host, port = place.rsplit(":", 1)
    return socket.create_connection((host, int(port)), 20)


def call(connection, operation, capability, body=b"", payload=b""):
    connection.sendall(request(operation, capability + body, payload))
    return reply(connection)


def newest_root(connection, capability):
    """The version and the bytes of the root that a node has of the capability's volume."""
    _, body, _ = call(connection, LIST, capability)
    version, length = struct.unpack_from("<QI", body, 4 + 24)
    return version, body[4 + 36 : 4 + 36 + length]


def put_root(connection, capability, epoch, name, sizes=None, kept=None):
    """Takes the volume at this epoch, and gives it a root with this name, and with these sizes of
    shards and units: that of the node, or one that was `kept`. Returns the kinds of the two
    answers."""
    version, root = kept or newest_root(connection, capability)
    root = bytearray(root)
    version += 5
    struct.pack_into("<Q", root, 16, version)
    if sizes is not None:
        struct.pack_into("<II", root, 56, *sizes)
    struct.pack_into("<Q", root, 108, epoch)
    at = 120 if struct.unpack_from("<I", root, 8)[0] >= 5 else 116
    old = struct.unpack_from("<H", root, at)[0]
    root[at : at + 2 + old] = struct.pack("<H", len(name)) + name
    root[12:16] = bytes(4)
    struct.pack_into("<I", root, 12, crc32c(bytes(root)))
    fenced = call(connection, FENCE, capability, b"\1")[0]
    put = call(connection, PUT_ROOT, capability, struct.pack("<Q", version), bytes(root))
    return fenced, put[0]
