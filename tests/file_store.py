#!/usr/bin/python3
"""`serve file:PATH`: a file and a block device as stores, through and past the page cache."""

import filecmp
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, error_of, noise
from scenario import main
from world import FIELDSTONE, MIB, Case, Process, check, fieldstone, need, refused, run

SIZE = 64 * MIB
BLOCK = 4096


class FileServer(Process):
    """`fieldstone serve` of targets that need no pool."""

    def __init__(self, world, *targets, options=()):
        world.sockets += 1
        self.socket = world.folder / f"nbd{world.sockets}.sock"
        command = [FIELDSTONE, "serve", *targets, "--nbd", f"unix:{self.socket}", *options]
        super().__init__(world, f"serve{world.sockets}", command)
        self.wait_for_output("serving ", times=len(targets))

    def uri(self, name=""):
        return f"nbd+unix:///{name}?socket={self.socket}"


def source_of(world):
    """Data, a hole, and data up to the end."""
    source = world.file("source")
    with open(source, "wb") as file:
        file.write(noise(20 * MIB, 7))
        file.seek(44 * MIB + 8192)
        file.write(noise(20 * MIB - 8192, 8))
    check(source.stat().st_size == SIZE, "the source has another size")
    return source


def copies(world, source, disk, options):
    """What is copied in is in the file, and comes back."""
    back = world.file("back")
    server = FileServer(world, f"file:{disk}", options=options)
    run("nbdcopy", "--connections=4", "--flush", source, server.uri())
    run("nbdcopy", "--connections=4", server.uri(), back)
    check(filecmp.cmp(source, back, shallow=False), f"{options}: the copy differs")
    handle = connect(server.uri())
    handle.pwrite(noise(3 * BLOCK, 9), 5 * MIB, 1)  # FUA
    handle.pwrite(noise(3 * BLOCK, 10), 6 * MIB)
    handle.flush()
    server.kill()
    server = FileServer(world, f"file:{disk}", options=options)
    handle = connect(server.uri())
    check(bytes(handle.pread(3 * BLOCK, 5 * MIB)) == noise(3 * BLOCK, 9), "FUA was lost")
    check(bytes(handle.pread(3 * BLOCK, 6 * MIB)) == noise(3 * BLOCK, 10), "a flush was lost")
    # Bytes that are no blocks.
    handle.pwrite(b"abc", 7 * MIB + 4095)
    handle.zero(2, 7 * MIB + 4096)
    check(bytes(handle.pread(3, 7 * MIB + 4095)) == b"a\0\0", "odd bytes")
    server.stop()
    with open(disk, "rb") as file:
        file.seek(7 * MIB + 4095)
        check(file.read(3) == b"a\0\0", "the file holds something else")


def can_direct(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        print(f"without --direct: {error}")
        return False
    return True


def space(world, disk):
    """A trim gives space back, zeroes may keep it, and extents tell of both."""
    server = FileServer(world, f"file:{disk}")
    handle = connect(server.uri())
    handle.pwrite(noise(16 * MIB, 3), 0)
    handle.flush()
    before = os.stat(disk).st_blocks * 512
    handle.trim(8 * MIB, 0)
    handle.flush()
    after = os.stat(disk).st_blocks * 512
    check(before - after >= 7 * MIB, f"a trim of 8 MiB gave {before - after} bytes back")
    check(bytes(handle.pread(MIB, 4 * MIB)) == bytes(MIB), "trimmed bytes are not zero")
    found = []
    handle.block_status(16 * MIB, 0, lambda _, __, entries, ___: found.extend(entries) or 0)
    check(found[0] >= 7 * MIB and found[1] & 1, f"the hole is not told of: {found}")
    handle.zero(MIB, 8 * MIB, 2)  # no hole
    check(bytes(handle.pread(MIB, 8 * MIB)) == bytes(MIB), "zeroed bytes are not zero")
    server.stop()


def refusals(world, disk):
    server = FileServer(world, f"file:{disk}")
    socket = world.folder / "other.sock"
    serve = ("serve", "--nbd", f"unix:{socket}")
    refused(*serve, f"file:{disk}", says=["is locked"])
    server.stop()
    refused(*serve, "file:/nowhere/disk", says=["/nowhere/disk is not there"])
    for option in ("--takeover", "--replace-missing", "--no-auto-rebuild", "--rebuild-limit=1M",
                   "--reads=balance", "--accel=rtl", "--node=0=unix:n.sock"):
        says = option.split("=")[0] + " needs a volume"
        refused(*serve, option, f"file:{disk}", says=[says])
    refused(*serve, f"file:{world.folder}", says=["neither a file nor a block device"])
    missing = fieldstone(*serve, "file:", ok=(2,)).stderr
    check("the path of a file is missing" in missing, missing)
    odd = world.file("odd")
    with open(odd, "wb") as file:
        file.truncate(1000)
    if can_direct(odd):
        refused(*serve, "--direct", f"file:{odd}", says=["multiple of 512"])
    server = FileServer(world, f"file:{odd}", f"file:{disk}", "ram:1M", options=["--read-only"])
    handle = connect(server.uri("odd"))
    check(handle.get_size() == 1000 and handle.is_read_only(), "the odd file")
    handle = connect(server.uri("disk"))
    handle.set_strict_mode(0)
    check(error_of(handle.pwrite, b"x", 0) == "EPERM", "a read-only file takes a write")
    server.stop()


def block_device(world, source):
    """The same on a loop device, where the machine lets us make one."""
    image = world.file("image")
    with open(image, "wb") as file:
        file.truncate(SIZE)
    made = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True)
    if made.returncode != 0:
        print(f"without a block device: {made.stderr.strip()}")
        return
    device = made.stdout.strip()
    try:
        copies(world, source, device, ["--direct"])
        copies(world, source, device, [])
        server = FileServer(world, f"file:{device}")
        handle = connect(server.uri())
        handle.trim(8 * MIB, 0)
        handle.zero(MIB, 8 * MIB)
        check(bytes(handle.pread(9 * MIB, 0)) == bytes(9 * MIB), "a trim of the device")
        server.stop()
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def scenario(world):
    need("nbdcopy")
    source = source_of(world)
    for options in ([], ["--direct"]):
        disk = world.file("disk")
        with open(disk, "wb") as file:
            file.truncate(SIZE)
        if not options or can_direct(disk):
            copies(world, source, disk, options)
    space(world, disk)
    refusals(world, disk)
    block_device(world, source)


if __name__ == "__main__":
    main(scenario, [Case("rs:2+1", "inside")])
