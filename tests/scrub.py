#!/usr/bin/python3
"""A byte is flipped on a node's disk: reads give the right data, scrub finds it and repairs it."""

import json
import mmap
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import BLOCK, connect, noise
from scenario import main
from world import COPIES_APART, EVERY_CASE, MIB, check, fieldstone

SIZE = 64 * MIB
STEP = 4 * MIB
# What a node keeps one shard in.
SLOT = MIB


def written_parts(file):
    """The parts of a sparse file that hold data, as pairs of offsets."""
    end = 0
    while True:
        try:
            begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
        yield begin, end


def find_all(path, data):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        for begin, end in written_parts(file):
            while (begin := mapped.find(data, begin, end)) >= 0:
                yield begin
                begin += 1


def is_listed(node, at):
    """True when the slot around byte `at` of a node's data holds a shard, and no left-over of one."""
    with open(node / "slots", "rb") as slots:
        slots.seek(at // SLOT * 2 * BLOCK)  # a header and an open note per slot
        return slots.read(BLOCK) != bytes(BLOCK)


def find_shard_byte(pool, data):
    """Where, in the nodes' chunk stores, these bytes of a sealed shard lie."""
    places = []
    for index in range(pool.count):
        node = pool.node_path(index)
        found = find_all(node / "data", data)
        places += [(index, node / "data", at) for at in found if is_listed(node, at)]
    return places


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def read_all(uri):
    handle = connect(uri)
    for at in range(0, SIZE, STEP):
        check(handle.pread(STEP, at) == noise(STEP, at), f"data at {at // MIB} MiB differs")
    handle.shutdown()


def scrub(pool):
    return json.loads(fieldstone("scrub", pool.path / "v", "--json").stdout)


def scenario(world):
    pool = world.pool()
    pool.create_volume("v", SIZE)
    server = pool.serve("v", options=["--cache", "0"])
    handle = connect(server.uri("v"))
    for at in range(0, SIZE, STEP):
        handle.pwrite(noise(STEP, at), at)
    handle.flush()
    handle.shutdown()
    clean = scrub(pool)
    check(clean["damaged"] == 0 and clean["shards_done"] > 0, f"a clean scrub tells {clean}")

    # A few bytes in the middle of what was written to 8 MiB, wherever they are stored.
    probe = noise(STEP, 8 * MIB)[200_000:200_064]
    places = find_shard_byte(pool, probe)
    copies = 1 if world.case.code.startswith("rs") else 3
    check(len(places) == copies, f"the bytes lie at {len(places)} places, expected {copies}")
    index, path, at = places[0]
    flip(path, at + 30)

    # The damaged byte never reaches a client, before the scrub or after it.
    read_all(server.uri("v"))
    found = scrub(pool)
    check(found["shards_failed"] == 0, f"scrub could not repair: {found}")
    check(found["shards_done"] == found["shards_total"], f"scrub left shards out: {found}")
    repaired = find_shard_byte(pool, probe)
    check(len(repaired) == copies, f"after the scrub the bytes lie at {len(repaired)} places")
    check(scrub(pool)["damaged"] == 0, "a second scrub still finds damage")
    read_all(server.uri("v"))

    # A byte of every segment. What is rebuilt elsewhere must not give way to what it replaces.
    segment = 4 * MIB if world.case.code.startswith("rs") else MIB
    flips = range(0, SIZE, segment)
    for at in flips:
        start = at % STEP + 100_000
        _, path, byte = find_shard_byte(pool, noise(STEP, at - at % STEP)[start : start + 64])[0]
        flip(path, byte + 11)
    found = scrub(pool)
    check(found["damaged"] > len(flips) / 2, f"{len(flips)} flips, scrub tells {found}")
    check(found["shards_failed"] == 0, f"scrub could not repair: {found}")
    check(scrub(pool)["damaged"] == 0, "a second scrub still finds damage")
    server.stop()
    check(scrub(pool)["damaged"] == 0, "what a scrub repaired is damaged after a restart")

    # Offline, with two shards hit at once, and no read in between that could have noticed.
    probes = [noise(STEP, at)[1000:1064] for at in (0, 16 * MIB)]
    found = [find_shard_byte(pool, probe) for probe in probes]
    # A copy more would be a left-over that the next opening deletes: a flip in it is no damage.
    for places in found:
        check(len(places) == copies, f"before the flips the bytes lie at {places}")
    hit = [places[0] for places in found]
    for _, path, at in hit:
        flip(path, at + 7)
    found = scrub(pool)
    where = [(index, at // SLOT) for index, _, at in hit]
    check(found["damaged"] == 2, f"flips on (node, slot) {where}, scrub tells {found}")
    check(found["shards_failed"] == 0, f"scrub could not repair: {found}")
    for probe in probes:
        mended = find_shard_byte(pool, probe)
        check(len(mended) == copies, f"after the scrub the bytes lie at {len(mended)} places")
    check(scrub(pool)["damaged"] == 0, "a second scrub still finds damage")

    # With other nodes lost, the repaired shards are what is left.
    spare = [n for n in range(pool.count) if n not in {index for index, _, _ in hit}][:2]
    for lost in spare:
        pool.delete_node(lost)
    pool.start_missing_nodes()
    server = pool.serve("v", options=["--no-auto-rebuild"])
    read_all(server.uri("v"))
    server.stop()


main(scenario, COPIES_APART, more=EVERY_CASE)
