#!/usr/bin/python3
"""With regenerating codes a lost node is rebuilt from half of each survivor, on the network and on
the disks; reads with nodes missing and everything else work as with Reed-Solomon."""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from scenario import main
from world import MIB, Case, check, fieldstone, refused

SIZE = 64 * MIB
STEP = 4 * MIB
# Bytes read for each byte restored, with 4 + 2 shards. Clay reads half of each of the 5 others; Zigzag
# does so for data shards, and reads k = 4 whole shards for parity: 3 on average, with some spread, for
# which shards a node has is up to placement.
READS = {"clay:4+2": (2.45, 2.55), "zigzag:4+2": (2.5, 3.5)}


def write_all(uri, generation):
    handle = connect(uri)
    for at in range(0, SIZE, STEP):
        handle.pwrite(noise(STEP, f"{generation}/{at}"), at)
    handle.flush()
    handle.shutdown()


def read_all(uri, generation, step):
    handle = connect(uri)
    for at in range(0, SIZE, STEP):
        wanted = noise(STEP, f"{generation}/{at}")
        for part in range(0, STEP, step):
            data = handle.pread(min(step, STEP - part), at + part)
            check(data == wanted[part:part + step], f"data at {at + part} differs")
    handle.shutdown()


def disk_reads(pool):
    """Bytes that each node process has had read from its disk."""
    total = 0
    for node in pool.nodes.values():
        text = pathlib.Path(f"/proc/{node.process.pid}/io").read_text()
        fields = dict(line.split(": ") for line in text.splitlines())
        total += int(fields["read_bytes"])
    return total


def on_memory(path):
    """Whether the file system is one of those that have no disk."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True)
    return kind.stdout.strip() in ("tmpfs", "ramfs")


def scenario(world):
    pool = world.pool(node_options=["--direct"])
    pool.create_volume("v", SIZE)
    server = pool.serve("v", options=["--no-auto-rebuild"])
    write_all(server.uri("v"), 1)

    # Two nodes away: everything is read through decoding, in large pieces and in small ones.
    for index in (1, 4):
        pool.delete_node(index)
    read_all(server.uri("v"), 1, 65_536 - 4096)
    read_all(server.uri("v"), 1, STEP)
    # A rebuild cannot help while they are away, and says so.
    refused("rebuild", pool.path, says=["node.1 is down", "node.4 is down", "replace the nodes"])
    pool.start_missing_nodes()
    fieldstone("rebuild", pool.path)
    read_all(server.uri("v"), 1, STEP)
    server.stop()

    # One node lost: what is read for it, as the volume counts it and as the nodes' disks see it.
    pool.delete_node(2)
    pool.start_missing_nodes()
    server = pool.serve("v", options=["--no-auto-rebuild"])
    before = disk_reads(pool)
    done = fieldstone("rebuild", pool.path / "v", "--json").stdout
    from_disk = disk_reads(pool) - before
    report = json.loads(done)
    check(report["shards_missing"] == 0 and report["shards_failed"] == 0, f"{report}")
    restored = report["written_bytes"]
    least, most = READS[world.case.code]
    ratio = report["read_bytes"] / restored
    check(least <= ratio <= most, f"{ratio:.2f} bytes were sent for each one restored")
    beside = report["reed_solomon_bytes"] / restored
    check(3.99 < beside < 4.01, f"Reed-Solomon is said to read {beside:.2f}")
    # The system counts what was read from disks, and nothing where files are in memory.
    if not on_memory(pool.path):
        ratio = from_disk / restored
        check(
            least - 0.1 <= ratio <= most + 0.1,
            f"{ratio:.2f} bytes were read from disks for each one restored",
        )
    shown = fieldstone("status", pool.path).stdout
    check("Reed-Solomon" in shown, f"status does not tell what Reed-Solomon would have read:\n{shown}")
    read_all(server.uri("v"), 1, STEP)
    server.stop()


main(scenario, [Case(code, "processes") for code in READS], waits=True)
