#!/usr/bin/python3
"""Which copies answer reads: `serve --reads primary` and `serve --reads balance`, with node
processes, whose own counters show what they read. A node is killed in the middle of reads."""

import pathlib
import random
import socket
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from formats import capability, reply, request
from kill_nodes import load
from ledger import BLOCK, Ledger, Mix
from scenario import main
from stranger import IDENTIFY, STAT
from world import MIB, Case, check

SIZE = 48 * MIB
COPIES = 3
# The end of the device is read again and again. It is in one segment, or in two.
SPAN, AT = 256 << 10, SIZE - MIB
READS, AT_ONCE = 240, 8
# Where the state of a node has the bytes that it has read of shards.
READ_BYTES_AT = 42
# Each of three copies answers at least so much of the reads. An even share is a third.
SHARE_MIN = 0.2
ONLY_READS = Mix(flush=0.0, read=1.0, trim=0.0, zero=0.0, fua=0.0)


def read_bytes(world, node):
    """The bytes of shards that a node's process has read since it started."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(world.file(f"n{node}.sock")))
        connection.sendall(request(IDENTIFY, capability(bytes(16), 0, 0)))
        kind, state, _ = reply(connection)
    check(kind == STAT, f"node {node} answers {kind}")
    return struct.unpack_from("<Q", state, READ_BYTES_AT)[0]


def shares(world, uri):
    """Reads the end of the device. Returns each node's share of the bytes."""
    nodes = range(COPIES)
    before = [read_bytes(world, node) for node in nodes]
    handle = connect(uri)
    running, sent = [], 0
    while sent < READS or running:
        while sent < READS and len(running) < AT_ONCE:
            running.append(handle.aio_pread(bytearray(SPAN), AT))
            sent += 1
        handle.poll(1000)
        running = [cookie for cookie in running if not handle.aio_command_completed(cookie)]
    handle.shutdown()
    after = [read_bytes(world, node) for node in nodes]
    total = sum(after) - sum(before)
    check(total >= READS * SPAN, f"{total} bytes read by nodes, for {READS * SPAN}")
    return [(new - old) / total for new, old in zip(after, before)]


def serve(pool, way):
    """Without a cache: nodes deliver all that is read."""
    return pool.serve("v", options=["--reads", way, "--cache", "0"], name=f"serve-{way}")


def scenario(world):
    rng = random.Random(3)
    # Each node has a copy of everything.
    pool = world.pool("512M", nodes=COPIES)
    pool.create_volume("v", SIZE)
    server = pool.serve("v")
    ledger = Ledger(AT // BLOCK, 3)
    load(ledger, server.uri("v"), 2)()
    handle = connect(server.uri("v"))
    handle.pwrite(noise(SPAN, 3), AT)
    handle.shutdown()
    # What is still in the server's memory comes from no node.
    server.stop()

    server = serve(pool, "primary")
    first = shares(world, server.uri("v"))
    print(f"shares of the nodes, primary: {[round(share, 2) for share in first]}", flush=True)
    check(min(first) < 0.01, f"with --reads primary every copy answers: {first}")
    server.stop()

    server = serve(pool, "balance")
    even = shares(world, server.uri("v"))
    print(f"shares of the nodes, balance: {[round(share, 2) for share in even]}", flush=True)
    check(min(even) >= SHARE_MIN, f"with --reads balance not every copy answers: {even}")
    ledger.verify(server.uri("v"))
    killed = rng.randrange(COPIES)
    begun = ledger.reads
    finish = load(ledger, server.uri("v"), 3, ONLY_READS)
    time.sleep(rng.uniform(0.3, 1.0))
    pool.kill_nodes([killed])
    before = ledger.reads
    finish()
    print(f"node {killed} killed: {before - begun} reads, then {ledger.reads - before}")
    check(ledger.reads > before > begun, "reads have stopped")
    ledger.verify(server.uri("v"))
    pool.start_missing_nodes()
    pool.wait_until_whole("v")
    # The node that came back answers again.
    again = shares(world, server.uri("v"))
    check(min(again) >= SHARE_MIN, f"not every copy answers again: {again}")
    server.stop()
    pool.stop_nodes()


if __name__ == "__main__":
    main(scenario, [Case("copies:3", "processes")], waits=True)
