"""What the scenarios must know of our formats to forge them: checksums, signatures, messages.

All of it follows docs/formats.md; nothing here shares code with what is tested.
"""

import struct

MASK = (1 << 64) - 1


def _table():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        yield value


TABLE = list(_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def resealed(record):
    """A record of a node's files with the checksum that its bytes have now."""
    return record[:8] + struct.pack("<I", crc32c(record[12:])) + record[12:]


def _round(v):
    def turned(x, by):
        return (x << by | x >> 64 - by) & MASK

    v[0] = (v[0] + v[1]) & MASK
    v[1] = turned(v[1], 13) ^ v[0]
    v[0] = turned(v[0], 32)
    v[2] = (v[2] + v[3]) & MASK
    v[3] = turned(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) & MASK
    v[3] = turned(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) & MASK
    v[1] = turned(v[1], 17) ^ v[2]
    v[2] = turned(v[2], 32)


def siphash128(key, data):
    """SipHash-2-4 with 128 bits of output."""
    low, high = struct.unpack("<QQ", key)
    v = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D ^ 0xEE,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        _round(v)
        _round(v)
        v[0] ^= word
    parts = []
    for at, mark in ((2, 0xEE), (1, 0xDD)):
        v[at] ^= mark
        for _ in range(4):
            _round(v)
        parts.append(v[0] ^ v[1] ^ v[2] ^ v[3])
    return struct.pack("<QQ", *parts)


READ, WRITE, ADMIN = 1, 2, 4
FOREVER = MASK


def capability(secret, volume, epoch, rights=READ | WRITE | ADMIN, expires=FOREVER, segments=(0, MASK)):
    """A capability that a node whose pool has this secret believes."""
    name = volume.to_bytes(16, "little") + struct.pack("<Q", epoch)
    key = siphash128(secret, b"fieldstone capability key" + name)
    signed = name + struct.pack("<IQQQ", rights, *segments, expires)
    return signed + siphash128(key, signed)


HEADER = struct.Struct("<4sHBBQIIIII")


def request(operation, body, payload=b"", tag=1, version=2, payload_crc=None):
    """A request as bytes; `body` opens with a capability. `payload_crc`: if it is known."""
    payload_crc = crc32c(payload) if payload_crc is None else payload_crc
    head = HEADER.pack(
        b"FSTW", version, 0, operation, tag, 0, len(body), len(payload), crc32c(body), payload_crc
    )
    return head + struct.pack("<I", crc32c(head)) + body + payload


def reply(connection):
    """The next reply of a connection: what it holds, its body and its payload."""

    def take(count):
        data = b""
        while len(data) < count:
            part = connection.recv(count - len(data))
            if not part:
                raise EOFError("the node has closed the connection")
            data += part
        return data

    _, _, _, kind, _, _, body, payload, _, _ = HEADER.unpack(take(HEADER.size))
    take(4)
    return kind, take(body), take(payload)
