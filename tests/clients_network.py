#!/usr/bin/python3
"""Clients of a pool on machines of their own: network namespaces.

The pool's machine runs the nodes and the metadata service, at all of its addresses. A client's
cable is pulled for a moment, and for longer than its capability is valid. Its machine stands still
for as long. Requests fail at most for that time, and no acknowledged write is lost. Commands where
the pool is reach the client over the network. A client is evicted while its machine is cut off: the
next writer has the volume at once, and the evicted client ends when its machine is back.
"""

import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect
from ledger import BLOCK, Ledger
from network import Network
from pool_clients import Client, admit_at, load, works
from scenario import main
from world import FIELDSTONE, MIB, Case, Process, check, fieldstone, wait_until

SIZE = 32 * MIB
PORT = 7000
LIFETIME_SECONDS = 4


def whole_again(client, ledger):
    """Requests succeed by themselves, and what was acknowledged is there."""
    handle = connect(client.uri)
    wait_until("requests succeed", lambda: works(handle))
    handle.shutdown()
    load(ledger, client)
    ledger.verify(client.uri)


def cut_off(network, client, ledger, seconds):
    network.unplug("web")
    time.sleep(seconds)
    network.plug("web")
    whole_again(client, ledger)


def reached(pool):
    """The pool's commands reach the client's machine."""
    done = json.loads(fieldstone("scrub", pool.path / "v", "--json").stdout)
    check(done["shards_done"] > 0 and done["shards_failed"] == 0, done)
    volumes = json.loads(fieldstone("status", pool.path, "--json").stdout)["volumes"]
    check([volume["client"] for volume in volumes] == ["web"], volumes)


def evicted_while_away(world, network, pool, client, app, ledger):
    """The client's machine is cut off, and the pool goes on without it."""
    network.unplug("web")
    began = time.monotonic()
    fieldstone("pool", "evict", pool.path, "web")
    check(time.monotonic() - began < 10, "the eviction waits for the client")
    # The client has the volume open still, as far as its own machine knows.
    second = Client(world, app, "v", "--takeover", through=network.command("app"))
    load(ledger, second)
    network.plug("web")
    check(client.process.wait(90) != 0, "an evicted client serves")
    check("does not admit" in client.errors(), client.errors())
    load(ledger, second)
    ledger.verify(second.uri)
    return second


def scenario(world):
    network = Network(world, ["pool", "web", "app"])
    pool = world.pool("768M")
    pool.create_volume("v", SIZE)
    ledger = Ledger(SIZE // BLOCK, 41)
    command = [
        FIELDSTONE, "serve", pool.path, "--metadata", f"tcp:0.0.0.0:{PORT}",
        "--capability-lifetime", f"{LIFETIME_SECONDS}s",
    ]
    service = Process(world, "service", network.command("pool", *command))
    service.wait_for_output("metadata on")
    at = f"{network.addresses['pool']}:{PORT}"
    web, app = (admit_at(world, pool, at, name, "v") for name in ("web", "app"))
    client = Client(world, web, "v", through=network.command("web"))
    load(ledger, client)
    check(network.sent_bytes("web") > MIB, "the client's data does not go over its cable")
    reached(pool)
    cut_off(network, client, ledger, 1)
    cut_off(network, client, ledger, 2 * LIFETIME_SECONDS)
    client.pause()
    time.sleep(2 * LIFETIME_SECONDS)
    client.go_on()
    whole_again(client, ledger)
    reached(pool)
    second = evicted_while_away(world, network, pool, client, app, ledger)
    second.stop()
    service.stop()


main(scenario, [Case("rs:4+2", "inside")])
