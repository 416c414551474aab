#!/usr/bin/python3
"""One server for volumes of two pools, a file and memory: each pool is asked, harmed and rebuilt."""

import json
import pathlib
import sys
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from scenario import main
from world import (
    EVERY_PLACE,
    FIELDSTONE,
    MIB,
    Case,
    Process,
    check,
    fieldstone,
    refused,
    wait_until,
)

# The volume "v" is in both pools. The export of the second one has a name of its own.
EXPORTS = ("v", "second v", "w", "disk", "ram4")
LENGTH = 4 * MIB


class MixedServer(Process):
    """`fieldstone serve` of volumes of both pools, a file and memory."""

    def __init__(self, world, targets, *options):
        world.sockets += 1
        self.socket = world.folder / f"nbd{world.sockets}.sock"
        command = [FIELDSTONE, "serve", *targets, "--nbd", f"unix:{self.socket}", *options]
        super().__init__(world, f"serve{world.sockets}", command)
        self.wait_for_output("serving ", times=len(targets))

    def uri(self, export):
        return f"nbd+unix:///{urllib.parse.quote(export)}?socket={self.socket}"


def write_all(server):
    for seed, export in enumerate(EXPORTS):
        handle = connect(server.uri(export))
        handle.pwrite(noise(LENGTH, seed), 0)
        handle.flush()


def check_all(server, exports=EXPORTS):
    for export in exports:
        handle = connect(server.uri(export))
        read = bytes(handle.pread(LENGTH, 0))
        check(read == noise(LENGTH, EXPORTS.index(export)), f"{export} holds something else")


def names(pool):
    return [volume["name"] for volume in pool.status()["volumes"]]


def asked(server, a, b):
    """Each pool's socket tells of the pool's volumes and nodes, and of what needs no pool."""
    check(sorted(names(a)) == ["disk", "ram4", "v", "w"], f"the first pool has {names(a)}")
    check(sorted(names(b)) == ["disk", "ram4", "v"], f"the second pool has {names(b)}")
    for pool in (a, b):
        status = pool.status()
        check(status["dir"] == str(pool.path), f"{status['dir']} is told of")
        check(status["server"]["pid"] == server.pid, "another server answers")
        check(len(status["nodes"]) == pool.count, "nodes are missing")
        check(all(node["state"] == "up" for node in status["nodes"]), "a node is down")
    # A volume that one pool makes is not in the other.
    b.create_volume("x", "16M")
    listed = fieldstone("volume", "ls", a.path, "--json").stdout
    check([json.loads(line)["name"] for line in listed.splitlines()] == ["v", "w"], listed)
    refused("volume", "rm", b.path / "v", says=["is being served"])
    refused("volume", "grow", b.path / "w", "--size", "128M", says=['no volume "w"'])
    fieldstone("volume", "grow", b.path / "v", "--size", "80M")
    check(connect(server.uri("second v")).get_size() == 80 * MIB, "the second volume has not grown")
    check(connect(server.uri("v")).get_size() == 64 * MIB, "the first volume has grown")
    fieldstone("volume", "limit", a.path / "v", "--iops", "100000")
    served = [f"process {server.pid} serves the pool", 'not the volume "x"']
    refused("volume", "limit", b.path / "x", "--iops", "9", says=served)
    absent = [f"process {server.pid} serves", 'no volume "y"; there are: v, x']
    refused("volume", "limit", b.path / "y", "--iops", "9", says=absent)
    fieldstone("scrub", a.path)
    fieldstone("scrub", b.path / "v")


def measured(server):
    """No sample of the metrics is there twice. Those of a pool name the pool, and no others do."""
    line = next(line for line in server.output().splitlines() if line.startswith("metrics on "))
    with urllib.request.urlopen(line.split()[-1], timeout=30) as page:
        text = page.read().decode()
    samples = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    check(len(samples) == len(set(samples)), "a sample is there twice")
    sizes = [sample for sample in samples if sample.startswith("fieldstone_volume_size_bytes")]
    check(len(sizes) == len(EXPORTS), str(sizes))
    for sample in sizes:
        is_store = 'volume="disk"' in sample or 'volume="ram4"' in sample
        check(('pool="' in sample) != is_store, f"the labels are wrong: {sample}")


def harmed(server, a, b):
    """A node of one pool is lost. The node of the same number in the other pool is not."""
    b.delete_node(1)
    wait_until("the lost node is noticed", lambda: b.status()["nodes"][1]["state"] == "down")
    check(a.status()["nodes"][1]["state"] == "up", "the other pool's node is down as well")
    check(all(node["state"] == "up" for node in a.volume_status("v")["nodes"]), "a is harmed")
    check_all(server)
    b.replace(1)
    b.wait_until_whole("v")
    check_all(server)


def scenario(world):
    a = world.pool()
    b = world.pool(name="second", case=Case("copies:3", "inside"))
    a.create_volume("v", "64M")
    a.create_volume("w", "64M")
    b.create_volume("v", "64M")
    disk = world.file("disk")
    with open(disk, "wb") as file:
        file.truncate(64 * MIB)
    targets = [a.path / "v", f"second v={b.path}/v", a.path / "w", f"file:{disk}", "ram:64M"]
    server = MixedServer(world, targets, "--cores", "2", "--metrics", "127.0.0.1:0")
    write_all(server)
    check_all(server)
    asked(server, a, b)
    measured(server)
    harmed(server, a, b)
    socket = f"unix:{world.folder}/other.sock"
    refused("serve", b.path / "x", "--nbd", socket, says=["is in use"])
    twice = world.file("link")
    twice.symlink_to(a.path)
    same = [a.path / "v", b.path / "v"]
    refused("serve", *same, "--nbd", socket, says=["both be the export", f"NAME={b.path}/v"])
    refused("serve", a.path / "v", twice / "w", "--nbd", socket, says=["are the same pool"])
    refused(
        "serve", a.path / "w", b.path / "v", "--nbd", socket, "--node", "1=tcp:localhost:1",
        says=["--node does not say"],
    )
    # What is flushed survives a crash, in every store but memory.
    server.kill()
    server = MixedServer(world, targets, "--cores", "2")
    check_all(server, EXPORTS[:-1])
    server.stop()
    # Each pool can be served alone again.
    for pool, export in ((a, "v"), (b, "second v")):
        server = pool.serve("v")
        handle = connect(server.uri("v"))
        check(bytes(handle.pread(LENGTH, 0)) == noise(LENGTH, EXPORTS.index(export)), export)
        server.stop()


if __name__ == "__main__":
    main(scenario, EVERY_PLACE, waits=True)
