#!/usr/bin/python3
"""A Ceph cluster fails in many ways under verified load, and no client of our server sees an error.

One server serves an image with data in a replicated pool and one in an erasure-coded pool; clients
of both write, trim, zero, flush and read all the time. One fault after another: OSDs are killed and
come back, stalled, marked out, marked down though they live; the monitor and the manager restart;
the cluster pauses; a pool is full, and is not any more; placement groups are split; weights change.
No request fails, none waits longer than a bound, nothing that was acknowledged is lost, as we and
`rbd export` read it.

    tests/ceph_faults.py --case long,bluestore     # all faults, some rounds; OSDs keep their data
    tests/ceph_faults.py --case long,memstore
"""

import argparse
import pathlib
import random
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, Load, need_ceph, settle
from device import BLOCK, need_libnbd
from ledger import Ledger, Mix, read_version
from scenario import main
from world import ENVIRONMENT, MIB, Case, Failure, check, need, wait_until

IMAGES = {"plain": [], "coded": ["--data-pool", "ec"]}
SIZE_MIB = 16
MIX = Mix(flush=0.03, read=0.2, trim=0.04, zero=0.04, fua=0.05)
# The longest that a request may take in any fault here: peering, and the time of a fault itself.
LATE_SECONDS = 60
# Requests that must go through after each fault.
AFTER = 40


def kill_osds(cluster, loads, indices):
    """kill -9 of one OSD after the other; each comes back and gets its data again."""
    for index in indices:
        cluster.kill_osd(index)
        go_on(loads)
        cluster.start_osd(index)
        go_on(loads)
        cluster.wait_until_clean()


def kill_some(cluster, loads):
    kill_osds(cluster, loads, [0, 3])


def kill_all(cluster, loads):
    kill_osds(cluster, loads, range(cluster.count))


def stall_osd(cluster, loads):
    """An OSD stands still, and nobody says that it is down."""
    cluster.osds[1].pause()
    settle(4)
    cluster.osds[1].go_on()


def mark_down(cluster, loads):
    """An OSD that lives is said to be down; it contradicts."""
    cluster.command("osd down", ids=["2"])
    wait_until("osd.2 is up again", lambda: 2 in cluster.osds_up(), 60)


def out_and_in(cluster, loads):
    """Data moves away from an OSD, and back."""
    cluster.command("osd out", ids=["1"])
    settle(2)
    go_on(loads)
    cluster.command("osd in", ids=["1"])
    go_on(loads)
    cluster.wait_until_clean()


def affinity(cluster, loads):
    """Other OSDs become primaries, and weights change."""
    cluster.command("osd primary-affinity", id=0, weight=0.0)
    cluster.command("osd reweight", id=2, weight=0.6)
    go_on(loads)
    cluster.command("osd primary-affinity", id=0, weight=1.0)
    cluster.command("osd reweight", id=2, weight=1.0)


def upmap(cluster, loads):
    """Placement groups are put elsewhere by name."""
    for group in cluster.command("pg dump", True, dumpcontents=["pgs"])["pg_stats"][:12]:
        spare = sorted(set(range(cluster.count)) - set(group["up"]))
        if spare and group["up"]:
            words = [group["up"][0], spare[0]]
            cluster.command("osd pg-upmap-items", pgid=group["pgid"], id=words)
    go_on(loads)


def balancer(cluster, loads):
    """The manager's balancer moves placement groups, one after the other, under fio as well."""
    cluster.rbd("create", "rep/fio", "--size", "64M")
    server = cluster.serve("rep/fio", name="fio")
    job = [
        "fio", "--name=balancer", "--ioengine=nbd", f"--uri={server.uri()}", "--rw=randwrite",
        "--bs=16k", "--iodepth=8", "--size=64M", "--verify=crc32c", "--verify_backlog=256",
        "--time_based", "--runtime=20", "--output-format=terse", "--verify_state_save=0",
    ]
    fio = subprocess.Popen(
        job, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )
    cluster.command("osd set-require-min-compat-client", version="luminous")
    for name, value in (("upmap_max_deviation", "1"), ("sleep_interval", "1")):
        cluster.command("config set", who="mgr", name=f"mgr/balancer/{name}", value=value)
    cluster.command("balancer mode", True, mode="upmap")
    # All groups of the replicated pool leave one OSD, and the balancer wants some of them back.
    for group in cluster.command("pg dump", True, dumpcontents=["pgs"])["pg_stats"]:
        spare = sorted(set(range(cluster.count)) - set(group["up"]))
        if spare and 0 in group["up"]:
            cluster.command("osd pg-upmap-items", pgid=group["pgid"], id=[0, spare[0]])
    before = upmaps(cluster)
    cluster.command("balancer on", True)
    wait_until("the balancer has moved something", lambda: upmaps(cluster) != before, 120)
    go_on(loads)
    output, _ = fio.communicate(timeout=LATE_SECONDS + 60)
    check(fio.returncode == 0, f"fio ended with {fio.returncode}:\n{output}")
    cluster.command("balancer off", True)
    cluster.wait_until_clean()
    server.stop()
    cluster.rbd("rm", "--no-progress", "rep/fio")


