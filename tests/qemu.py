#!/usr/bin/python3
"""qemu's block layer as the client: qemu-img convert, compare and map, and qemu-io patterns."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import noise
from scenario import main
from world import COPIES_APART, EVERY_CASE, MIB, check, need, run

SIZE = 128 * MIB


def scenario(world):
    need("qemu-img", "qemu-io")
    pool = world.pool()
    pool.create_volume("v", SIZE)
    server = pool.serve("v")
    uri = server.uri("v")

    # An image with data and holes: into the volume, compared, and out again as qcow2.
    raw, out = world.file("disk.raw"), world.file("out.qcow2")
    with open(raw, "wb") as file:
        for at in (0, 20 * MIB, 90 * MIB):
            file.seek(at)
            file.write(noise(6 * MIB, at))
        file.truncate(SIZE)
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", raw, uri)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", raw, uri)
    run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", uri, out)
    run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, out)
    ranges = json.loads(run("qemu-img", "map", "-f", "raw", "--output=json", uri).stdout)
    data = [(r["start"], r["length"]) for r in ranges if r["data"]]
    check(data == [(at, 6 * MIB) for at in (0, 20 * MIB, 90 * MIB)], f"map shows data at {data}")

    # With many requests at once, out of order, and past the cache.
    run(
        "qemu-img", "convert", "-n", "-W", "-m", "16", "-t", "none", "-f", "qcow2", "-O", "raw",
        out, uri,
    )
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", raw, uri)

    # Patterns, each verified by qemu-io itself.
    commands = [
        "write -P 0x11 1M 3M",
        "write -P 0x22 -f 1234567 54321",
        "read -P 0x22 1234567 54321",
        "read -P 0x11 1M 180000",
        "write -z 2M 1M",
        "read -P 0 2M 1M",
        "write -z -u 30M 2M",
        "read -P 0 30M 2M",
        "discard 40M 2M",
        "aio_write -P 0x33 50M 1M",
        "aio_write -P 0x44 51M 1M",
        "aio_write -P 0x55 52M 1M",
        "aio_flush",
        "read -P 0x33 50M 1M",
        "read -P 0x44 51M 1M",
        "read -P 0x55 52M 1M",
        "flush",
        f"write -P 0x66 {SIZE - 4096} 4096",
        f"read -P 0x66 {SIZE - 4096} 4096",
    ]
    arguments = [word for command in commands for word in ("-c", command)]
    shown = run("qemu-io", "-f", "raw", *arguments, uri).stdout
    check("verification failed" not in shown, shown)
    past = run("qemu-io", "-f", "raw", "-c", f"write {SIZE} 4096", uri, ok=None)
    check(past.returncode != 0 or "past end" in past.stdout + past.stderr, "a write past the end")

    # A copy-on-write image on top, committed into the volume.
    overlay = world.file("overlay.qcow2")
    run("qemu-img", "create", "-q", "-f", "qcow2", "-b", uri, "-F", "raw", overlay)
    run("qemu-io", "-f", "qcow2", "-c", "write -P 0x77 60M 2M", overlay)
    run("qemu-img", "commit", "-q", "-f", "qcow2", overlay)
    shown = run("qemu-io", "-f", "raw", "-c", "read -P 0x77 60M 2M", uri).stdout
    check("verification failed" not in shown, shown)

    # And all of it is there after the server has been stopped and started.
    run("qemu-img", "convert", "-f", "raw", "-O", "raw", uri, world.file("before.raw"))
    server.stop()
    server = pool.serve("v")
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", world.file("before.raw"), server.uri("v"))
    server.stop()


main(scenario, COPIES_APART, more=EVERY_CASE)
