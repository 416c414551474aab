#!/usr/bin/python3
"""nbdcopy in both directions with several connections, and through nbdkit as another client."""

import hashlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import noise
from scenario import main
from world import COPIES_APART, EVERY_CASE, MIB, check, need, run

SIZE = 96 * MIB


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(
            hashlib, "file_digest"
        ) else hashlib.sha256(file.read()).hexdigest()


def scenario(world):
    need("nbdcopy")
    pool = world.pool()
    pool.create_volume("v", SIZE)
    server = pool.serve("v", options=["--cores", "2"])
    source, back = world.file("source"), world.file("back")

    # Data, a hole, and an end that is not a multiple of anything.
    with open(source, "wb") as file:
        file.write(noise(40 * MIB, 7))
        file.seek(72 * MIB + 12345)
        file.write(noise(8 * MIB, 8))
        file.truncate(SIZE)
    for connections in (1, 4):
        run("nbdcopy", f"--connections={connections}", "--flush", source, server.uri("v"))
        run("nbdcopy", f"--connections={connections}", server.uri("v"), back)
        check(digest(back) == digest(source), f"{connections} connections: the copy differs")
        back.unlink()
    run("nbdcopy", "--synchronous", server.uri("v"), back)
    check(digest(back) == digest(source), "--synchronous: the copy differs")

    # Zeros over everything through --destination-is-zero=no, then all of it back.
    zeros = world.file("zeros")
    with open(zeros, "wb") as file:
        file.truncate(SIZE)
    run("nbdcopy", "--connections=4", "--allocated", zeros, server.uri("v"))
    run("nbdcopy", server.uri("v"), back)
    check(digest(back) == digest(zeros), "the volume is not zero everywhere")

    # A volume copied into another through both servers' sockets.
    run("nbdcopy", "--flush", source, server.uri("v"))
    server.stop()
    pool.create_volume("w", SIZE)
    server = pool.serve("v", "w")
    run("nbdcopy", "--connections=4", "--flush", server.uri("v"), server.uri("w"))
    run("nbdcopy", server.uri("w"), back)
    check(digest(back) == digest(source), "the copy of the volume differs")

    # nbdkit's client side, with readahead and caching in between.
    need("nbdkit")
    run(
        "nbdkit", "-U", "-", "--filter=cache", "nbd", f"uri={server.uri('w')}",
        "--run", f"nbdcopy \"$uri\" {back}",
    )
    check(digest(back) == digest(source), "through nbdkit: the copy differs")
    server.stop()


main(scenario, COPIES_APART, more=EVERY_CASE)
