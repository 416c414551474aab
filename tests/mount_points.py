#!/usr/bin/python3
"""Node folders are mount points, and their disks go away: no node is made beneath, and all is back
with the disks.

Where the machine allows it, each node is a mount of its own. Elsewhere an empty folder is left in the
node's place, which is what an unmounted disk leaves.
"""

import contextlib
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import check_fill, fill
from scenario import main
from world import EVERY_PLACE, FIELDSTONE, MIB, check, fieldstone, refused, wait_until

SIZE = 32 * MIB
# Longer than servers and node processes take to look at the folders of nodes that are down, twice.
TWO_LOOKS_SECONDS = 5


class Disks:
    """One disk per node, mounted at the node's folder. Its content outlives the mount."""

    def __init__(self, world, count):
        self.pool = world.file("pool")
        self.pool.mkdir()
        self.away = [world.file(f"disk.{index}") for index in range(count)]
        self.mounted = set()
        for index in range(count):
            self.path(index).mkdir()
            self.away[index].mkdir()
        self.can_mount = self._try()

    def path(self, index):
        return self.pool / f"node.{index}"

    def _try(self):
        command = ["mount", "-t", "tmpfs", "-o", "size=480M", "none", self.away[0]]
        return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0

    def make(self):
        for index, disk in enumerate(self.away):
            if self.can_mount and index > 0:
                command = ["mount", "-t", "tmpfs", "-o", "size=480M", "none", disk]
                subprocess.run(command, check=True)
            self.mount(index)

    def mount(self, index):
        if self.can_mount:
            subprocess.run(["mount", "--bind", self.away[index], self.path(index)], check=True)
        elif any(self.away[index].iterdir()):
            self.path(index).rmdir()
            self.away[index].rename(self.path(index))
        self.mounted.add(index)

    def unmount(self, index):
        if self.can_mount:
            # Lazily: the server has files open there, as it would have on a disk that is pulled.
            subprocess.run(["umount", "-l", self.path(index)], check=True)
        else:
            with contextlib.suppress(OSError):
                self.away[index].rmdir()
            self.path(index).rename(self.away[index])
            self.path(index).mkdir()
        self.mounted.discard(index)

    def clear(self):
        if self.can_mount:
            for index in list(self.mounted):
                subprocess.run(["umount", "-l", self.path(index)], check=False)
            for disk in self.away:
                subprocess.run(["umount", "-l", disk], check=False)


def check_untouched(disks, indices):
    for index in indices:
        found = [entry.name for entry in disks.path(index).iterdir()]
        check(not found, f"node.{index} is unmounted, and {found} was written beneath")


def one_goes_and_comes(world, pool, disks, server):
    """While serving: down, with the question whether the disk is mounted; then back with its data."""
    if world.case.nodes == "processes":
        pool.kill_nodes([1])
    disks.unmount(1)
    node = wait_until(
        "the server sees that node 1 is gone",
        lambda: (n := pool.status()["nodes"][1])["state"] == "down" and n,
    )
    time.sleep(TWO_LOOKS_SECONDS)
    check_untouched(disks, [1])
    if world.case.nodes == "inside":
        node = pool.status()["nodes"][1]
        check("is its disk mounted?" in node["reason"], f"status does not ask for the disk: {node}")
        check("pool replace" in node["reason"], f"status names no command: {node}")
    check_fill(server.uri("v"), SIZE)
    if disks.can_mount:
        # The record says that a disk was mounted there.
        refused("pool", "replace", pool.path, "1", says=["file system of its own", "--force"])
    address = f"unix:{world.file('x.sock')}"
    refused("node", pool.node_path(1), "--listen", address, says=["is its disk mounted?"])
    check_untouched(disks, [1])
    disks.mount(1)
    pool.start_missing_nodes()
    pool.wait_until_whole("v")
    check_fill(server.uri("v"), SIZE)


def three_of_six(world, pool, disks):
    """More than the code makes up for: nothing is written, nothing is served, nothing is lost."""
    lost = [0, 2, 3]
    pool.kill_nodes(lost)
    for index in lost:
        disks.unmount(index)
    for options in ([], ["--replace-missing"]):
        server = pool.serve("v", options=options, wait=False)
        time.sleep(TWO_LOOKS_SECONDS)
        check("serving" not in server.output(), "it serves with three of six nodes away")
        server.kill()
        check_untouched(disks, lost)
    refused(
        "pool", "replace", pool.path, "0", "2", "3",
        says=["file system of its own"] if disks.can_mount else ["3 nodes", "only unmounted"],
    )
    # Commands that used to make what is missing.
    for command in (
        ["volume", "create", pool.path / "w", "--size", "1M"],
        ["volume", "ls", pool.path],
    ):
        subprocess.run([FIELDSTONE, *command], capture_output=True, timeout=120, check=False)
    check_untouched(disks, lost)
    for index in lost:
        disks.mount(index)
    pool.start_missing_nodes()
    server = pool.serve("v")
    check_fill(server.uri("v"), SIZE)
    pool.wait_until_whole("v")
    server.stop()


def scenario(world):
    disks = Disks(world, world.case.node_count)
    print("mounted" if disks.can_mount else "no mounts here: empty folders stand for them")
    try:
        disks.make()
        # The harness makes the pool in the folder with the mount points.
        pool = world.pool("300M")
        pool.create_volume("v", SIZE)
        server = pool.serve("v")
        fill(server.uri("v"), SIZE)
        one_goes_and_comes(world, pool, disks, server)
        server.stop()
        three_of_six(world, pool, disks)
        fieldstone("status", pool.path)
    finally:
        for process in world.processes:
            if process.is_running():
                process.kill()
        disks.clear()


main(scenario, EVERY_PLACE, waits=True)
