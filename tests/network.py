#!/usr/bin/python3
"""Nodes on machines of their own, in network namespaces: how many bytes the client sends under each
way of replication, how long writes take, and faults in the middle of writes. A cable is pulled,
nodes no longer hear each other, a cable is slow, a node's process is killed or stopped. Nothing is
lost, and no write waits for ever.

    tests/network.py                               # ring, copies:3
    tests/network.py --case primary,long
    tests/network.py --case deep,long              # copies:5, a tree of two levels
    tests/network.py --case stream,long            # rs:4+2, nodes make the parity
    tests/network.py --case zigzag,long            # the same with zigzag:4+2
    make test-net                                  # all ways
"""

import collections
import json
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from cluster import SIZE, Cluster
from kill_nodes import load
from ledger import BLOCK, Ledger
from scenario import main
from world import MIB, Case, check, need, run, wait_until

WRITE_KIB = (64, 256, 1024)
# The bytes that the client sends for each byte of users with writes of these sizes
# (docs/policies.md).
SENT = {
    "flat": (3.42, 3.28, 3.25),
    "ring": (1.28, 1.23, 1.22),
    "tree": (1.28, 1.23, 1.22),
    "primary": (1.28, 1.23, 1.22),
    "deep": (1.42, 1.37, 1.36),
    "stream": (4.25, 1.23, 1.09),
    "zigzag": (4.23, 1.14, 1.09),
    "client": (4.71, 1.70, 1.59),
}


# Every cable moves so many bits in a second.
SLOW_BITS_PER_SECOND = 1e9


def measure(cluster, kib, seconds):
    """Sequential writes, one after the other: CPU, and bytes of the client's machine. Returns the
    mean latency, and the bytes that the client sends for each byte of users."""
    before = cluster.status()["user_written_bytes"]
    cpu, sent = cluster.cpu_seconds(), cluster.network.sent_bytes("client")
    result = run(
        "fio", "--name=w", "--ioengine=nbd", f"--uri={cluster.uri}", "--rw=write", f"--bs={kib}k",
        "--iodepth=1", "--time_based", f"--runtime={seconds}", f"--size={SIZE}",
        "--output-format=json",
    )
    # fio may say something first.
    job = json.loads(result.stdout[result.stdout.index("{"):])["jobs"][0]
    written = cluster.status()["user_written_bytes"] - before
    server, *nodes = (after - old for after, old in zip(cluster.cpu_seconds(), cpu))
    ratio = (cluster.network.sent_bytes("client") - sent) / written
    seconds_of_one = job["write"]["lat_ns"]["mean"] / 1e9
    per_mib = [1e3 * seconds / (written / MIB) for seconds in (server, sum(nodes))]
    print(
        f"{cluster.way}, writes of {kib} KiB: {seconds_of_one * 1e3:.2f} ms; the "
        f"client sends {ratio:.2f} bytes per byte; CPU per MiB: server {per_mib[0]:.2f} ms, nodes "
        f"{per_mib[1]:.2f} ms",
        flush=True,
    )
    return seconds_of_one, ratio


def measure_slow(cluster):
    """The same on cables that are slow for the CPUs of the nodes. A ring that passed on whole
    writes would need the time of three cables, one after the other."""
    machines = ["client", *map(cluster.machine, range(cluster.count))]
    for machine in machines:
        cluster.network.slow(machine, f"{SLOW_BITS_PER_SECOND:.0f}bit")
    print("every cable at 1 Gbit/s:", flush=True)
    for kib in (256, 1024):
        seconds, _ = measure(cluster, kib, 4)
    for machine in machines:
        cluster.network.fast(machine)
    if cluster.way == "ring":
        whole = 3 * MIB * 8 / SLOW_BITS_PER_SECOND
        check(seconds < 0.85 * whole, f"a write takes {seconds} s, as if it went whole: {whole} s")


def unplug(cluster, rng):
    """A node's cable is pulled, and plugged in again."""
    machine = cluster.machine(rng.choice(cluster.status()["journal_nodes"]))
    cluster.network.unplug(machine)
    yield f"the cable of {machine} is pulled"
    cluster.network.plug(machine)


def deafen(cluster, _rng):
    """No node hears another one. The server hears all, and all hear the server."""
    machines = [cluster.machine(index) for index in range(cluster.count)]
    pairs = [(deaf, speaker) for deaf in machines for speaker in machines if deaf != speaker]
    for deaf, speaker in pairs:
        cluster.network.deafen(deaf, speaker)
    yield "no node hears another one"
    for deaf, speaker in pairs:
        cluster.network.hear(deaf, speaker)


