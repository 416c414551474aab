#!/usr/bin/python3
"""A node refuses requests without a valid capability, and they change nothing."""

import pathlib
import socket
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from formats import ADMIN, READ, WRITE, capability, reply, request, resealed
from scenario import main
from world import MIB, Case, check

# Operations and replies of the wire.
SHARD_DELETE, SHARD_LIST, REMOVE_VOLUME, STAT = 13, 14, 15, 16
STATE, SHARDS, REFUSED, FENCED = 2, 5, 128, 129
FORGED, EXPIRED, RIGHTS, RANGE = range(4)
NS = 1_000_000_000


def open_connection(world, node):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(str(world.folder / f"n{node}.sock"))
    return connection


def refused(connection, why, operation, body):
    connection.sendall(request(operation, body))
    kind, answer, _ = reply(connection)
    check((kind, answer[:1]) == (REFUSED, bytes([why])), f"operation {operation}: {kind} {answer!r}")


def forgeries(world, secret, volume, epoch):
    """Each is wrong in one thing only; what is asked for would destroy the volume."""
    flipped = bytearray(capability(secret, volume, epoch))
    flipped[-1] ^= 1
    past = int((time.time() - 3600) * NS)
    everything = struct.pack("<IQ", 1, 1 << 40 | 1)
    with open_connection(world, 0) as connection:
        # An honest one first: what follows is refused for its own fault.
        connection.sendall(request(STAT, capability(secret, volume, epoch)))
        check(reply(connection)[0] == STATE, "an honest request is refused")
        for why, entitled in [
            (FORGED, bytes(flipped)),
            (FORGED, capability(bytes(16), volume, epoch)),
            (EXPIRED, capability(secret, volume, epoch, expires=past)),
            (EXPIRED, capability(secret, volume, epoch, expires=0)),
        ]:
            refused(connection, why, REMOVE_VOLUME, entitled)
            refused(connection, why, SHARD_DELETE, entitled + everything)
        refused(connection, RIGHTS, REMOVE_VOLUME, capability(secret, volume, epoch, READ | WRITE))
        refused(connection, RIGHTS, SHARD_DELETE, capability(secret, volume, epoch, READ | ADMIN) + everything)
        refused(connection, RANGE, SHARD_DELETE, capability(secret, volume, epoch, segments=(1, 2)) + everything)
        # Signed well, of the writer before.
        connection.sendall(request(SHARD_DELETE, capability(secret, volume, epoch - 1) + everything))
        kind, answer, _ = reply(connection)
        check(kind == FENCED and struct.unpack("<QQ", answer) == (epoch - 1, epoch), f"{kind} {answer!r}")
        connection.sendall(request(SHARD_LIST, capability(secret, volume, epoch) + struct.pack("<Q", 0)))
        check(reply(connection)[0] == SHARDS, "the node no longer answers")


def other_languages(world, pool):
    """A newer protocol, and bytes that are none: the connection ends, and the node does not."""
    for bytes_sent in (request(STAT, bytes(68), version=0xFFFF), b"GET / HTTP/1.1\r\n\r\n" * 4):
        with open_connection(world, 0) as connection:
            connection.sendall(bytes_sent)
            try:
                found = reply(connection)
                check(False, f"{bytes_sent[:16]!r} was answered with {found}")
            except (EOFError, ConnectionError):
                pass
    pool.nodes[0].wait_until_logged("version 65535")


def scenario(world):
    pool = world.pool()
    pool.create_volume("v", 32 * MIB)
    server = pool.serve("v")
    handle = connect(server.uri("v"))
    handle.pwrite(noise(16 * MIB, 1), 0)
    handle.flush()
    status = pool.volume_status("v")
    volume, epoch = int(status["id"], 16), status["epoch"]
    superblock = (pool.node_path(0) / "superblock").read_bytes()
    check(resealed(superblock[:512]) == superblock[:512], "our own checksum is wrong")
    secret = superblock[40:56]

    forgeries(world, secret, volume, epoch)
    other_languages(world, pool)

    # The writer did not notice any of it.
    handle.pwrite(noise(MIB, 2), 16 * MIB)
    handle.flush()
    check(handle.pread(16 * MIB, 0) == noise(16 * MIB, 1), "data was lost")
    handle.shutdown()
    check(pool.volume_status("v")["protection"] == "healthy", "a node was given up")
    server.stop()
    for lost in (1, 2):
        pool.delete_node(lost)
    pool.start_missing_nodes()
    server = pool.serve("v", options=["--no-auto-rebuild"])
    handle = connect(server.uri("v"))
    check(handle.pread(16 * MIB, 0) == noise(16 * MIB, 1), "node 0 lost data")
    handle.shutdown()
    server.stop()


main(scenario, [Case("rs:4+2", "processes")], more=[Case("copies:3", "processes")])
