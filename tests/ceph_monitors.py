#!/usr/bin/python3
"""Three monitors, tickets that end, and clocks that are wrong, under verified load.

The monitors are lost and come back, one after the other; with two of three away, requests to OSDs
go on, and a command ends in time. Tickets of a few seconds are renewed while all goes on, also
after a stall that outlives them; a client whose key is removed says so, and no request of it hangs.
A client and an OSD have clocks that are wrong, and that jump. With too few members of a placement
group, requests wait, and it is told for what; a limit ends the wait.
"""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, Load, need_ceph, run_steps, settle
from device import BLOCK, connect, need_libnbd, nbd, noise
from ledger import Ledger, Mix
from scenario import main
from world import MIB, Case, check, fieldstone, wait_until

SIZE_MIB = 8
MIX = Mix(flush=0.03, read=0.3, trim=0.04, zero=0.04, fua=0.05)
# The longest that a request may take: an election, peering, the end of a ticket.
LATE_SECONDS = 60
# Requests that must go through after each change.
AFTER = 40
# How long tickets of OSDs are good, and those of monitors. An OSD keeps the secrets of three times.
SERVICE_SECONDS, MONITOR_SECONDS = 15, 20
# A monitor that hears nothing from the leader for twice this time asks for an election.
LEASE_SECONDS = 2
LIBFAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