def upmaps(cluster):
    """Where the placement groups were put by name."""
    return cluster.command("osd dump")["pg_upmap_items"]


def set_groups(cluster, loads, count):
    """Each pool gets so many placement groups. The manager splits or merges them step by step."""
    for pool in ("rep", "ec"):
        cluster.command("osd pool set", pool=pool, var="pg_num", val=str(count))

    def done():
        check_loads(loads)
        pools = {pool["pool_name"]: pool for pool in cluster.command("osd dump")["pools"]}
        return all(pools[name]["pg_num"] == count for name in ("rep", "ec"))

    wait_until(f"each pool has {count} placement groups", done, 180)


def split(cluster, loads):
    """Twice as many placement groups."""
    set_groups(cluster, loads, 32)
    for pool in ("rep", "ec"):
        cluster.command("osd pool set", pool=pool, var="pgp_num", val="32")
    go_on(loads)


def merge(cluster, loads):
    """Fewer placement groups: they are merged, one by one. The next fault begins after the last of
    them: without a monitor, a group that is about to be merged answers no request."""
    set_groups(cluster, loads, 24)
    go_on(loads)


def restart_monitor(cluster, loads):
    """The only monitor is away; what needs no new map goes on."""
    # Placement groups that move need it.
    cluster.wait_until_clean()
    cluster.monitor.kill()
    go_on(loads)
    settle(3)
    cluster.start_monitor()
    cluster.osds_up()
    go_on(loads)


def monitor_and_osd(cluster, loads):
    """An OSD dies while there is no monitor that could tell."""
    cluster.wait_until_clean()
    cluster.monitor.kill()
    cluster.osds[2].kill()
    settle(3)
    cluster.start_monitor()
    wait_until("osd.2 is down", lambda: 2 not in cluster.osds_up(), 60)
    go_on(loads)
    cluster.start_osd(2)
    cluster.wait_until_clean()


def pause(cluster, loads):
    """`ceph osd pause`: all requests wait."""
    cluster.command("osd set", key="pause")
    wait_until("the writes pause", lambda: are_still(loads), 30)
    settle(2)
    check_loads(loads)
    cluster.command("osd unset", key="pause")


def full_pool(cluster, loads):
    """A pool is full: writes wait, and go on when there is room. Others are not concerned."""
    cluster.command("osd pool set-quota", pool="ec", field="max_bytes", val=str(64 << 10))

    def flag():
        pools = cluster.command("osd dump")["pools"]
        return any("full" in pool["flags_names"].split(",") for pool in pools)

    wait_until("the pool is full", flag, 60)
    wait_until("the writes to it wait", lambda: are_still([loads[1]]), 30)
    loads[0].wait_for_writes(AFTER)
    check_loads(loads)
    cluster.command("osd pool set-quota", pool="ec", field="max_bytes", val="0")
    wait_until("the pool is not full", lambda: not flag(), 60)


def full_cluster(cluster, loads):
    """The whole cluster says that it is full."""
    cluster.command("osd set-nearfull-ratio", ratio=0.00001)
    cluster.command("osd set-backfillfull-ratio", ratio=0.00002)
    cluster.command("osd set-full-ratio", ratio=0.00003)

    def flag():
        return any("full" in osd["state"] for osd in cluster.command("osd dump")["osds"])

    wait_until("OSDs are full", flag, 60)
    settle(5)
    check_loads(loads)
    cluster.command("osd set-full-ratio", ratio=0.95)
    cluster.command("osd set-backfillfull-ratio", ratio=0.9)
    cluster.command("osd set-nearfull-ratio", ratio=0.85)
    wait_until("no OSD is full", lambda: not flag(), 60)


