#!/usr/bin/python3
"""The exclusive lock of an image passes between our server and librbd, whoever of them dies.

Two clients write to different halves of one image, and each gives the lock up when the other asks:
both go on. Then one is killed with kill -9, or stalled, and the other takes the lock over; the one
that was stalled is shut out. At the end the image holds what was acknowledged, and no block
is torn.

A server that keeps the lock for itself does what Ceph's commands ask it for: snapshots, sizes,
flattening. The lock stays where it is.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, Load, need_ceph, run_steps
from device import BLOCK, connect, error_of, need_libnbd
from ledger import Ledger, read_version
from scenario import main
from world import MIB, Case, Process, check, wait_until

PEER = pathlib.Path(__file__).resolve().parent / "lib" / "librbd_peer.py"
SIZE_MIB = 16
BLOCKS = SIZE_MIB * MIB // BLOCK
HALF = BLOCKS // 2
PEER_SEED = 77
# The lock is taken from a dead owner when its watch has timed out, and it was blocked.
TAKEOVER_SECONDS = 80


class Peer(Process):
    """librbd in a process of its own, which writes to the second half of the image."""

    def __init__(self, cluster, image):
        words = [cluster.conf, image, HALF, BLOCKS - HALF, PEER_SEED]
        super().__init__(cluster.world, "librbd", ["/usr/bin/python3", PEER, *words])
        self.wait_for_output("opened")

    def writes(self):
        return self.output().count("done ")

    def wait_for_writes(self, count, seconds=60):
        wanted = self.writes() + count

        def look():
            check(self.is_running(), f"librbd ended:\n{self.errors()}")
            return self.writes() >= wanted

        wait_until(f"librbd has done {count} more writes", look, seconds, 0.05)

    def check(self, data):
        """Blocks hold the last version that was acknowledged, or the one that was under way."""
        begun, done = {}, {}
        for line in self.output().splitlines():
            word, *numbers = line.split()
            if len(numbers) == 2:
                number, version = map(int, numbers)
                (begun if word == "begin" else done)[number] = version
        for number in range(HALF, BLOCKS):
            block = data[number * BLOCK : (number + 1) * BLOCK]
            version = read_version(block, number, PEER_SEED)
            least, most = done.get(number, 0), begun.get(number, 0)
            check(
                least <= version <= most,
                f"block {number} of librbd holds version {version}, not {least} to {most}",
            )


def check_all(cluster, image, ledger, peers, uri):
    """What both wrote is there, through both."""
    ledger.verify(uri)
    data = cluster.export(image)
    for number in range(HALF):
        version = read_version(data[number * BLOCK : (number + 1) * BLOCK], number, ledger.seed)
        last = ledger.acknowledged[number]
        check(
            version == last or (version == 0 and last in ledger.zeroed),
            f"rbd export: block {number} has version {version} instead of {last}",
        )
    for peer in peers:
        peer.check(data)


def contention(world, cluster):
    """Both write at the same time, for a while."""
    image = "rep/shared"
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", "--object-size", "1M")
    server = cluster.serve(image)
    ledger = Ledger(HALF, seed=1)
    load = Load(ledger, server.uri("shared"), depth=4)
    load.wait_for_writes(50)
    peer = Peer(cluster, image)
    for _ in range(5):
        peer.wait_for_writes(3)
        load.wait_for_writes(3)
    load.finish()
    peer.stop()
    check_all(cluster, image, ledger, [peer], server.uri("shared"))
    cluster.check_object_map(image)
    # Readers need no lock: one of us reads while librbd owns it.
    peer = Peer(cluster, image)
    peer.wait_for_writes(5)
    handle = connect(server.uri("shared"))
    handle.pread(MIB, 0)
    handle.shutdown()
    peer.stop()
    server.stop()
    lockers = cluster.rbd("lock", "ls", image).stdout
    check(lockers.strip() == "", f"a server that has ended keeps the lock: {lockers}")


def our_server_dies(world, cluster):
    """kill -9 of our server, which owns the lock: librbd takes over, then a new server."""
    image = "rep/ours"
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", "--object-size", "1M")
    server = cluster.serve(image)
    ledger = Ledger(HALF, seed=2)
    load = Load(ledger, server.uri("ours"), depth=8)
    load.wait_for_writes(100)
    server.kill()
    check(load.finish(), "the client did not see that the server died")
    peer = Peer(cluster, image)
    peer.wait_for_writes(20, TAKEOVER_SECONDS)
    server = cluster.serve(image, name="second")
    ledger.verify(server.uri("ours"))
    load = Load(ledger, server.uri("ours"), depth=8)
    load.wait_for_writes(20)
    load.finish()
    peer.stop()
    check_all(cluster, image, ledger, [peer], server.uri("ours"))
    server.stop()
    cluster.check_object_map(image)


def librbd_dies(world, cluster):
    """kill -9 of librbd, which owns the lock: our server takes over."""
    image = "rep/theirs"
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", "--object-size", "1M")
    server = cluster.serve(image)
    peer = Peer(cluster, image)
    peer.wait_for_writes(20)
    peer.kill()
    ledger = Ledger(HALF, seed=3)
    load = Load(ledger, server.uri("theirs"), depth=8, late=TAKEOVER_SECONDS)
    load.wait_for_writes(20, TAKEOVER_SECONDS)
    load.finish()
    check(cluster.command("osd dump")["blocklist"], "the dead owner was not blocked")
    check_all(cluster, image, ledger, [peer], server.uri("theirs"))
    server.stop()
    cluster.check_object_map(image)


def stalled_owner(world, cluster):
    """A server that stalls while it owns the lock is shut out: nothing of it arrives later."""
    image = "rep/stalled"
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", "--object-size", "1M")
    first = cluster.serve(image, name="first")
    ledger = Ledger(HALF, seed=4)
    handle = connect(first.uri("stalled"))
    handle.pwrite(b"1" * BLOCK, (BLOCKS - 2) * BLOCK)
    first.pause()
    # A write reaches its socket, and waits there.
    cookie = handle.aio_pwrite(bytearray(b"2" * BLOCK), (BLOCKS - 1) * BLOCK)
    handle.poll(100)
    second = cluster.serve(image, name="second")
    load = Load(ledger, second.uri("stalled"), depth=8, late=TAKEOVER_SECONDS)
    load.wait_for_writes(20, TAKEOVER_SECONDS)
    load.finish()
    first.go_on()
    wait_until("the late write is answered", lambda: answered(handle, cookie), 60)
    # An OSD that has not yet heard that the owner is blocked may have done this write, before the
    # new owner touched the object. Then it is there; later ones must fail.
    late = answered(handle, cookie)
    wait_until(
        "a server that was shut out fails",
        lambda: error_of(handle.pwrite, b"2" * BLOCK, (BLOCKS - 1) * BLOCK) is not None, 30,
    )
    fresh = connect(second.uri("stalled"))
    there = fresh.pread(BLOCK, (BLOCKS - 1) * BLOCK)
    check(there in (b"2" * BLOCK, bytes(BLOCK)), "nobody has written what is there")
    check(late == "error" or there == b"2" * BLOCK, "a write that was acknowledged is lost")
    fresh.pwrite(b"4" * BLOCK, (BLOCKS - 1) * BLOCK)
    error_of(handle.pwrite, b"3" * BLOCK, (BLOCKS - 1) * BLOCK)
    check(fresh.pread(BLOCK, (BLOCKS - 1) * BLOCK) == b"4" * BLOCK, "a late write has arrived")
    fresh.shutdown()
    ledger.verify(second.uri("stalled"))
    second.stop()
    if first.is_running():
        first.stop()
    check("block" in first.errors(), f"the first server does not say why:\n{first.errors()}")
    cluster.check_object_map(image)


def answered(handle, cookie, outcomes={}):
    """How a request has ended: "done", "error", or None."""
    if cookie not in outcomes:
        if error_of(handle.poll, 100) is not None:
            outcomes[cookie] = "error"
            return "error"
        outcome = []
        error = error_of(lambda: outcome.append(handle.aio_command_completed(cookie)))
        if error is not None:
            outcomes[cookie] = "error"
        elif outcome[0]:
            outcomes[cookie] = "done"
    return outcomes.get(cookie)


def asked_owner(world, cluster):
    """Commands of Ceph ask our server, which keeps the lock for itself, to change the image."""
    parent, image = "rep/parent", "rep/asked"
    cluster.rbd("create", parent, "--size", f"{SIZE_MIB}M", "--object-size", "1M")
    cluster.rbd("bench", "--io-type", "write", "--io-total", f"{SIZE_MIB}M", parent)
    cluster.rbd("snap", "create", "--no-progress", f"{parent}@base")
    cluster.rbd("clone", "--rbd-default-clone-format", "2", f"{parent}@base", image)
    server = cluster.serve(f"{image}:exclusive", name="asked")
    ledger = Ledger(HALF, seed=5, at_first=cluster.export(f"{parent}@base")[: HALF * BLOCK])
    load = Load(ledger, server.uri("asked"), depth=4)
    load.wait_for_writes(50)
    owner = cluster.rbd("lock", "ls", image).stdout

    def ask(*words):
        """Ceph's command succeeds, the server goes on, and the lock has not moved."""
        cluster.rbd(*words)
        load.wait_for_writes(3)
        check(cluster.rbd("lock", "ls", image).stdout == owner, f"{words}: the lock has moved")

    def snapshots():
        found = json.loads(cluster.rbd("snap", "ls", "--format", "json", image).stdout)
        return {snap["name"]: snap["protected"] for snap in found}

    ask("snap", "create", "--no-progress", f"{image}@one")
    first = cluster.export(f"{image}@one")
    ask("snap", "protect", f"{image}@one")
    ask("snap", "rename", f"{image}@one", f"{image}@two")
    check(snapshots() == {"two": "true"}, f"snapshots: {snapshots()}")
    ask("resize", "--no-progress", "--size", f"{2 * SIZE_MIB}M", image)
    ask("resize", "--no-progress", "--size", f"{SIZE_MIB}M", "--allow-shrink", image)
    result = cluster.rbd("resize", "--no-progress", "--size", "1M", image, ok=None)
    check(result.returncode != 0, "an image shrinks although that was not allowed")
    ask("flatten", "--no-progress", image)
    info = json.loads(cluster.rbd("info", "--format", "json", image).stdout)
    check("parent" not in info, f"the clone is not flat: {info}")
    check(cluster.export(f"{image}@two") == first, "a snapshot has changed")
    for name in ("three", "four"):
        ask("snap", "create", "--no-progress", f"{image}@{name}")
    ask("snap", "unprotect", f"{image}@two")
    ask("snap", "rm", "--no-progress", f"{image}@two")
    check(snapshots() == {"three": "false", "four": "false"}, f"snapshots: {snapshots()}")
    # What the owner does not do for others is refused, because it keeps the lock.
    result = cluster.rbd("snap", "rollback", "--no-progress", f"{image}@three", ok=None)
    check(result.returncode != 0, "a snapshot is rolled back under an owner that keeps the lock")
    load.finish()
    ledger.verify(server.uri("asked"))
    server.stop()
    for name in (image, f"{image}@three", f"{image}@four"):
        cluster.check_object_map(name)


def scenario(world):
    need_ceph()
    need_libnbd()
    # A dead owner is found when its watch has timed out, by default after 30 s.
    cluster = Cluster(world, osds=3, more=["osd_client_watch_timeout = 15"])
    cluster.make_pool("rep")
    run_steps(
        (contention, world, cluster),
        (our_server_dies, world, cluster),
        (librbd_dies, world, cluster),
        (stalled_owner, world, cluster),
        (asked_owner, world, cluster),
    )


main(scenario, [Case("ceph", "memstore")], waits=True)
