#!/usr/bin/python3
"""Volumes come and go: create, list, grow and remove, with a server and without one."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from scenario import main
from world import COPIES_INSIDE, EVERY_CASE, FIELDSTONE, MIB, check, fieldstone


def listed(pool):
    lines = fieldstone("volume", "ls", pool.path, "--json").stdout.splitlines()
    return {line["name"]: line for line in map(json.loads, lines)}


def used_bytes(pool):
    return sum(node["total_bytes"] - node["free_bytes"] for node in pool.status()["nodes"])


def grow_while_nodes_sleep(pool):
    """A volume is larger when the nodes know it, and not before; then it stays so."""
    server = pool.serve("other")
    for node in pool.nodes.values():
        node.process.send_signal(signal.SIGSTOP)
    command = [FIELDSTONE, "volume", "grow", pool.path / "other", "--size", "48M"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as growing:
        time.sleep(2)
        answered = growing.poll() is not None
        for node in pool.nodes.values():
            node.process.send_signal(signal.SIGCONT)
        check(not answered, "growing was answered by nodes that sleep")
        check(growing.wait(60) == 0, f"growing ended with {growing.returncode}")
    server.kill()
    check(listed(pool)["other"]["size_bytes"] == 48 * MIB, "the new size did not survive")


def leftovers(pool):
    """Files of nodes that belong to volumes which no node lists."""
    known = {line["id"] for line in listed(pool).values()}
    files = [*pool.path.glob("node.*/volume.*"), *pool.path.glob("node.*/journal.*")]
    return [str(file) for file in files if file.name.split(".")[1] not in known]


def killed_creates(pool):
    """What a create leaves that is killed at any moment, the next one removes."""
    for attempt in range(12):
        command = [FIELDSTONE, "volume", "create", pool.path / f"k{attempt}", "--size", "16M"]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as creating:
            time.sleep(0.01 + 0.02 * attempt)
            creating.kill()
    # A node that still waits for what the killed process left in the kernel cannot be cleaned yet.
    for attempt in range(10):
        pool.create_volume(f"after{attempt}", "16M")
        left = leftovers(pool)
        if not left:
            break
        time.sleep(1)
    check(not left, f"of volumes that are not listed there are {left}")
    for name in listed(pool):
        if name.startswith(("after", "k")):
            fieldstone("volume", "rm", pool.path / name)


def shards_of_a_removed_volume(pool):
    """A node comes back with shards of a removed volume. The next creation removes them."""
    pool.create_volume("gone", "16M")
    server = pool.serve("gone")
    handle = connect(server.uri("gone"))
    handle.pwrite(noise(8 * MIB, "gone"), 0)
    handle.flush()
    handle.shutdown()
    server.stop()
    slots, before = pool.node_path(0) / "slots", pool.path.parent / "slots.before"
    shutil.copy(slots, before)
    fieldstone("volume", "rm", pool.path / "gone")
    used = used_bytes(pool)
    pool.kill_nodes([0])
    shutil.copy(before, slots)
    pool.start_node(0)
    check(used_bytes(pool) > used, "no shard came back")
    check("gone" not in listed(pool), "a removed volume is listed again")
    pool.create_volume("next", "4096")
    fieldstone("volume", "rm", pool.path / "next")
    check(used_bytes(pool) == used, f"{used_bytes(pool)} bytes are used after {used}")


def scenario(world):
    pool = world.pool()
    check(listed(pool) == {}, "an empty pool lists volumes")
    for name, size in [("a", "32M"), ("b b", "48M"), ("grün", "4096")]:
        pool.create_volume(name, size)
    other = "copies:2" if world.case.code.startswith("rs") else "rs:2+1"
    fieldstone("volume", "create", pool.path / "other", "--size", "32M", "--code", other)
    seen = listed(pool)
    check(set(seen) == {"a", "b b", "grün", "other"}, f"listed: {sorted(seen)}")
    killed_creates(pool)
    check(set(listed(pool)) == set(seen), f"listed: {sorted(listed(pool))}")
    check(seen["b b"]["size_bytes"] == 48 * MIB and seen["other"]["code"] == other, f"{seen}")

    server = pool.serve("a", "b b", "other", "grün")
    for name in ("a", "b b", "other"):
        handle = connect(server.uri(name.replace(" ", "%20")))
        handle.pwrite(noise(20 * MIB, name), MIB)
        handle.flush()
        handle.shutdown()
    check(listed(pool)["a"]["served"], "ls does not show that a volume is served")

    # Made while others are served; grown while served, and seen by new connections.
    fieldstone("volume", "create", pool.path / "late", "--size", "16M")
    check("late" in listed(pool), "a volume made online is not listed")
    fieldstone("volume", "grow", pool.path / "a", "--size", "40M")
    handle = connect(server.uri("a"))
    check(handle.get_size() == 40 * MIB, f"the grown volume has {handle.get_size()} bytes")
    check(handle.pread(8 * MIB, 32 * MIB) == bytes(8 * MIB), "new space is not zero")
    handle.pwrite(noise(MIB, 5), 39 * MIB)
    check(handle.pread(20 * MIB, MIB) == noise(20 * MIB, "a"), "growing changed the data")
    handle.shutdown()
    server.stop()

    if world.case.nodes == "processes":
        grow_while_nodes_sleep(pool)
        shards_of_a_removed_volume(pool)
    fieldstone("volume", "grow", pool.path / "b b", "--size", "64M")
    before = used_bytes(pool)
    fieldstone("volume", "rm", pool.path / "other")
    fieldstone("volume", "rm", pool.path / "late")
    check(set(listed(pool)) == {"a", "b b", "grün"}, f"listed: {sorted(listed(pool))}")
    after = used_bytes(pool)
    check(before - after >= 20 * MIB, f"removing freed {before - after} bytes only")

    server = pool.serve("a", "b b")
    for name, size in [("a", 40), ("b b", 64)]:
        handle = connect(server.uri(name.replace(" ", "%20")))
        check(handle.get_size() == size * MIB, f"{name} has {handle.get_size()} bytes")
        check(handle.pread(20 * MIB, MIB) == noise(20 * MIB, name), f"{name} lost data")
        handle.shutdown()
    server.stop()
    # A name is free again after its volume is gone.
    pool.create_volume("other", "16M")
    server = pool.serve("other")
    handle = connect(server.uri("other"))
    check(handle.pread(16 * MIB, 0) == bytes(16 * MIB), "a new volume is not empty")
    handle.shutdown()
    server.stop()


main(scenario, COPIES_INSIDE, waits=True, more=EVERY_CASE)