def restart_manager(cluster, loads):
    cluster.manager.kill()
    go_on(loads)
    cluster.start_manager()


def all_osds(cluster, loads):
    """All OSDs end properly and start again, with their data: nobody answers for a while."""
    for osd in cluster.osds.values():
        osd.stop()
    settle(2)
    check_loads(loads)
    for index in range(cluster.count):
        cluster.start_osd(index)
    wait_until("all OSDs are up", lambda: len(cluster.osds_up()) == cluster.count, 60)


QUICK = [pause, out_and_in, kill_some, restart_monitor, split, full_pool, mark_down]
LONG = [
    kill_all, stall_osd, mark_down, out_and_in, affinity, upmap, balancer, split, merge,
    restart_monitor, monitor_and_osd, pause, full_pool, full_cluster, restart_manager, all_osds,
]
# Rounds of the long cases.
ROUNDS = {"memstore": 2, "bluestore": 1}


def check_loads(loads):
    for load in loads:
        load.check()


def go_on(loads):
    """Both clients get answers."""
    for load in loads:
        load.wait_for_writes(AFTER, LATE_SECONDS)


def are_still(loads):
    """Nothing was acknowledged for a second."""
    check_loads(loads)
    before = [load.ledger.writes for load in loads]
    settle(1)
    return before == [load.ledger.writes for load in loads]


def compare(cluster, image, ledger):
    """What librbd reads."""
    data = cluster.export(image)
    for number in range(ledger.blocks):
        version = read_version(data[number * BLOCK : (number + 1) * BLOCK], number, ledger.seed)
        last = ledger.acknowledged[number]
        check(
            version == last or (version == 0 and last in ledger.zeroed),
            f"rbd export of {image}: block {number} has version {version} instead of {last}",
        )


def scenario(world, options):
    need_ceph()
    need_libnbd()
    need("fio")
    long, store = world.case.code == "long", world.case.nodes
    cluster = Cluster(world, store=store)
    cluster.make_pool("rep")
    cluster.make_pool("ec", "jerasure")
    sizes = ["--size", f"{SIZE_MIB}M", "--object-size", "1M"]
    for name, place in IMAGES.items():
        cluster.rbd("create", f"rep/{name}", *sizes, *place)
    server = cluster.serve(*(f"rep/{name}" for name in IMAGES), options=["--cores", "2"])
    ledgers = [Ledger(SIZE_MIB * MIB // BLOCK, seed) for seed, _ in enumerate(IMAGES, 1)]
    rounds = options.rounds or (ROUNDS[store] if long else 1)
    cluster.wait_until_clean()
    for turn in range(rounds):
        faults = list(LONG if long else QUICK)
        if options.faults:
            faults = [globals()[name] for name in options.faults.split(",")]
        if turn:
            random.Random(turn).shuffle(faults)
        for fault in faults:
            began = time.monotonic()
            loads = [
                Load(ledger, server.uri(name), depth=6, late=LATE_SECONDS, mix=MIX)
                for ledger, name in zip(ledgers, IMAGES)
            ]
            try:
                go_on(loads)
                fault(cluster, loads)
                go_on(loads)
                died = any([load.finish() for load in loads])
                check(not died, "the server has gone")
                for ledger, name in zip(ledgers, IMAGES):
                    ledger.verify(server.uri(name), part=1.0 if long else 0.3)
            except Failure as failure:
                raise Failure(f"{fault.__name__}: {failure}") from failure
            slowest = max(ledger.slowest for ledger in ledgers)
            for ledger in ledgers:
                ledger.slowest = 0.0
            print(
                f"{fault.__name__}: {time.monotonic() - began:.1f} s, slowest request "
                f"{slowest:.1f} s",
                flush=True,
            )
    for ledger, name in zip(ledgers, IMAGES):
        ledger.verify(server.uri(name))
    server.stop()
    cluster.wait_until_clean()
    for ledger, name in zip(ledgers, IMAGES):
        compare(cluster, f"rep/{name}", ledger)
        cluster.check_object_map(f"rep/{name}")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, help="so many rounds; all but the first in another order")
parser.add_argument("--faults", help="these faults only, separated by commas")
main(
    scenario,
    [Case("ceph", "memstore")],
    parser,
    long=[Case("long", "memstore"), Case("long", "bluestore")],
)
