#!/usr/bin/python3
"""Bytes that no client would send: the server answers or hangs up, and goes on serving others."""

import pathlib
import random
import socket
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from scenario import main
from world import EVERY_CODE, MIB, ONE_CASE, Failure, check

OPTION_MAGIC, REQUEST_MAGIC = b"IHAVEOPT", 0x25609513
OPT_EXPORT_NAME, OPT_LIST, OPT_GO, OPT_STRUCTURED = 1, 3, 7, 8


def option(number, data=b""):
    return OPTION_MAGIC + struct.pack(">II", number, len(data)) + data


def request(command, offset, length, flags=0, cookie=1):
    return struct.pack(">IHHQQI", REQUEST_MAGIC, flags, command, cookie, offset, length)


def go(name=b"v"):
    return option(OPT_GO, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))


def send(path, parts, half_close=True):
    """Sends `parts` and reads until the server closes or has nothing more to say."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(str(path))
        try:
            for part in parts:
                # A server that takes no more while the client reads no answers is right.
                link.settimeout(1)
                try:
                    link.sendall(part)
                except TimeoutError:
                    break
            link.settimeout(10)
            if half_close:
                link.shutdown(socket.SHUT_WR)
            got = b""
            while len(got) < 64 * MIB:
                part = link.recv(1 << 16)
                if not part:
                    break
                got += part
            return got
        except (ConnectionResetError, BrokenPipeError):
            return b""


def hand_made():
    """Sessions that are wrong in one place each."""
    flags = struct.pack(">I", 3)
    yield "nothing", []
    yield "text", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]
    yield "unknown client flags", [struct.pack(">I", 0xFFFFFFFF)]
    yield "wrong option magic", [flags, b"IHAVENOT" + bytes(8)]
    yield "a huge option", [flags, OPTION_MAGIC + struct.pack(">II", OPT_LIST, 0xFFFFFFFF), bytes(4096)]
    yield "an unknown export by the old way", [flags, option(OPT_EXPORT_NAME, b"nowhere")]
    yield "a name length past the end", [flags, option(OPT_GO, struct.pack(">I", 1 << 31) + b"v")]
    yield "a flood of options", [flags] + [option(OPT_LIST)] * 5000
    yield "a wrong request magic", [flags, go(), b"\xff" * 28]
    yield "an unknown command", [flags, go(), request(77, 0, 4096), request(2, 0, 0)]
    yield "a read of 4 GiB", [flags, go(), request(0, 0, 0xFFFFFFFF), request(2, 0, 0)]
    yield "a write of 4 GiB", [flags, go(), request(1, 0, 0xFFFFFFFF), bytes(1 << 20)]
    yield "an offset past 2^63", [flags, go(), request(0, 1 << 63, 4096), request(2, 0, 0)]
    yield "offset and length that overflow", [flags, go(), request(6, (1 << 64) - 1, 0xFFFFFFFF)]
    yield "a write cut short", [flags, go(), request(1, 0, 1 << 20), bytes(1000)]
    yield "a header cut short", [flags, go(), request(0, 0, 4096)[:13]]
    yield "a thousand reads and no reader", [flags, go(), request(0, 0, 65536) * 1000]


def random_session(rng):
    """A valid beginning with some bytes changed, or no sense at all."""
    parts = [struct.pack(">I", rng.choice([0, 1, 2, 3]))]
    for _ in range(rng.randrange(4)):
        parts.append(option(rng.randrange(12), rng.randbytes(rng.randrange(64))))
    parts.append(option(OPT_STRUCTURED))
    parts.append(go())
    for turn in range(rng.randrange(20)):
        length = rng.choice([0, 1, 512, 4096, 65536])
        command = rng.choice([0, 3, 4, 5, 6, 7, rng.randrange(1 << 16)])
        flags = rng.choice([0, 1, 2, 4, 8, 16, rng.randrange(1 << 16)])
        # Only the second half may be hit, the first is compared at the end.
        parts.append(request(command, (32 << 20) + rng.randrange(32 << 20), length, flags, turn))
    data = bytearray(b"".join(parts))
    for _ in range(rng.randrange(6)):
        data[rng.randrange(4, len(data))] = rng.randrange(256)
    if rng.random() < 0.2:
        data = bytearray(rng.randbytes(rng.randrange(1, 5000)))
    return bytes(data)


def scenario(world):
    pool = world.pool()
    pool.create_volume("v", "64M")
    server = pool.serve("v")
    witness = connect(server.uri("v"))
    data = noise(4 * MIB, 3)
    witness.pwrite(data, 0)

    for what, parts in hand_made():
        try:
            got = send(server.socket, parts)
        except TimeoutError as late:
            raise Failure(f"{what}: neither an answer nor an end") from late
        check(server.is_running(), f"{what}: the server ended:\n{server.errors()}")
        check(got[:16] == b"NBDMAGICIHAVEOPT" or not got, f"{what}: greeted with {got[:16]}")
        check(witness.pread(4096, 0) == data[:4096], f"{what}: another connection suffers")

    rng = random.Random(20)
    changed = 0
    for turn in range(400):
        session = random_session(rng)
        # A random write header could hit the first half: such a session is left out.
        if b"\x25\x60\x95\x13\x00\x00\x00\x01" in session:
            changed += 1
            continue
        send(server.socket, [session])
        check(server.is_running(), f"random session {turn}: the server ended:\n{server.errors()}")
    check(changed < 40, "too many sessions were left out")
    check(witness.pread(4 * MIB, 0) == data, "data changed")
    witness.shutdown()

    # Many connections at once, all of them idle or half open, and the server still stops in time.
    idle = []
    for _ in range(200):
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(server.socket))
        idle.append(link)
    fresh = connect(server.uri("v"))
    check(fresh.pread(4096, 0) == data[:4096], "no service beside 200 idle connections")
    fresh.shutdown()
    server.stop()
    for link in idle:
        link.close()


main(scenario, ONE_CASE, more=EVERY_CODE)
