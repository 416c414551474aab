#!/usr/bin/python3
"""A volume is overwritten ten times in a pool with 1.6 times the space it needs.

Never ENOSPC, the space in use stays bounded, the last data is there, and garbage collection holds
no write up for long.
"""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect
from ledger import BLOCK, make_block, read_version
from scenario import main
from world import EVERY_CODE, MIB, check

SIZE = 128 * MIB
ROOM = 1.6
SPAN = 4
PAUSE_NS_MAX = 5_000_000_000


def overwrite(uri, rng, newest, version, total):
    """Random writes of `total` bytes, 32 in flight; each block has one writer at a time."""
    handle = connect(uri)
    blocks, running, busy, written = len(newest), {}, set(), 0
    while written < total or running:
        while written < total and len(running) < 32:
            first = rng.randrange(blocks // SPAN) * SPAN
            if first in busy:
                continue
            busy.add(first)
            version += 1
            data = bytearray().join(make_block(first + i, version, 0) for i in range(SPAN))
            cookie = handle.aio_pwrite(data, first * BLOCK)
            running[cookie] = first, version
            written += SPAN * BLOCK
        handle.poll(-1)
        while running and (cookie := handle.aio_peek_command_completed()) > 0:
            first, done = running.pop(cookie)
            # An error here, ENOSPC above all, fails the case.
            handle.aio_command_completed(cookie)
            busy.remove(first)
            newest[first : first + SPAN] = [done] * SPAN
    handle.flush()
    handle.shutdown()
    return version


def verify(uri, newest):
    handle = connect(uri)
    for first in range(0, len(newest), 256):
        data = bytes(handle.pread(256 * BLOCK, first * BLOCK))
        for i in range(256):
            found = read_version(data[i * BLOCK : (i + 1) * BLOCK], first + i, 0)
            check(found == newest[first + i], f"block {first + i}: {found}, not {newest[first + i]}")
    handle.shutdown()


def used_bytes(pool):
    return sum(node["total_bytes"] - node["free_bytes"] for node in pool.status()["nodes"])


def scenario(world):
    rng = random.Random(9)
    case = world.case
    nodes = 6 if case.code.startswith("rs") else 3
    node_size = int(SIZE * case.overhead * ROOM / nodes)
    pool = world.pool(f"{node_size // MIB}M", nodes=nodes)
    # The reserve that `volume create` counts on top is more than 1.6 times of so small a volume.
    pool.create_volume("v", SIZE, ["--thin"])
    server = pool.serve("v")
    newest, version = [0] * (SIZE // BLOCK), 0
    peaks = []
    for _ in range(10):
        version = overwrite(server.uri("v"), rng, newest, version, SIZE)
        peaks.append(used_bytes(pool))
    verify(server.uri("v"), newest)
    status = pool.volume_status("v")
    check(status["user_written_bytes"] >= 10 * SIZE, "status counts fewer bytes than were written")
    check(status["live_bytes"] <= SIZE, f"{status['live_bytes']} bytes live of {SIZE}")
    check(max(peaks) <= node_size * nodes, f"the space in use grew to {max(peaks)}")
    pause = status["gc_pause_max_ns"]
    check(pause <= PAUSE_NS_MAX, f"garbage collection held a write up for {pause / 1e9:.1f} s")
    print(
        f"written {status['user_written_bytes'] / SIZE:.1f} x the size, moved "
        f"{status['moved_bytes'] / SIZE:.1f} x, longest pause {pause / 1e6:.0f} ms"
    )
    # What is on the nodes' disks is bounded as well: freed space went back to the file system.
    files = sum(
        file.stat().st_blocks * 512 for file in pool.path.rglob("*") if file.is_file()
    )
    journal = sum(f.stat().st_blocks * 512 for f in pool.path.rglob("journal.*"))
    check(files - journal <= node_size * nodes * 1.05, f"{files} bytes on disk")
    server.stop()
    server = pool.serve("v")
    verify(server.uri("v"), newest)
    server.stop()


main(scenario, EVERY_CODE)
