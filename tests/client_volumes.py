#!/usr/bin/python3
"""Commands on the pool's folder reach a volume that a client has open on its own machine.

`status` and `volume ls` name the client. `scrub`, `rebuild`, `volume limit` and `volume grow` are
carried out by the client, under load. What another writer, a removal or an offline command says
names the client, too. More nodes than the code makes up for are replaced, one after the other: the
pool learns from the client that its volume is whole again. A volume that was removed, and that a
client makes anew with a capability that is still valid, is in no list, and is removed again.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ledger import BLOCK, Ledger
from metadata_client import LIST, Session, call, newest_root, put_root
from pool_clients import Client, Service, admit, load
from scenario import main
from world import COPIES_INSIDE, MIB, check, fieldstone, refused, wait_until

SIZE = 32 * MIB
# Kinds of replies of the wire.
DONE, LISTED, STATE_OF_VOLUME = 0, 3, 4


def report(pool, name):
    """The pool's report on the volume, if it has one."""
    volumes = json.loads(fieldstone("status", pool.path, "--json").stdout)["volumes"]
    found = [volume for volume in volumes if volume["name"] == name]
    check(len(found) < 2, f"{name} is there twice: {found}")
    return found[0] if found else None


def phase(pool):
    found = report(pool, "v")
    return found and found["phase"]


def told(pool, client):
    """The pool names the client, as soon as the client has reported."""
    wait_until("the client has reported", lambda: phase(pool) == "serving")
    found = report(pool, "v")
    check(found["client"] == "web" and found["io"]["requests"], found)
    check("client" not in report(pool, "u"), "u is open in the server")
    text = fieldstone("status", pool.path).stdout
    check("web has it open" in text and "not checked: w;" in text, text)
    listed = fieldstone("volume", "ls", pool.path).stdout.splitlines()
    line = next(line for line in listed if line.startswith("v "))
    check("served" in line and line.endswith("at client web"), line)
    refused("volume", "rm", pool.path / "v", says=["in use", "the client web may have v open"])
    check(client.process.poll() is None, "the client has ended")


def commands(pool, client, ledger):
    """The client carries out what the pool's commands ask for."""
    for command in ("scrub", "rebuild"):
        done = fieldstone(command, pool.path / "v", "--json").stdout
        check(json.loads(done)["volume"] == "v", done)
    # All volumes of the pool: that of the server, and that of the client.
    done = [json.loads(line) for line in fieldstone("scrub", pool.path, "--json").stdout.splitlines()]
    check(sorted(line["volume"] for line in done) == ["u", "v"], done)
    fieldstone("volume", "limit", pool.path / "v", "--iops", "50000")
    limit = next(layer for layer in report(pool, "v")["io"]["layers"] if layer["name"] == "limit")
    check(limit["options"]["iops"] == "50000", limit)
    refused("volume", "grow", pool.path / "v", "--size", SIZE, says=["can grow, not shrink"])
    fieldstone("volume", "grow", pool.path / "v", "--size", 2 * SIZE)
    check(report(pool, "v")["size_bytes"] == 2 * SIZE, report(pool, "v"))
    load(ledger, client)
    refused("volume", "limit", pool.path / "absent", "--iops", "5", says=["absent"])


def replacements(pool, client, ledger):
    """Each node in turn. No more nodes may be empty at a time than the code makes up for. So each
    replacement but the first ones needs the word of the client and of the server."""
    for node in range(pool.count):
        pool.delete_node(node)
        pool.replace(node)
        if pool.case.nodes == "processes":
            pool.start_node(node)
        load(ledger, client, 0.3)

        def rebuilt():
            record = json.loads((pool.path / "nodes.json").read_text())
            # Asking is what makes the server note it.
            fieldstone("status", pool.path)
            return not any(entry["rebuild"] for entry in record["nodes"])

        wait_until(f"node.{node} is known to be rebuilt", rebuilt, seconds=120)
    ledger.verify(client.uri)


def stopped_client(pool, client):
    """A client that stands still answers no call. The command says so, and harms nothing."""
    client.pause()
    said = refused("scrub", pool.path / "v", says=["the client web has not answered"])
    client.go_on()
    check("web" in said, said)
    wait_until("it answers again", lambda: report(pool, "v") is not None)


