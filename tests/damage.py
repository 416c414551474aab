#!/usr/bin/python3
"""Damaged, foreign, newer, swapped and truncated node files: named, survived, and repaired."""

import contextlib
import pathlib
import shutil
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import BLOCK, connect, noise
from formats import crc32c, resealed
from scenario import main
from world import EVERY_CODE, MIB, Failure, check, fieldstone, refused, wait_until

SIZE = 48 * MIB


def patch(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def newer(record):
    """A record of a node's files as a later release might write it."""
    return resealed(record[:12] + struct.pack("<I", 9) + record[16:])


def fresh(world, name):
    """A pool with a volume full of known data, closed."""
    pool = world.pool(name=name)
    pool.create_volume("v", SIZE)
    server = pool.serve("v")
    handle = connect(server.uri("v"))
    for turn in range(SIZE // MIB // 4):
        handle.pwrite(noise(4 * MIB, turn), turn * 4 * MIB)
    handle.flush()
    handle.shutdown()
    server.stop()
    return pool


def intact(server):
    handle = connect(server.uri("v"))
    for turn in range(SIZE // MIB // 4):
        data = handle.pread(4 * MIB, turn * 4 * MIB)
        check(data == noise(4 * MIB, turn), f"data at {turn * 4} MiB differs")
    handle.shutdown()


def serves_without(pool, node, says):
    """One node is unusable: the server says which and why, serves all data, and status shows it."""
    server = pool.serve("v")
    server.wait_until_logged(*says)
    intact(server)
    states = {found["node"]: found for found in pool.status()["nodes"]}
    check(states[node]["state"] == "down", f"status shows node {node} as {states[node]}")
    server.stop()


def superblocks(world):
    pool = fresh(world, "superblock")
    path = pool.node_path(2) / "superblock"
    good = path.read_bytes()
    for what, data, says in [
        ("a flipped byte", good[:40] + bytes([good[40] ^ 1]) + good[41:], ["node.2/superblock"]),
        ("an empty file", b"", ["node.2/superblock"]),
        ("noise", noise(len(good), 1), ["node.2/superblock"]),
        ("cut short", good[:50], ["node.2/superblock"]),
        ("a newer version", newer(good[:512]) + good[512:], ["node.2", "version 9"]),
    ]:
        path.write_bytes(data)
        try:
            serves_without(pool, 2, says)
        except Failure as failure:
            raise Failure(f"superblock with {what}: {failure}") from failure
        check(path.read_bytes() == data, f"{what}: a damaged superblock was overwritten")
    path.unlink()
    serves_without(pool, 2, ["node.2", "no superblock"])
    path.write_bytes(good)
    server = pool.serve("v")
    pool.wait_until_whole("v")
    intact(server)
    server.stop()

    # The pool's own files.
    for name, says in [("pool.json", ["pool.json"]), ("pool.key", ["pool.key"])]:
        path = pool.path / name
        text = path.read_text()
        path.write_text(text[: len(text) // 2])
        refused("serve", pool.path / "v", "--nbd", f"unix:{world.file('x')}", says=says)
        path.write_text(text)
    path = pool.path / "pool.json"
    text = path.read_text()
    path.write_text(text.replace('"format": 1', '"format": 4'))
    refused("status", pool.path, says=["pool.json", "newer version"])
    path.write_text(text)


def foreign_folders(world):
    """A folder of another pool, and two folders of this one in each other's place."""
    pool, other = fresh(world, "here"), world.pool(name="there")
    kept = world.file("kept")
    shutil.move(pool.node_path(1), kept)
    shutil.copytree(other.node_path(1), pool.node_path(1))
    serves_without(pool, 1, ["node.1", "belongs elsewhere"])
    shutil.rmtree(pool.node_path(1))
    shutil.move(kept, pool.node_path(1))
    # What was written meanwhile lacks a shard, and a pool that lacks one cannot lose M more.
    server = pool.serve("v")
    pool.wait_until_whole("v")
    server.stop()

    a, b = pool.node_path(3), pool.node_path(0)
    shutil.move(a, kept)
    shutil.move(b, a)
    shutil.move(kept, b)
    server = pool.serve("v")
    server.wait_until_logged("node.0 belongs elsewhere", "node.3 belongs elsewhere")
    intact(server)
    server.stop()


@contextlib.contextmanager
def forged_records(pool, forge):
    """Forges the volume's record on every node as a later release may write it. What is done
    meanwhile must leave the records as they are; then the volume opens again, whole."""
    paths = [path for index in range(pool.count) for path in pool.node_path(index).glob("volume.*")]
    before = {path: path.read_bytes() for path in paths}
    for path in paths:
        record = bytearray(path.read_bytes())
        for slot in range(0, len(record), 65536):
            if any(record[slot : slot + 8]):
                forge(record, slot)
                record[slot : slot + 512] = resealed(bytes(record[slot : slot + 512]))
        path.write_bytes(record)
    forged = {path: path.read_bytes() for path in paths}
    yield
    for path in paths:
        check(path.read_bytes() == forged[path], f"{path} was changed")
        path.write_bytes(before[path])
    server = pool.serve("v")
    intact(server)
    server.stop()


def newer_root(world):
    """Roots that a later release wrote: named, and left as they are, with all that they name."""

    def forge(record, slot):
        (length,) = struct.unpack_from("<I", record, slot + 56)
        if length > 0:
            struct.pack_into("<I", record, slot + BLOCK + 8, 9)
            root = record[slot + BLOCK : slot + BLOCK + length]
            struct.pack_into("<I", record, slot + 60, crc32c(root))

    pool, nbd = fresh(world, "root"), f"unix:{world.file('x')}"
    with forged_records(pool, forge):
        refused("serve", pool.path / "v", "--nbd", nbd, says=["root", "version 9"])
        refused("volume", "ls", pool.path, says=["cannot be listed", "version 9"])
        refused("volume", "create", pool.path / "v", "--size", "16M", says=["cannot be listed"])
        volumes = pool.status()["volumes"]
        check("version 9" in volumes[0]["reason"], f"status says: {volumes}")
        refused("volume", "rm", pool.path / "v", says=["version 9"])


def newer_record(world):
    """Records that a later release wrote: their volume is told, and its name stays taken."""

    def forge(record, slot):
        struct.pack_into("<I", record, slot + 12, 9)

    pool, nbd = fresh(world, "record"), f"unix:{world.file('x')}"
    with forged_records(pool, forge):
        refused("volume", "ls", pool.path, says=["cannot be listed", "later release"])
        refused("volume", "create", pool.path / "v", "--size", "16M", says=["cannot be listed"])
        refused("serve", pool.path / "v", "--nbd", nbd, says=["cannot be listed"])
        refused("rebuild", pool.path, says=["cannot be listed"])
        volumes = pool.status()["volumes"]
        check("later release" in volumes[0]["reason"], f"status says: {volumes}")


def change_headers(path, change):
    """Changes the headers of all shards in a node's slots."""
    slots = bytearray(path.read_bytes())
    for at in range(0, len(slots), BLOCK):
        if slots[at : at + 8] == b"FSTNSLOT":
            header = change(bytearray(slots[at : at + BLOCK]))
            slots[at : at + BLOCK] = resealed(bytes(header))
    path.write_bytes(slots)


def of_another_volume(header):
    header[16:32] = bytes(range(16))
    return header


def data_files(world):
    """Truncated, emptied, exchanged and overwritten chunk stores: scrub repairs what it finds."""
    pool = fresh(world, "data")
    for what, spoil in [
        ("data cut to a half", lambda: cut(pool.node_path(1) / "data", 2)),
        ("slots cut to a half", lambda: cut(pool.node_path(1) / "slots", 2)),
        ("data of node 0 in node 1", lambda: shutil.copy(pool.node_path(0) / "data", pool.node_path(1) / "data")),
        ("data and slots of node 0 in node 1", lambda: [
            shutil.copy(pool.node_path(0) / name, pool.node_path(1) / name) for name in ("data", "slots")
        ]),
        ("shards of another volume", lambda: change_headers(pool.node_path(1) / "slots", of_another_volume)),
        ("noise in the slots", lambda: patch(pool.node_path(1) / "slots", 0, noise(MIB // 4, 4))),
    ]:
        spoil()
        try:
            server = pool.serve("v")
            intact(server)
            fieldstone("scrub", pool.path)
            pool.wait_until_whole("v")
            intact(server)
            server.stop()
            # Now that all is repaired, two other nodes may be lost.
            away = world.file("away")
            away.mkdir()
            for index in (0, 2):
                shutil.move(pool.node_path(index), away / f"node.{index}")
                pool.node_path(index).write_text("not a folder")
            server = pool.serve("v", options=["--no-auto-rebuild"])
            intact(server)
            server.stop()
            for index in (0, 2):
                pool.node_path(index).unlink()
                shutil.move(away / f"node.{index}", pool.node_path(index))
            away.rmdir()
            server = pool.serve("v")
            pool.wait_until_whole("v")
            server.stop()
        except Failure as failure:
            raise Failure(f"{what}: {failure}") from failure


def cut(path, parts):
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // parts)


def too_many_missing(world):
    """M+1 nodes are gone: refused with their names; back again, everything is there."""
    pool = fresh(world, "missing")
    away = world.file("away")
    away.mkdir()
    lost = range(world.case.tolerance + 1)
    for index in lost:
        shutil.move(pool.node_path(index), away / f"node.{index}")
        pool.node_path(index).write_text("not a folder")
    server = pool.serve("v", wait=False)
    # Either it refuses, or it waits for the nodes and says which; it must not serve.
    wait_until(
        "the server tells of the missing nodes",
        lambda: all(f"node.{index}" in server.errors() for index in lost),
        60,
    )
    check("serving" not in server.output(), "it serves with M+1 nodes missing")
    if server.is_running():
        server.kill()
    # The same when the folders are gone altogether: new, empty ones are no replacement.
    for index in lost:
        pool.node_path(index).unlink()
    server = pool.serve("v", wait=False)
    wait_until(
        "the server ends or serves",
        lambda: not server.is_running()
        or "serving" in server.output()
        or "still opening" in server.errors(),
        60,
    )
    if "serving" in server.output():
        # Acceptable only if what is lost is an error and never wrong data.
        handle = connect(server.uri("v"))
        readable = 0
        for turn in range(SIZE // MIB // 4):
            try:
                data = handle.pread(4 * MIB, turn * 4 * MIB)
            except Exception:
                continue
            check(data == noise(4 * MIB, turn), f"data at {turn * 4} MiB is wrong, not an error")
            readable += 1
        check(readable < SIZE // MIB // 4, "all data is there without enough nodes")
    server.kill()
    for index in lost:
        shutil.rmtree(pool.node_path(index), ignore_errors=True)
        shutil.move(away / f"node.{index}", pool.node_path(index))
    server = pool.serve("v")
    intact(server)
    server.stop()


def scenario(world):
    superblocks(world)
    foreign_folders(world)
    newer_root(world)
    newer_record(world)
    data_files(world)
    too_many_missing(world)


main(scenario, EVERY_CODE)
