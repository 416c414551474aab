#!/usr/bin/python3
"""The folder of one node hangs: every call on it waits. The others are served, started and stopped.

The folder is covered by a FUSE file system that no process serves. A call on it waits until the
file system's device is closed, as a call on a disk that hangs waits for the disk.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from disks import MNT_DETACH, own_mounts
from scenario import main
from world import EVERY_PLACE, FIELDSTONE, LIBC, MIB, Process, Skip, check, refused

HUNG, LOST = 1, 2
# What a start may take: the bound on folders that do not answer, and some for the rest.
START_SECONDS = 20
# The drain, the volumes' own patience, and the bound on the cores; much less is usual.
END_SECONDS = 60


class HungFolder(contextlib.AbstractContextManager):
    """Covers a folder, until `answer` or the end of this process."""

    def __init__(self, folder):
        self.folder = str(folder).encode()
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0".encode()
        if LIBC.mount(b"hung", self.folder, b"fuse", 0, options) != 0:
            os.close(self.device)
            raise Skip("this process may not mount FUSE file systems")

    def answer(self):
        """The folder is the one from before again."""
        if self.device is not None:
            # The calls that wait fail.
            os.close(self.device)
            self.device = None
            check(LIBC.umount2(self.folder, MNT_DETACH) == 0, "the folder stays covered")

    def __exit__(self, *_):
        self.answer()


def write_and_read(server, turn):
    handle = connect(server.uri("v"))
    handle.pwrite(noise(MIB, f"turn {turn}"), turn * MIB)
    handle.flush()
    check(handle.pread(MIB, turn * MIB) == noise(MIB, f"turn {turn}"), f"turn {turn} was lost")
    handle.shutdown()


def end(server):
    began = time.monotonic()
    server.stop(END_SECONDS)
    print(f"ended after {time.monotonic() - began:.1f} s")


def while_serving(pool):
    """The folder hangs under a server. The server still notices what happens to other folders."""
    server = pool.serve("v")
    with HungFolder(pool.node_path(HUNG)):
        write_and_read(server, 0)
        # So that the look at the hung folder is under way.
        time.sleep(3)
        aside = pool.path / "aside"
        shutil.move(pool.node_path(LOST), aside)
        server.wait_until_logged(f"node.{LOST} is down", seconds=20)
        write_and_read(server, 1)
        shutil.move(aside, pool.node_path(LOST))
        server.wait_until_logged("trying", seconds=20)
        write_and_read(server, 2)
        end(server)
        check(f"the folder of node.{HUNG} does not answer" in server.errors(), server.errors())


def at_the_start(pool):
    """The folder hangs when the server starts: its node is down, until the folder answers."""
    with HungFolder(pool.node_path(HUNG)) as folder:
        began = time.monotonic()
        server = pool.serve("v", wait=False)
        server.wait_for_output("serving v", seconds=START_SECONDS)
        print(f"serving after {time.monotonic() - began:.1f} s")
        server.wait_until_logged(f"node.{HUNG} does not answer")
        write_and_read(server, 3)
        folder.answer()
        pool.wait_until_whole("v")
        write_and_read(server, 4)
        end(server)
    server = pool.serve("v")
    check("does not answer" not in server.errors(), server.errors())
    end(server)


def while_connecting(pool):
    """The folder of a node process hangs, and the process is gone: the server looks there for its
    address, again and again, and serves all the same."""
    server = pool.serve("v")
    with HungFolder(pool.node_path(HUNG)) as folder:
        pool.kill_nodes([HUNG])
        for turn in range(3):
            write_and_read(server, turn)
            time.sleep(2)
        check(pool.volume_status("v")["phase"] == "serving", "it does not serve any more")
        folder.answer()
        pool.start_missing_nodes()
        pool.wait_until_whole("v")
        write_and_read(server, 3)
        end(server)


def node_process(pool):
    """The folder hangs under a node's own process, and when that process starts."""
    node = pool.start_node(HUNG)
    with HungFolder(pool.node_path(HUNG)):
        # So that the announcement of the address is under way.
        time.sleep(4)
        end(node)
        pool.nodes.pop(HUNG)
        socket = pool.world.folder / "hung.sock"
        command = [FIELDSTONE, "node", pool.node_path(HUNG), "--listen", f"unix:{socket}"]
        node = Process(pool.world, "hung", command)
        node.wait_until_logged("does not answer", seconds=START_SECONDS)
        node.process.send_signal(signal.SIGTERM)
        code = node.process.wait(START_SECONDS)
        check(code == 1 and "interrupted" in node.errors(), f"{code}: {node.errors()}")


def replacing_another(pool):
    """Another node is replaced while the folder hangs. The node whose folder hangs is not lost."""
    with HungFolder(pool.node_path(HUNG)):
        pool.delete_node(LOST)
        began = time.monotonic()
        pool.replace(LOST)
        seconds = time.monotonic() - began
        print(f"replaced after {seconds:.1f} s")
        check(seconds < START_SECONDS, "the replacement waits for the folder that hangs")
        says = [f"node.{HUNG} does not answer"]
        refused("pool", "replace", pool.path, f"node.{HUNG}", says=says)


def scenario(world):
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise Skip("needs root and /dev/fuse")
    try:
        own_mounts()
    except OSError as error:
        raise Skip(str(error)) from error
    pool = world.pool()
    pool.create_volume("v", "16M")
    if world.case.nodes == "processes":
        while_connecting(pool)
    else:
        while_serving(pool)
        at_the_start(pool)
        node_process(pool)
        replacing_another(pool)


main(scenario, EVERY_PLACE, waits=True)
