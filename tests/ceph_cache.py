#!/usr/bin/python3
"""Caches in front of an image, and librbd on the other side.

A server with `cache=writeback` keeps what clients have written, and a reader of the cluster shows
it. When librbd wants the lock, or makes a snapshot, everything that was answered is in the cluster
first; and what librbd has written since is what our clients read, cached or not. kill -9 loses
nothing that a flush has covered. An image without the exclusive lock is not cached.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, Load, need_ceph, run_steps
from device import BLOCK, connect, need_libnbd, noise
from ledger import Ledger, Mix
from scenario import main
from world import MIB, Case, check, wait_until

SIZE_MIB = 16
BLOCKS = SIZE_MIB * MIB // BLOCK
# The lock is taken from a dead owner when its watch has timed out, and it was blocked.
TAKEOVER_SECONDS = 80
# Nothing leaves the cache by age.
OLD = ["--layer", "write-cache:max-age=600s"]
FLUSHING = Mix(flush=0.05, read=0.2, trim=0.04, zero=0.04, fua=0.05)


def make(cluster, image, *options):
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", "--object-size", "1M", *options)


def in_cluster(cluster, image, offset, length):
    """What a client of Ceph without the lock reads now."""
    import rbd

    pool, name = image.split("/")
    with cluster.handle.open_ioctx(pool) as io, rbd.Image(io, name, read_only=True) as opened:
        return opened.read(offset, length)


def write_with_librbd(cluster, image, offset, data):
    """librbd takes the lock, writes, and keeps the lock until it closes the image."""
    import rbd

    pool, name = image.split("/")
    with cluster.handle.open_ioctx(pool) as io, rbd.Image(io, name) as opened:
        opened.write(data, offset)
        opened.flush()
        return opened.read(0, SIZE_MIB * MIB)


def handover(world, cluster):
    """What was answered is there for librbd, and what it writes is there for us."""
    image = "rep/handed"
    make(cluster, image)
    server = cluster.serve(f"{image}:cache=writeback", options=OLD)
    handle = connect(server.uri("handed"))
    handle.flush()
    handle.pwrite(noise(BLOCK, 1), 0)  # takes the lock
    for round_ in range(3):
        data = noise(64 * BLOCK, 10 + round_)
        for at in range(0, len(data), BLOCK):
            handle.pwrite(data[at : at + BLOCK], MIB + at)
        check(handle.pread(len(data), MIB) == data, "a client does not read what it wrote")
        there = in_cluster(cluster, image, MIB, len(data))
        check(there != data, "nothing was kept: the test tests nothing")
        handle.pread(8 * BLOCK, 8 * MIB)  # these are in the read cache now
        theirs = noise(8 * BLOCK, 20 + round_)
        seen = write_with_librbd(cluster, image, 8 * MIB, theirs)
        check(seen[MIB : MIB + len(data)] == data, f"librbd does not see all, round {round_}")
        check(handle.pread(8 * BLOCK, 8 * MIB) == theirs, "a read is older than librbd's write")
        handle.pwrite(noise(BLOCK, 30 + round_), 12 * MIB)  # takes the lock back
    handle.pwrite(noise(BLOCK, 40), 13 * MIB)
    handle.shutdown()
    server.stop()
    check(cluster.export(image)[13 * MIB :][:BLOCK] == noise(BLOCK, 40), "the end loses a write")
    cluster.check_object_map(image)


def snapshots(world, cluster):
    """A snapshot that Ceph's tool makes has every answered write, flushed or not."""
    image = "rep/snapped"
    make(cluster, image)
    server = cluster.serve(f"{image}:cache=writeback", options=OLD)
    handle = connect(server.uri("snapped"))
    handle.flush()
    expected = bytearray(SIZE_MIB * MIB)
    for round_ in range(3):
        for block in range(0, 400, 7):
            data = noise(BLOCK, 1000 * round_ + block)
            handle.pwrite(data, block * BLOCK)
            expected[block * BLOCK : (block + 1) * BLOCK] = data
        cluster.rbd("snap", "create", "--no-progress", f"{image}@s{round_}")
        check(cluster.export(f"{image}@s{round_}") == expected, f"snapshot {round_} lacks writes")
    handle.shutdown()
    server.stop()
    cluster.check_object_map(image)


