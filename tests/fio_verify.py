#!/usr/bin/python3
"""fio writes, overwrites and trims with several jobs, and verifies every block by CRC32C."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from scenario import main
from world import COPIES_APART, EVERY_CASE, check, need, run

COMMON = ["--ioengine=nbd", "--verify=crc32c", "--verify_fatal=1", "--group_reporting"]


def fio(world, name, *options):
    result = run(
        "fio", f"--name={name}", *COMMON, *options, f"--aux-path={world.folder}", seconds=300
    )
    text = result.stdout + result.stderr
    check("err= 0" in text and "verify:" not in text, text)


def scenario(world):
    need("fio")
    pool = world.pool("1G")
    pool.create_volume("v", "192M")
    server = pool.serve("v", options=["--cores", "2"])
    uri = f"--uri={server.uri('v')}"

    # Each job has a region of its own: what it verifies is what it wrote.
    jobs = ["--numjobs=3", "--size=24M", "--offset_increment=64M"]
    fio(world, "random", uri, *jobs, "--rw=randwrite", "--bs=4k", "--iodepth=16")
    fio(world, "mixed", uri, *jobs, "--rw=randrw", "--bsrange=4k-128k", "--iodepth=8")
    fio(world, "sequential", uri, *jobs, "--rw=write", "--bs=1M", "--iodepth=4")
    # Requests that start and end inside blocks.
    fio(world, "unaligned", uri, *jobs, "--rw=randwrite", "--bs=3584", "--ba=512", "--iodepth=8")
    # Verified a while after it was written, with flushes in between.
    fio(
        world, "flushes", uri, *jobs, "--rw=randwrite", "--bs=16k", "--iodepth=8", "--fsync=64",
        "--verify_backlog=256", "--number_ios=1000",
    )
    # Every block is trimmed, written and verified, beside jobs that read and write.
    fio(world, "trims", uri, *jobs, "--rw=randtrimwrite", "--bs=16k", "--iodepth=8")
    fio(world, "beside", uri, *jobs, "--rw=randrw", "--bs=8k", "--iodepth=8", "--rwmixread=30")
    server.stop()

    # What the last verified run wrote is verified again by a fio that only reads.
    server = pool.serve("v")
    write = [f"--uri={server.uri('v')}", "--rw=write", "--bs=64k", "--size=96M", "--iodepth=8"]
    fio(world, "again", *write, "--do_verify=0", "--end_fsync=1")
    server.stop()
    server = pool.serve("v")
    write[0] = f"--uri={server.uri('v')}"
    fio(world, "again", *write, "--verify_only=1")
    server.stop()


main(scenario, COPIES_APART, more=EVERY_CASE)
