#!/usr/bin/python3
"""The disk of one node is fuller than the node's size says: the others go on, `status` names the
node, and when the disk has room again the volume becomes whole by itself."""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import check_fill, fill
from scenario import main
from world import COPIES_INSIDE, EVERY_CASE, MIB, Skip, check

SIZE = 48 * MIB
# Written before the disk is filled; the rest finds no room on it.
BEFORE = 8 * MIB
NODE = 1
# What is left to the node when its disk is filled.
LEFT = 1 * MIB


def fill_disk(path):
    """Leaves `LEFT` bytes of the file system at `path`."""
    free = os.statvfs(path)
    ballast = path / "ballast"
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - LEFT)
    return ballast


def scenario(world):
    disk = world.file("pool") / f"node.{NODE}"
    disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=480M", "none", disk]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip("no file system can be mounted here")
    try:
        pool = world.pool("300M")
        pool.create_volume("v", SIZE)
        server = pool.serve("v")
        fill(server.uri("v"), BEFORE)
        ballast = fill_disk(disk)
        fill(server.uri("v"), SIZE, 1)
        says = f"node.{NODE}: its disk has less room than the node's size says"
        server.wait_until_logged(says, seconds=60)
        check_fill(server.uri("v"), SIZE, 1)

        # The node also starts on its full disk, and the volume opens beside it.
        server.kill()
        pool.kill_nodes([NODE])
        pool.start_missing_nodes()
        server = pool.serve("v")
        check_fill(server.uri("v"), SIZE, 1)
        others = [n["state"] for n in pool.volume_status("v")["nodes"]]
        check(others.count("up") >= len(others) - 1, f"the nodes are {others}")

        ballast.unlink()
        pool.wait_until_whole("v")
        fill(server.uri("v"), SIZE, 2)
        pool.wait_until_whole("v")
        check_fill(server.uri("v"), SIZE, 2)
        server.stop()
    finally:
        for process in world.processes:
            if process.is_running():
                process.kill()
        subprocess.run(["umount", "-l", disk], check=False)


main(scenario, COPIES_INSIDE, more=EVERY_CASE)
