#!/usr/bin/python3
"""A pool that is really full: ENOSPC to the client, nothing is lost, and trim makes room again."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, nbd, noise
from scenario import main
from world import EVERY_CODE, MIB, check, wait_until

SIZE = 512 * MIB
STEP = MIB


def fill(handle):
    """Writes from the start until the pool is full; returns the number of MiB that were taken."""
    for turn in range(SIZE // STEP):
        try:
            handle.pwrite(noise(STEP, turn), turn * STEP)
        except nbd.Error as error:
            check(error.errno == "ENOSPC", f"a full pool gives {error.errno}, expected ENOSPC")
            return turn
    check(False, "a volume larger than the pool was filled without ENOSPC")


def verify(handle, steps):
    for turn in steps:
        check(handle.pread(STEP, turn * STEP) == noise(STEP, turn), f"MiB {turn} differs")


def scenario(world):
    pool = world.pool("64M")
    pool.create_volume("v", SIZE, ["--thin"])
    server = pool.serve("v")
    handle = connect(server.uri("v"))
    taken = fill(handle)
    raw = 64 * MIB * world.case.node_count / world.case.overhead
    check(taken * STEP > raw / 3, f"full after {taken} MiB already, of {raw / MIB:.0f}")
    verify(handle, range(taken))
    handle.flush()

    # Full stays full, and everything stays readable, over a kill and a restart.
    for _ in range(20):
        try:
            handle.pwrite(noise(STEP, 999), SIZE - STEP)
        except nbd.Error as error:
            check(error.errno == "ENOSPC", f"{error.errno}, expected ENOSPC")
    server.kill()
    server = pool.serve("v")
    handle = connect(server.uri("v"))
    verify(handle, range(taken))
    status = pool.volume_status("v")
    check(status["segments_lost"] == 0, f"segments were lost: {status}")

    # Trim a half, and there is room for a quarter.
    kept = range(0, taken // 2)
    handle.trim((taken - len(kept)) * STEP, len(kept) * STEP)
    handle.flush()
    again = range(taken // 2, taken // 2 + taken // 4)

    def write_again():
        for turn in again:
            if (error := refusal(handle, turn)) is not None:
                check(error == "ENOSPC", f"{error}, expected ENOSPC")
                return False
        return True

    wait_until("trimmed space can be written again", write_again, 30, 0.5)
    handle.flush()
    verify(handle, kept)
    verify(handle, again)
    handle.shutdown()
    server.stop()
    server = pool.serve("v")
    handle = connect(server.uri("v"))
    verify(handle, kept)
    verify(handle, again)
    # All of it may go.
    handle.trim(SIZE, 0)
    handle.flush()
    check(refusal(handle, 0) is None, "an emptied volume cannot be written")
    handle.shutdown()
    server.stop()


def refusal(handle, turn):
    try:
        handle.pwrite(noise(STEP, turn), turn * STEP)
    except nbd.Error as error:
        return error.errno
    return None


main(scenario, EVERY_CODE)