class Loaded:
    """A server of an image with a client that verifies, around a step."""

    def __init__(self, world, cluster, name, **options):
        cluster.rbd("create", f"rep/{name}", "--size", f"{SIZE_MIB}M", "--object-size", "1M")
        self.server = cluster.serve(f"rep/{name}{options.pop('target', '')}", **options)
        self.ledger = Ledger(SIZE_MIB * MIB // BLOCK, len(name))
        self.load = Load(self.ledger, self.server.uri(), depth=6, late=LATE_SECONDS, mix=MIX)
        self.go_on()

    def go_on(self, count=AFTER):
        self.load.wait_for_writes(count, LATE_SECONDS)

    def end(self):
        check(not self.load.finish(), "the server has gone")
        self.ledger.verify(self.server.uri())
        self.server.stop()


def commands_work(cluster):
    """A command that asks the monitors only."""
    pools = fieldstone("rados", "lspools", "--conf", cluster.conf, seconds=40).stdout
    check("rep" in pools.split(), f"lspools: {pools}")


def one_monitor(world, cluster):
    """The leader of three is lost and comes back."""
    lose_monitors(world, cluster, "a")


def each_monitor(world, cluster):
    """Each of three is lost and comes back."""
    lose_monitors(world, cluster, cluster.addresses)


def lose_monitors(world, cluster, names):
    """What needs the monitors works meanwhile."""
    loaded = Loaded(world, cluster, "each")
    for name in names:
        cluster.monitors[name].kill()
        loaded.go_on()
        commands_work(cluster)
        # A map changes while one monitor is away.
        cluster.command("osd down", ids=["1"])
        wait_until("osd.1 is up again", lambda: 1 in cluster.osds_up(), 60)
        loaded.go_on()
        cluster.start_monitor(name)
        wait_until(f"mon.{name} is back", lambda: len(cluster.quorum()) == 3, 60)
    loaded.end()


def no_quorum(world, cluster):
    """Two of three are away: OSDs answer, a command ends in time, and all goes on afterwards."""
    loaded = Loaded(world, cluster, "two")
    for name in ("b", "c"):
        cluster.monitors[name].kill()
    try:
        loaded.go_on()
        # The one that is left learns that it is alone when its lease ends.
        settle(LEASE_SECONDS * 3)
        began = time.monotonic()
        words = ["rados", "lspools", "--conf", cluster.conf, "-o", "client_mount_timeout=8"]
        result = fieldstone(*words, ok=(1,), seconds=40)
        took = time.monotonic() - began
        last = result.stderr.splitlines()[-1]
        check("monitor" in last and took < 20, f"after {took:.1f} s: {result.stderr}")
        settle(3)
        loaded.go_on()
    finally:
        for name in ("b", "c"):
            cluster.start_monitor(name)
    wait_until("all monitors are back", lambda: len(cluster.quorum()) == 3, 60)
    commands_work(cluster)
    # An OSD that restarts has a new address: the client needs the new map.
    cluster.kill_osd(0)
    cluster.start_osd(0)
    cluster.wait_until_clean()
    loaded.go_on()
    loaded.end()


def tickets(world, cluster):
    """Tickets end all the time. New connections need new ones, also after a stall that outlives
    every ticket and every secret."""
    loaded = Loaded(world, cluster, "tickets")
    settle(3 * SERVICE_SECONDS)
    loaded.go_on()
    cluster.kill_osd(1)
    loaded.go_on()
    cluster.start_osd(1)
    cluster.wait_until_clean()
    loaded.go_on()
    # The client stands still for longer than four times the life of any ticket. Its requests wait
    # as long, and no longer.
    check(not loaded.load.finish(), "the server has gone")
    loaded.server.pause()
    settle(4 * SERVICE_SECONDS)
    cluster.kill_osd(2)
    cluster.start_osd(2)
    cluster.wait_until_clean()
    loaded.server.go_on()
    loaded.load = Load(loaded.ledger, loaded.server.uri(), depth=6, late=LATE_SECONDS, mix=MIX)
    loaded.go_on()
    log = loaded.server.errors()
    check("EIO" not in log, f"an error is logged:\n{log}")
    loaded.end()


def removed_key(world, cluster):
    """The key of a serving client is removed: once its tickets have ended it says that it is
    refused, and its requests fail and do not hang."""
    rights = ["mon", "profile rbd", "osd", "profile rbd"]
    cluster.command("auth get-or-create", entity="client.leaver", caps=rights)
    (found,) = cluster.command("auth get", entity="client.leaver")
    path = world.file("leaver.keyring")
    path.write_text(f"[client.leaver]\n\tkey = {found['key']}\n")
    conf = cluster.conf_with("leaver.conf", f"keyring = {path}", without=["keyring"])
    cluster.rbd("create", "rep/leaver", "--size", "8M")
    server = cluster.serve("rep/leaver:id=leaver", conf=conf, name="leaver")
    handle = connect(server.uri())
    handle.pwrite(noise(MIB, 1), 0)
    cluster.command("auth rm", entity="client.leaver")
    settle(2 * MONITOR_SECONDS)
    # Connections that stand are good; new ones are not.
    for index in range(cluster.count):
        cluster.kill_osd(index)
        cluster.start_osd(index)
        cluster.wait_until_clean()
    began = time.monotonic()
    try:
        handle.pwrite(noise(MIB, 2), 0)
        failed = False
    except nbd.Error:
        failed = True
    took = time.monotonic() - began
    check(failed, "a client without a key still writes through a new connection")
    check(took < LATE_SECONDS, f"the refused request took {took:.0f} s")
    server.wait_until_logged("client.leaver", "refuse")
    server.kill()


def clocks(world, cluster):
    """Clocks that are wrong by an hour and by days, and that jump; an OSD's clock as well."""
    if not pathlib.Path(LIBFAKETIME).exists():
        print("no libfaketime (package faketime): clocks are not tested", flush=True)
        return
    base = ["env", f"LD_PRELOAD={LIBFAKETIME}", "DONT_FAKE_MONOTONIC=1"]
    for offset in ("+1h", "-400d"):
        loaded = Loaded(world, cluster, f"clock{offset}", before=[*base, f"FAKETIME={offset}"])
        settle(2 * SERVICE_SECONDS)
        loaded.go_on()
        cluster.kill_osd(1)
        cluster.start_osd(1)
        cluster.wait_until_clean()
        loaded.go_on()
        loaded.end()
    # It jumps while it runs.
    path = world.file("clock")
    path.write_text("+0")
    words = [*base, f"FAKETIME_TIMESTAMP_FILE={path}", "FAKETIME_NO_CACHE=1"]
    loaded = Loaded(world, cluster, "clockjumps", before=words)
    for offset in ("+2d", "-3d", "+0"):
        path.write_text(offset)
        settle(SERVICE_SECONDS)
        cluster.kill_osd(2)
        cluster.start_osd(2)
        cluster.wait_until_clean()
        loaded.go_on()
    loaded.end()
    # An OSD is late by less than its secrets last, as clusters allow.
    cluster.kill_osd(0)
    cluster.start_osd(0, before=[*base, f"FAKETIME=-{SERVICE_SECONDS // 2}"])
    cluster.wait_until_clean()
    loaded = Loaded(world, cluster, "clockofosd")
    settle(2 * SERVICE_SECONDS)
    loaded.go_on()
    loaded.end()
    cluster.kill_osd(0)
    cluster.start_osd(0)
    cluster.wait_until_clean()


def below_min_size(world, cluster):
    """Of three members two are away: requests wait, the reason is told, and a limit ends the
    wait."""
    cluster.rados("put", "-p", "rep", "before", __file__)
    loaded = Loaded(world, cluster, "few")
    away = (1, 2)
    for index in away:
        cluster.kill_osd(index)
    try:
        writes_wait(loaded, cluster)
    finally:
        for index in away:
            cluster.start_osd(index)
    cluster.wait_until_clean()
    loaded.go_on()
    loaded.end()


def writes_wait(loaded, cluster):
    still = loaded.ledger.writes
    settle(4)
    check(loaded.ledger.writes - still < 64, "writes go on below min_size")
    loaded.load.check()
    # With a limit: an error that names the object, in time.
    began = time.monotonic()
    limit = ["--conf", cluster.conf, "-o", "rados_osd_op_timeout=8"]
    result = fieldstone("rados", "put", "-p", "rep", "few", __file__, *limit, ok=(1,), seconds=60)
    took = time.monotonic() - began
    check(7 < took < 20, f"a limit of 8 s ended the wait after {took:.1f} s")
    text = result.stderr
    told = "holds" in text and "ETIMEDOUT" in text and "rep/few" in text
    check(told, f"the reason is not told: {text}")


QUICK = [one_monitor, below_min_size]
LONG = [each_monitor, no_quorum, tickets, clocks, below_min_size, removed_key]


def scenario(world):
    need_ceph()
    need_libnbd()
    long = world.case.code == "long"
    more = [f"mon_lease = {LEASE_SECONDS}", "mon_election_timeout = 2"]
    if long:
        more += [
            f"auth_service_ticket_ttl = {SERVICE_SECONDS}",
            f"auth_mon_ticket_ttl = {MONITOR_SECONDS}",
        ]
    # OSDs keep their data: one after the other is killed, and two at once.
    cluster = Cluster(world, osds=3, store="bluestore", monitors=3, more=more)
    cluster.make_pool("rep")
    cluster.wait_until_clean()
    run_steps(*((step, world, cluster) for step in (LONG if long else QUICK)))


main(scenario, [Case("ceph", "bluestore")], waits=True, long=[Case("long", "bluestore")])