def lies(pool, credential):
    """A client without volumes reports on those of others, and tells nonsense."""
    true = report(pool, "v")
    session = Session(json.loads(credential.read_text()))
    closed = volumes(pool)["w"]["epoch"] + 1
    for name in ("v", "u", "w"):
        session.open(name)
        if name == "w":
            # It has a capability, and no node knows it as the writer.
            session.issue(closed)
        for lie in [
            {**true, "epoch": 1 << 40},
            {**true, "epoch": closed},
            {**true, "epoch": -1},
            {**true, "phase": "serving\x1b[2J", "reason": "x" * 30000},
            {},
            [1, 2],
            {**true, "rebuild": {**true["rebuild"], "running": True}},
        ]:
            session.ask("watch", oldest=None, report=lie)
            session.ask("watch", oldest=None, answers=[{"number": 1 << 60, "error": "\x1b"}])
            check(report(pool, "v")["client"] == "web", report(pool, "v"))
            check("client" not in report(pool, "u"), report(pool, "u"))
            check(report(pool, "w") is None, report(pool, "w"))
    fieldstone("scrub", pool.path / "v")
    fieldstone("pool", "evict", pool.path, "liar")
    session.end()


def removed_for_good(world, pool, service, evicted):
    """A client has a root and a capability of a volume that is removed. When the nodes have
    forgotten its epochs, it makes the volume anew on each of them, under another volume's name, and
    stays connected. It may have been `evicted` before."""
    name = f"maker{evicted:d}"
    session = Session(json.loads(admit(world, pool, service, name).read_text()))
    session.open("w")
    epoch = volumes(pool)["w"]["epoch"] + 2
    entitled = session.issue(epoch)
    kept = [newest_root(node, entitled) for node in session.nodes()]
    if evicted:
        fieldstone("pool", "evict", pool.path, name)
    fieldstone("volume", "rm", pool.path / "w")
    service.process.stop()
    pool.kill_nodes()
    pool.start_missing_nodes()
    service.start()
    session = Session(json.loads(admit(world, pool, service, f"guide{evicted:d}").read_text()))
    session.open("u")
    nodes = session.connections()
    for node, root in zip(nodes, kept):
        kinds = put_root(node, entitled, epoch, b"v", kept=root)
        check(kinds == (STATE_OF_VOLUME, DONE), f"the answers are {kinds}")
    check(sorted(volumes(pool)) == ["u", "v"], volumes(pool))
    service.process.wait_until_logged("a client had made it anew")
    pool.create_volume("w", SIZE)
    check(sorted(volumes(pool)) == ["u", "v", "w"], volumes(pool))
    for node in nodes:
        kind, body, _ = call(node, LIST, entitled)
        check(kind == LISTED and int.from_bytes(body[:4], "little") == 0, "a node still has it")
        node.close()


def volumes(pool):
    """The pool's volumes, by name."""
    lines = fieldstone("volume", "ls", pool.path, "--json").stdout.splitlines()
    return {volume["name"]: volume for volume in map(json.loads, lines)}


def scenario(world):
    pool = world.pool("768M")
    for name in ("v", "u", "w"):
        pool.create_volume(name, SIZE)
    ledger = Ledger(SIZE // BLOCK, 23)
    at = f"unix:{world.file('u.sock')}"
    service = Service(pool, "--nbd", at, volumes=["u"])
    web = admit(world, pool, service, "web", "v")
    client = Client(world, web, "v", "--limit", "iops=100000")
    load(ledger, client)
    told(pool, client)
    commands(pool, client, ledger)
    stopped_client(pool, client)
    lies(pool, admit(world, pool, service, "liar"))
    load(ledger, client)
    fieldstone("volume", "rm", pool.path / "w")
    replacements(pool, client, ledger)
    client.stop()
    wait_until("the pool knows that v is closed", lambda: report(pool, "v") is None)
    pool.create_volume("w", SIZE)
    for evicted in (False, True):
        removed_for_good(world, pool, service, evicted)
    service.process.stop()
    server = pool.serve("v")
    ledger.verify(server.uri("v"))
    server.stop()


main(scenario, COPIES_INSIDE)
