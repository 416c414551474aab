#!/usr/bin/python3
"""The cluster in memory (`fieldstone rados null-cluster`) and the clients that connect to it.

Ceph's own `rados`, `rbd` and fio's engines with librados and librbd, and our commands: each reads
what the other wrote. Then the same with connections that break, answers that come late, twice or
damaged, and primaries that change: no error, nothing lost.
"""

import os
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import run_steps
from device import noise
from scenario import main
from world import ENVIRONMENT, FIELDSTONE, Case, Process, check, fieldstone, need, run

IMAGE_BYTES = 32 << 20
# What goes wrong, and how much of it.
FAULTS = {
    "drop": ["--drop-every", "3M"],
    "truncate": ["--truncate-every", "200"],
    "crc": ["--wrong-crc", "200"],
    "duplicate": ["--duplicate-reply"],
    "slow": ["--slow-osd", "1:3"],
    "stale": ["--stale-map"],
}


class Null:
    """A running cluster in memory."""

    def __init__(self, world, name, *options):
        self.world = world
        self.folder = world.folder / name
        command = [FIELDSTONE, "rados", "null-cluster", "--folder", self.folder]
        image = f"rbd/disk:{IMAGE_BYTES >> 20}M"
        self.process = Process(world, name, [*command, "--image", image, *options])
        self.process.wait_for_output("ready")
        self.conf = self.folder / "ceph.conf"
        self.environment = {**ENVIRONMENT, "CEPH_CONF": str(self.conf)}

    def theirs(self, *words, **options):
        return run(*words, env=self.environment, **options)

    def ours(self, tool, *words, **options):
        return fieldstone(tool, *words, "--conf", self.conf, **options)

    def fio(self, engine, *words):
        if shutil.which("fio"):
            # The engine comes before its options.
            options = [f"--ioengine={engine}", "--clientname=admin", "--pool=rbd", *words]
            self.theirs("fio", "--name=null", "--minimal", *options, seconds=300)


def objects(null):
    """Objects, in both directions; lists, attributes and maps."""
    file, back = null.world.file("in"), null.world.file("out")
    for size in [0, 5, 4096, 70_001, 5 << 20]:
        content = noise(size, size)
        file.write_bytes(content)
        null.theirs("rados", "-p", "rbd", "put", "theirs", file)
        null.ours("rados", "get", "-p", "rbd", "theirs", back)
        check(back.read_bytes() == content, f"{size} bytes of rados differ")
        null.ours("rados", "put", "-p", "rbd", "ours", file)
        null.theirs("rados", "-p", "rbd", "get", "ours", back)
        check(back.read_bytes() == content, f"{size} bytes of ours differ")
    null.theirs("rados", "-p", "rbd", "setxattr", "ours", "colour", "blue")
    null.theirs("rados", "-p", "rbd", "setomapval", "ours", "key", "value")
    got = null.ours("rados", "getxattr", "-p", "rbd", "ours", "colour").stdout
    check(got.strip() == "blue", f"getxattr gives {got}")
    got = null.ours("rados", "getomapval", "-p", "rbd", "ours", "key").stdout
    check("value" in got, f"getomapval gives {got}")
    for listed in (null.theirs("rados", "-p", "rbd", "ls"), null.ours("rados", "ls", "-p", "rbd")):
        check({"ours", "theirs"} <= set(listed.stdout.split()), f"ls gives {listed.stdout}")
    null.theirs("rados", "-p", "rbd", "rm", "ours", "theirs")
    null.theirs("rados", "-p", "rbd", "bench", "1", "write", "-b", "4096", "--no-cleanup")
    null.theirs("rados", "-p", "rbd", "bench", "1", "rand")
    null.theirs("rados", "-p", "rbd", "cleanup")


def images(null):
    """The image of the start, and one that librbd makes; both clients write both."""
    info = null.theirs("rbd", "info", "rbd/disk").stdout
    check("size 32 MiB" in info and "exclusive-lock" in info, f"rbd info says {info}")
    null.theirs("rbd", "create", "rbd/made", "--size", "16M")
    check(null.ours("rbd", "ls", "rbd").stdout.split() == ["disk", "made"], "rbd ls differs")
    file, back = null.world.file("image"), null.world.file("export")
    content = noise(IMAGE_BYTES, 1)
    file.write_bytes(content)
    for write, read in [(null.ours, null.theirs), (null.theirs, null.ours)]:
        name = f"rbd/copy.{write.__name__}"
        write("rbd", "import", file, name)
        read("rbd", "export", name, back)
        check(back.read_bytes() == content, f"the image {name} differs")
        back.unlink()
        null.theirs("rbd", "snap", "create", f"{name}@snap")
        null.theirs("rbd", "snap", "rm", "--no-progress", f"{name}@snap")
        null.theirs("rbd", "rm", "--no-progress", name)


def verified(null):
    """fio with librbd and librados writes and reads back."""
    load = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=8M", "--verify=crc32c"]
    load += ["--verify_state_save=0"]
    null.fio("rbd", "--rbdname=disk", *load)
    # Without a file, this engine of fio 3.33 crashes.
    null.fio("rados", f"--conf={null.conf}", *load)


def plain(world, *options):
    null = Null(world, "plain", *options)
    keyring = null.folder / "keyring"
    if keyring.exists():
        check(os.stat(keyring).st_mode & 0o77 == 0, "others can read the keyring")
    run_steps((objects, null), (images, null), (verified, null))
    null.process.stop()


def faults(world):
    for name, options in FAULTS.items():
        null = Null(world, name, *options)
        verified(null)
        content = noise(200_000, 1)
        file, back = world.file("in"), world.file("out")
        file.write_bytes(content)
        for number in range(10):
            null.ours("rados", "put", "-p", "rbd", f"object.{number}", file)
            null.theirs("rados", "-p", "rbd", "get", f"object.{number}", back)
            check(back.read_bytes() == content, f"{name}: object.{number} differs")
        null.process.stop()


def refusals(world):
    for words, says in [
        (["--osds", "65"], ["--osds", "64"]),
        (["--image", "disk:1G"], ["POOL/NAME:SIZE"]),
        (["--pool", "a", "--pool", "a"], ["a", "twice"]),
        (["--slow-osd", "x"], ["ID:MS"]),
    ]:
        folder = world.folder / "refused"
        command = ["rados", "null-cluster", "--folder", folder, *words]
        # 1: it cannot start. 2: the command line is wrong.
        text = fieldstone(*command, ok=(1, 2), seconds=30).stderr
        for word in says:
            check(word in text, f"the error does not name {word!r}: {text}")


def scenario(world):
    refusals(world)
    need("rados", "rbd")
    if world.case.nodes == "faults":
        faults(world)
    elif world.case.nodes == "none":
        plain(world, "--auth", "none")
    else:
        plain(world, "--cores", "2")


main(scenario, [Case("null", "plain"), Case("null", "none"), Case("null", "faults")])