def contention(world, cluster, mode):
    """Under load, while librbd takes the lock again and again."""
    image = f"rep/load-{mode}"
    make(cluster, image)
    server = cluster.serve(f"{image}:cache={mode}")
    ledger = Ledger(BLOCKS // 2, seed=5)
    load = Load(ledger, server.uri(f"load-{mode}"), depth=8, mix=FLUSHING)
    load.wait_for_writes(100)
    for round_ in range(4):
        write_with_librbd(cluster, image, 12 * MIB, noise(BLOCK, round_))
        load.wait_for_writes(30)
    load.finish()
    ledger.verify(server.uri(f"load-{mode}"))
    check(ledger.reads > 20, "the load did not read")
    server.stop()
    cluster.check_object_map(image)


def killed(world, cluster, mode):
    """kill -9 is to the clients what a loss of power is: what was flushed is there."""
    image = f"rep/killed-{mode}"
    make(cluster, image)
    server = cluster.serve(f"{image}:cache={mode}")
    ledger = Ledger(BLOCKS // 2, seed=6)
    load = Load(ledger, server.uri(f"killed-{mode}"), depth=16, mix=FLUSHING)
    load.wait_for_writes(400)
    server.kill()
    check(load.finish(), "the client did not see that the server died")
    ledger.power_failed()
    server = cluster.serve(image, name="second")
    # With the lock, nothing of the dead server arrives any more.
    handle = connect(server.uri(f"killed-{mode}"), seconds=TAKEOVER_SECONDS)
    handle.pwrite(noise(BLOCK, 1), (BLOCKS - 1) * BLOCK)
    handle.shutdown()
    ledger.verify(server.uri(f"killed-{mode}"))
    server.stop()
    cluster.check_object_map(image)


def ceph_conf(world, cluster):
    """The mode and the numbers of ceph.conf; without the lock nothing is kept."""
    conf = cluster.conf_with(
        "cache.conf", "rbd_cache_policy = writeback", "rbd_cache_max_dirty_age = 600",
        "rbd_cache_writethrough_until_flush = false",
    )
    data = noise(BLOCK, 1)
    for image, options, keeps in [
        ("rep/locked", [], True),
        ("rep/shared", ["--image-shared"], False),
    ]:
        make(cluster, image, *options)
        server = cluster.serve(image, conf=conf)
        handle = connect(server.uri(image.split("/")[1]))
        handle.pwrite(data, 0)  # takes the lock, if there is one
        handle.pwrite(data, MIB)
        there = in_cluster(cluster, image, MIB, BLOCK) == data
        check(there != keeps, f"{image}: the write is {'' if there else 'not '}in the cluster")
        handle.flush()
        check(in_cluster(cluster, image, MIB, BLOCK) == data, f"{image}: a flush does nothing")
        handle.shutdown()
        server.stop()
        if not keeps:
            check("exclusive-lock" in server.errors(), f"the log is silent: {server.errors()}")
    # An old write leaves by itself.
    server = cluster.serve("rep/locked:cache=writeback")
    handle = connect(server.uri("locked"))
    handle.flush()
    handle.pwrite(noise(BLOCK, 2), 0)
    handle.pwrite(noise(BLOCK, 2), MIB)
    wait_until(
        "an old write is in the cluster",
        lambda: in_cluster(cluster, "rep/locked", MIB, BLOCK) == noise(BLOCK, 2), 20, 0.2,
    )
    handle.shutdown()
    server.stop()


def scenario(world):
    need_ceph()
    need_libnbd()
    # A dead owner is found when its watch has timed out, by default after 30 s.
    cluster = Cluster(world, osds=3, more=["osd_client_watch_timeout = 15"])
    cluster.make_pool("rep")
    run_steps(
        (handover, world, cluster),
        (snapshots, world, cluster),
        (contention, world, cluster, "writeback"),
        (contention, world, cluster, "writearound"),
        (killed, world, cluster, "writeback"),
        (killed, world, cluster, "writearound"),
        (ceph_conf, world, cluster),
    )


main(scenario, [Case("ceph", "memstore")], waits=True)