def slow(cluster, rng):
    """A node's cable is slow."""
    machine = cluster.machine(rng.choice(cluster.status()["journal_nodes"]))
    cluster.network.slow(machine, "4mbit")
    yield f"the cable of {machine} is slow"
    cluster.network.fast(machine)


def client_is_cut_off(cluster, _rng):
    """The client's own cable is pulled for a moment: its writes wait, and none fails."""
    cluster.network.unplug("client")
    yield "the client's cable is pulled"
    cluster.network.plug("client")


def passing(cluster, rng):
    """A node of the journal that passes writes on. In a tree of two levels it is the inner node."""
    journal = cluster.status()["journal_nodes"]
    return journal[1] if cluster.way in ("ring", "deep") else rng.choice(journal)


def kill_node(cluster, rng):
    """kill -9 of a node's process. It starts again."""
    node = passing(cluster, rng)
    cluster.nodes[node].kill()
    yield f"{cluster.machine(node)} is dead"
    cluster.nodes[node] = cluster.start_node(node)


def stop_node(cluster, rng):
    """A node's process is stopped: its machine answers for it, and nothing reads what comes."""
    node = passing(cluster, rng)
    cluster.nodes[node].pause()
    yield f"{cluster.machine(node)} is stopped"
    cluster.nodes[node].go_on()


# The server waits for a node that is silent, and then goes on without it: some seconds.
SHORT_SECONDS, LONG_SECONDS = 3, 12
# How long writes go on after the fault: as long as a node's connection may still be silent.
AFTER_SECONDS = collections.defaultdict(lambda: 8, {kill_node: 3, stop_node: 3})
QUICK = [(unplug, SHORT_SECONDS), (deafen, LONG_SECONDS), (slow, SHORT_SECONDS)]
QUICK += [(kill_node, SHORT_SECONDS), (stop_node, SHORT_SECONDS)]
FAULTS = (unplug, deafen, slow, kill_node, stop_node)
LONG = [(fault, seconds) for fault in FAULTS for seconds in (SHORT_SECONDS, LONG_SECONDS)]
LONG.append((client_is_cut_off, SHORT_SECONDS))


def suffer(cluster, ledger, fault, rng, seconds):
    """The fault comes in the middle of writes, and goes in the middle of writes."""
    finish = load(ledger, cluster.uri, seconds + AFTER_SECONDS[fault])
    time.sleep(rng.uniform(0.3, 1.0))
    before = sent_again(cluster.status())
    steps = fault(cluster, rng)
    what = next(steps)
    begun = ledger.writes
    time.sleep(seconds)
    ended = ledger.writes
    next(steps, None)
    finish()
    during, after = ended - begun, ledger.writes - ended
    print(f"{what} for {seconds} s: {during} writes meanwhile, {after} afterwards", flush=True)
    waits = fault is client_is_cut_off or seconds < LONG_SECONDS
    check(during > 0 or waits, f"no write was answered while {what}")
    check(after > 0, f"no write was answered after {what}")
    if fault is deafen and cluster.passes_on and seconds == LONG_SECONDS:
        again = sent_again(cluster.status()) - before
        check(again > 0, f"the server sent nothing once more although {what}")
    cluster.wait_until_whole()
    ledger.verify(cluster.uri)


def passed_on(status):
    return status["appends_relayed"] + status["parities_streamed"]


def sent_again(status):
    """What the server sent, or coded, in the place of a node that did not pass it on."""
    return status["appends_sent_again"] + status["parities_coded_again"]


def scenario(world):
    need("fio")
    way = world.case.code
    is_long = world.case.nodes == "long"
    rng = random.Random(way)
    cluster = Cluster(world, way)
    ledger = Ledger(SIZE // BLOCK, rng.randrange(1 << 30))
    for kib, wanted in list(zip(WRITE_KIB, SENT[way]))[:: 1 if is_long else 2]:
        _, ratio = measure(cluster, kib, 4 if is_long else 2)
        is_near = wanted / 1.15 < ratio < wanted * 1.15
        check(is_near, f"the client sends {ratio:.2f} bytes for each byte of users, not {wanted}")
    if is_long:
        measure_slow(cluster)
    # What fio wrote is not the ledger's.
    run("nbdsh", "-u", cluster.uri, "-c", f"h.zero({SIZE}, 0)")
    for fault, seconds in LONG if is_long else QUICK:
        suffer(cluster, ledger, fault, rng, seconds)
    if cluster.passes_on:
        before = passed_on(cluster.status())

        def again():
            load(ledger, cluster.uri, 1)()
            return passed_on(cluster.status()) > before

        wait_until("nodes pass writes on again", again, seconds=90)
    cluster.stop()


if __name__ == "__main__":
    main(
        scenario,
        [Case("ring", "processes")],
        waits=True,
        long=[Case(way, "long") for way in SENT],
    )
