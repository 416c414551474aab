#!/usr/bin/python3
"""Images of a Ceph cluster, used by us and by librbd in turn and together: all read the same bytes.

On images with and without exclusive lock and object map, in replicated and erasure-coded pools:
random writes, trims and zeroes through NBD against a model, then `rbd export` and `rbd object-map
check`; writes of librbd, read by us; snapshots that librbd makes, and a resize, while we serve;
clones, also while librbd flattens them.

    tests/ceph_images.py --case long,memstore     # more pools and layouts
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, Load, need_ceph, run_steps
from device import BLOCK, connect, need_libnbd, noise
from ledger import Ledger, read_version
from model import Model, read_all
from scenario import main
from world import MIB, Case, Failure, check, refused, wait_until

LAYERING = ["--image-feature", "layering"]
SIZE_MIB = 24
SECTOR = 512

QUICK = [
    ("rep/layering", LAYERING),
    ("rep/default", ["--object-size", "1M"]),
    ("rep/coded", ["--data-pool", "jerasure", "--object-size", "1M"]),
]
LONG = [
    *QUICK,
    ("rep/small", ["--object-size", "64K"]),
    ("rep/striped", ["--object-size", "1M", "--stripe-unit", "64K", "--stripe-count", "4"]),
    ("rep/isa", ["--data-pool", "isa"]),
    ("rep/clay", ["--data-pool", "clay"]),
    ("rep/clay-layering", ["--data-pool", "clay", *LAYERING]),
]


def requests(cluster, image, options, count):
    """Random requests through NBD leave exactly what librbd then reads, and the reverse."""
    world = cluster.world
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", *options)
    name = image.split("/")[1]
    server = cluster.serve(image)
    model = Model(SIZE_MIB * MIB, seed=name)
    model.work(server.uri(name), count)
    server.stop()
    same(model.data, cluster.export(image), f"{image}: rbd export")
    check_map(cluster, image, options)

    # librbd writes, and the image is opened again.
    source = world.file("source")
    data = noise(5 * MIB, 3) + bytes(3 * MIB) + noise(MIB + 12 * SECTOR, 4)
    source.write_bytes(data)
    cluster.rbd("rm", "--no-progress", image)
    cluster.rbd("import", "--no-progress", *options, source, image)
    server = cluster.serve(image)
    handle = connect(server.uri(name))
    check(handle.get_size() == len(data), f"{image}: a size of {handle.get_size()}")
    same(data, read_all(handle), f"{image}: what rbd import wrote")
    # rbd bench writes while we have the image open; its end is that of its writes.
    load = ["--io-type", "write", "--io-pattern", "rand", "--io-size", "64K", "--io-total", "4M"]
    cluster.rbd("bench", *load, image)
    ours = read_all(handle)
    check(ours != data, f"{image}: the writes of rbd bench are not seen")
    same(cluster.export(image), ours, f"{image}: what rbd bench wrote")
    handle.shutdown()
    server.stop()
    check_map(cluster, image, options)


def same(expected, found, what):
    """Fails with the place of the first difference."""
    if expected == found:
        return
    check(len(expected) == len(found), f"{what}: {len(found)} bytes instead of {len(expected)}")
    at = next(at for at in range(len(expected)) if expected[at] != found[at])
    count = sum(a != b for a, b in zip(expected, found))
    raise Failure(
        f"{what}: {count} bytes differ, first at {at} (object of 1 MiB: {at >> 20}): "
        f"{found[at : at + 16].hex()} instead of {expected[at : at + 16].hex()}"
    )


def check_map(cluster, image, options):
    if "layering" not in options:
        cluster.check_object_map(image)


def snapshots(cluster, image, options):
    """Snapshots that the real tool makes and removes while we write."""
    image, size = f"{image}-snap", SIZE_MIB * MIB
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", *options)
    name = image.split("/")[1]
    server = cluster.serve(image)
    ledger = Ledger(size // BLOCK, seed=5)
    load = Load(ledger, server.uri(name), depth=8)
    taken = []
    for number in range(3):
        load.wait_for_writes(100)
        floor, zeroed = list(ledger.acknowledged), ledger.next_version
        cluster.rbd("snap", "create", "--no-progress", f"{image}@s{number}")
        taken.append((number, floor, zeroed, ledger.next_version))
    load.wait_for_writes(200)
    load.finish()
    ledger.verify(server.uri(name))
    kept = {}
    for number, floor, _, ceiling in taken:
        kept[number] = cluster.export(f"{image}@s{number}")
        check_snapshot(ledger, kept[number], floor, ceiling, f"{image}@s{number}")
        # And we read it as librbd does.
        reader = cluster.serve(f"{image}@s{number}", name="snapshot")
        handle = connect(reader.uri())
        check(handle.is_read_only(), "a snapshot is writable")
        same(kept[number], read_all(handle), f"{image}@s{number} through us")
        handle.shutdown()
        reader.stop()
    # One is removed under load; the others stay.
    load = Load(ledger, server.uri(name), depth=8)
    load.wait_for_writes(50)
    cluster.rbd("snap", "rm", "--no-progress", f"{image}@s1")
    load.wait_for_writes(100)
    load.finish()
    ledger.verify(server.uri(name))
    for number in (0, 2):
        same(kept[number], cluster.export(f"{image}@s{number}"), f"{image}@s{number} later")
    server.stop()
    check_map(cluster, image, options)
    cluster.rbd("snap", "purge", "--no-progress", image)


def check_snapshot(ledger, data, floor, ceiling, what):
    """A snapshot has what was acknowledged before it, and nothing that was sent after it."""
    for number in range(ledger.blocks):
        version = read_version(data[number * BLOCK : (number + 1) * BLOCK], number, ledger.seed)
        if version:
            fits = floor[number] <= version < ceiling
        else:
            # Zeroes: a zeroing that was not sent later, or nothing was ever written.
            fits = floor[number] in ledger.zeroed or any(
                floor[number] <= zero < ceiling for zero in ledger.zeroed
            )
        check(
            fits,
            f"{what}: block {number} has version {version}; "
            f"{floor[number]} was acknowledged before, {ceiling} not yet sent after",
        )


def clones(cluster, image, options):
    """A clone shows its parent where nothing was written, also while librbd flattens it."""
    world, image = cluster.world, f"{image}-clone"
    parent, size = f"{image}-parent", SIZE_MIB * MIB
    source = world.file("source")
    # The parent has holes, and the clone is larger than the parent.
    content = noise(7 * MIB, 1) + bytes(4 * MIB) + noise(5 * MIB + SECTOR, 2)
    source.write_bytes(content)
    cluster.rbd("import", "--no-progress", *options, source, parent)
    cluster.rbd("snap", "create", "--no-progress", f"{parent}@base")
    cluster.rbd("snap", "protect", f"{parent}@base")
    name = image.split("/")[1]
    for flatten in (False, True):
        cluster.rbd("clone", f"{parent}@base", image, *options)
        cluster.rbd("resize", "--no-progress", "--size", f"{SIZE_MIB}M", image)
        server = cluster.serve(image)
        model = Model(size, seed=f"{name}{flatten}")
        model.data[: len(content)] = content
        handle = connect(server.uri(name))
        same(bytes(model.data), read_all(handle), f"{image}: the parent's bytes")
        handle.shutdown()
        model.work(server.uri(name), 40)
        if flatten:
            flattening = subprocess.Popen(
                ["rbd", "flatten", "--no-progress", image], env=cluster.environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True,
            )
            turns = 0
            while flattening.poll() is None and turns < 500:
                model.work(server.uri(name), 10)
                turns += 1
            _, errors = flattening.communicate(timeout=60)
            check(flattening.returncode == 0, f"rbd flatten: {errors}")
            model.work(server.uri(name), 40)
        server.stop()
        same(bytes(model.data), cluster.export(image), f"{image} (flattened: {flatten})")
        check_map(cluster, image, options)
        same(content, cluster.export(f"{parent}@base"), f"{parent} after writes to its clone")
        children = cluster.rbd("children", f"{parent}@base").stdout.split()
        check(children == ([] if flatten else [image]), f"children are {children}")
        # A snapshot of a clone keeps the parent's bytes that are copied up later.
        if not flatten:
            cluster.rbd("snap", "create", "--no-progress", f"{image}@mid")
            before = bytes(model.data)
            server = cluster.serve(image)
            model.work(server.uri(name), 60)
            server.stop()
            same(bytes(model.data), cluster.export(image), f"{image} behind a snapshot")
            same(before, cluster.export(f"{image}@mid"), f"{image}@mid, copied up later")
            check_map(cluster, image, options)
            cluster.rbd("snap", "purge", "--no-progress", image)
        cluster.rbd("rm", "--no-progress", image)
    cluster.rbd("snap", "unprotect", f"{parent}@base")
    refused(
        "serve", f"ceph:{parent}@gone:conf={cluster.conf}", "--nbd", f"unix:{world.file('x.sock')}",
        says=["gone"],
    )


def resize(cluster, image, options):
    """Who connects after `rbd resize` sees the new size, and can use it."""
    image, size = f"{image}-size", SIZE_MIB * MIB
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", *options)
    server = cluster.serve(image)
    handle = connect(server.uri())
    handle.pwrite(noise(MIB, 8), 6 * MIB)
    cluster.rbd("resize", "--no-progress", "--size", f"{SIZE_MIB + 8}M", image)
    check(handle.pread(MIB, 6 * MIB) == noise(MIB, 8), "data after a resize")
    handle.shutdown()

    def grown():
        handle = connect(server.uri())
        found = handle.get_size()
        handle.shutdown()
        return found == size + 8 * MIB

    wait_until("a client sees the new size", grown, 20)
    handle = connect(server.uri())
    handle.pwrite(noise(MIB, 9), size + 6 * MIB)
    check(handle.pread(MIB, size + 6 * MIB) == noise(MIB, 9), "the new space is not usable")
    handle.shutdown()
    server.stop()
    data = cluster.export(image)
    check(data[size + 6 * MIB : size + 7 * MIB] == noise(MIB, 9), "the new space lacks data")
    check_map(cluster, image, options)


def scenario(world):
    need_ceph()
    need_libnbd()
    long = world.case.code == "long"
    cluster = Cluster(world)
    cluster.make_pool("rep")
    for code in ("jerasure", "isa", "clay") if long else ("jerasure",):
        cluster.make_pool(code, code, 8)
    count = 600 if long else 120
    steps = [(requests, cluster, *image, count) for image in (LONG if long else QUICK)]
    steps += [(snapshots, cluster, *image) for image in (QUICK if long else QUICK[1:2])]
    steps += [(clones, cluster, *image) for image in (LONG if long else QUICK[1:])]
    run_steps(*steps, (resize, cluster, *QUICK[1]))


main(scenario, [Case("ceph", "memstore")], long=[Case("long", "memstore")])
