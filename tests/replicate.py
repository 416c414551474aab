#!/usr/bin/python3
"""Nodes pass the journal on to each other: ring, tree, primary copy. Data nodes pass parity on.
Nodes make the parity. Nodes are killed and stalled, also the inner node of a tree of two levels."""

import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from kill_nodes import load
from ledger import BLOCK, Ledger
from scenario import main
from world import COPIES_INSIDE, EVERY_CASE, MIB, Case, check, fieldstone, wait_until

SIZE = 48 * MIB
WAYS = ("ring", "tree", "primary")
# Codes that divide shards into elements.
REGENERATING = ("zigzag:4+2", "clay:4+2")
# How often nodes fail under each way, and while nodes make the parity or pass it on.
TURNS = 2


def passed_on(pool):
    return pool.volume_status("v")["appends_relayed"]


def check_shown(pool, way):
    """`pool show` and `status` name the way."""
    shown = fieldstone("pool", "show", pool.path).stdout
    check(f"journals replicated by {way}" in shown, f"pool show: {shown}")
    check(pool.volume_status("v")["replicate"] == way, "status does not name the way")
    text = fieldstone("status", pool.path).stdout
    check(f", {way} (" in text, f"status: {text}")


def check_bytes(pool, server, ledger):
    """The server sends each record once while nothing fails."""
    before = pool.volume_status("v")
    load(ledger, server.uri("v"), 2)()
    after = pool.volume_status("v")
    relayed = after["appends_relayed"] - before["appends_relayed"]
    again = after["appends_sent_again"] - before["appends_sent_again"]
    check(relayed > 0, "no record was passed on")
    print(f"{relayed} records passed on, {again} sent once more")


def processes(world, way, rng):
    pool = world.pool("768M", name=way, options=["--replicate", way])
    pool.create_volume("v", SIZE)
    server = pool.serve("v", name=f"serve-{way}")
    ledger = Ledger(SIZE // BLOCK, rng.randrange(1 << 30))
    load(ledger, server.uri("v"), 1)()
    check_shown(pool, way)
    check_bytes(pool, server, ledger)
    for turn in range(TURNS):
        # One node of the journal is stalled in the middle of writes, another one is killed.
        journal = pool.volume_status("v")["journal_nodes"]
        stalled, killed = rng.sample(journal, 2)
        finish = load(ledger, server.uri("v"), 6)
        time.sleep(rng.uniform(0.3, 1.0))
        pool.nodes[stalled].pause()
        time.sleep(rng.uniform(0.0, 3.0))
        pool.kill_nodes([killed])
        finish()
        ledger.verify(server.uri("v"))
        status = pool.volume_status("v")
        print(
            f"{way}, turn {turn}: node {stalled} stalled, node {killed} killed of {journal}: "
            f"{status['appends_relayed']} passed on, {status['appends_sent_again']} sent once more"
        )
        finish = load(ledger, server.uri("v"), 3)
        pool.nodes[stalled].go_on()
        pool.start_missing_nodes()
        finish()
        pool.wait_until_whole("v")
        ledger.verify(server.uri("v"))
    # With all nodes back, records are passed on again.
    before = passed_on(pool)

    def again():
        load(ledger, server.uri("v"), 1)()
        return passed_on(pool) > before

    wait_until("records are passed on again", again, seconds=90)
    # Nothing of it depends on the server.
    server.kill()
    server = pool.serve("v", name=f"serve-{way}-again")
    ledger.verify(server.uri("v"))
    server.stop()
    pool.stop_nodes()


def deep_tree(world, rng):
    """Five copies: the tree has two levels. Its inner node, to which only one other node sends, and
    which sends to two, is stalled and killed in the middle of writes."""
    pool = world.pool("768M", name="deep", options=["--replicate", "tree"])
    pool.create_volume("v", SIZE)
    server = pool.serve("v", name="serve-deep")
    ledger = Ledger(SIZE // BLOCK, rng.randrange(1 << 30))
    load(ledger, server.uri("v"), 1)()
    check_shown(pool, "tree")
    check_bytes(pool, server, ledger)
    for fault in ("killed", "stalled", "killed", "stalled"):
        journal = pool.volume_status("v")["journal_nodes"]
        check(len(journal) == 5, f"the journal is on nodes {journal}")
        inner = journal[1]
        before = pool.volume_status("v")
        finish = load(ledger, server.uri("v"), 8)
        time.sleep(rng.uniform(0.3, 1.0))
        begun = ledger.writes
        if fault == "killed":
            pool.kill_nodes([inner])
        else:
            pool.nodes[inner].pause()
        finish()
        check(ledger.writes > begun, f"nothing was written after the inner node was {fault}")
        ledger.verify(server.uri("v"))
        after = pool.volume_status("v")
        again = after["appends_sent_again"] - before["appends_sent_again"]
        print(f"inner node {inner} of {journal} {fault}: {again} records sent once more")
        # The server sees itself that a process has died.
        check(again > 0 or fault == "killed", "the server did not go round the stalled inner node")
        check(inner not in after["journal_nodes"], "the journal is still there")
        if fault == "stalled":
            pool.nodes[inner].go_on()
        pool.start_missing_nodes()
        pool.wait_until_whole("v")
        ledger.verify(server.uri("v"))
    before = passed_on(pool)

    def again_on_the_way():
        load(ledger, server.uri("v"), 1)()
        return passed_on(pool) > before

    wait_until("records are passed on again", again_on_the_way, seconds=90)
    server.kill()
    server = pool.serve("v", name="serve-deep-again")
    ledger.verify(server.uri("v"))
    # Two nodes have at least one copy of everything.
    for kept in (0, 2, 4):
        pool.wait_until_whole("v")
        pool.kill_nodes([node for node in range(pool.count) if node not in (kept, kept + 1)])
        ledger.verify(server.uri("v"), flush=False)
        pool.start_missing_nodes()
    pool.wait_until_whole("v")
    server.stop()
    pool.stop_nodes()


def inside(world, way, rng):
    pool = world.pool("768M", name=way, options=["--replicate", way])
    pool.create_volume("v", SIZE)
    ledger = Ledger(SIZE // BLOCK, rng.randrange(1 << 30))
    for cores in (1, 2):
        options = ["--cores", str(cores)]
        server = pool.serve("v", options=options, name=f"serve-{way}-{cores}")
        load(ledger, server.uri("v"), 1)()
        check_shown(pool, way)
        check_bytes(pool, server, ledger)
        server.kill()
        server = pool.serve("v", options=options, name=f"serve-{way}-{cores}-again")
        ledger.verify(server.uri("v"))
        server.stop()


def check_passed_on(pool, server, ledger):
    """Data nodes pass parity on. `status` counts it."""
    before = pool.volume_status("v")
    load(ledger, server.uri("v"), 3)()
    after = pool.volume_status("v")
    relayed = after["parities_relayed"] - before["parities_relayed"]
    again = after["parities_sent_again"] - before["parities_sent_again"]
    check(relayed > again, f"data nodes passed {relayed} pieces of parity on, not {again}")
    check(after["copies_relayed"] == 0, "parity counts as copies")
    check(after["parities_streamed"] == 0, "nodes made parity")
    print(f"{relayed} pieces of parity passed on by data nodes, {again} sent once more")


def carries(world, rng):
    """Data nodes pass on the parity that the server made. Half of the nodes are killed, one after
    the other, in the middle of writes; each is a parity node of some segments."""
    pool = world.pool("768M", name="carry", options=["--replicate", "primary"])
    shown = fieldstone("pool", "show", pool.path).stdout
    check("parity passed on by data nodes" in shown, f"pool show: {shown}")
    pool.create_volume("v", SIZE)
    server = pool.serve("v", name="serve-carry")
    ledger = Ledger(SIZE // BLOCK, rng.randrange(1 << 30))
    load(ledger, server.uri("v"), 1)()
    check_passed_on(pool, server, ledger)
    if world.case.nodes == "processes":
        count = world.case.node_count
        for killed in rng.sample(range(count), count // 2):
            finish = load(ledger, server.uri("v"), 2)
            time.sleep(rng.uniform(0.3, 1.0))
            pool.kill_nodes([killed])
            finish()
            ledger.verify(server.uri("v"))
            pool.start_missing_nodes()
            pool.wait_until_whole("v")
        status = pool.volume_status("v")
        print(
            f"half of the nodes killed: {status['parities_relayed']} pieces of parity passed on, "
            f"{status['parities_sent_again']} sent once more"
        )
    before = pool.volume_status("v")["parities_relayed"]

    def again():
        load(ledger, server.uri("v"), 1)()
        return pool.volume_status("v")["parities_relayed"] > before

    wait_until("data nodes pass parity on again", again, seconds=90)
    # Every shard has the bytes of its own checksums.
    fieldstone("scrub", pool.path)
    status = pool.volume_status("v")
    check(status["shards_damaged"] == 0, f"{status['shards_damaged']} shards damaged")
    server.kill()
    server = pool.serve("v", name="serve-carry-again")
    ledger.verify(server.uri("v"))
    if world.case.nodes == "processes":
        # Reads without two nodes decode with the parity that data nodes passed on. Each node is one
        # of the two once, so shards of parity in each other's places are noticed.
        nodes = list(range(world.case.node_count))
        rng.shuffle(nodes)
        for pair in zip(nodes[::2], nodes[1::2]):
            pool.kill_nodes(pair)
            ledger.verify(server.uri("v"))
            pool.start_missing_nodes()
            pool.wait_until_whole("v")
    server.stop()
    pool.stop_nodes()


def check_parity(pool, server, ledger):
    """Nodes make the parity, and the server sends little more than the data."""
    before = pool.volume_status("v")
    load(ledger, server.uri("v"), 3)()
    after = pool.volume_status("v")
    streamed = after["parities_streamed"] - before["parities_streamed"]
    again = after["parities_coded_again"] - before["parities_coded_again"]
    check(streamed > 0, "no node made parity")
    sent = after["sent_bytes"] - before["sent_bytes"]
    written = after["user_written_bytes"] - before["user_written_bytes"]
    print(f"{streamed} pieces of parity made by nodes, {again} by the server in their place")
    print(f"{sent / max(written, 1):.2f} bytes sent for each byte of users")


def streams(world, rng):
    """Nodes make the parity. One is stalled and one is killed in the middle of writes."""
    pool = world.pool("768M", name="stream", options=["--encode", "stream"])
    check("parity made by nodes" in fieldstone("pool", "show", pool.path).stdout, "pool show")
    pool.create_volume("v", SIZE)
    server = pool.serve("v", name="serve-stream")
    ledger = Ledger(SIZE // BLOCK, rng.randrange(1 << 30))
    load(ledger, server.uri("v"), 1)()
    check(pool.volume_status("v")["encode"] == "stream", "status does not name the way")
    check_parity(pool, server, ledger)
    for turn in range(TURNS):
        if world.case.nodes == "processes":
            stalled, killed = rng.sample(range(world.case.node_count), 2)
            finish = load(ledger, server.uri("v"), 6)
            time.sleep(rng.uniform(0.3, 1.0))
            pool.nodes[stalled].pause()
            time.sleep(rng.uniform(0.0, 3.0))
            pool.kill_nodes([killed])
            finish()
            ledger.verify(server.uri("v"))
            print(f"stream, turn {turn}: node {stalled} stalled, node {killed} killed")
            finish = load(ledger, server.uri("v"), 3)
            pool.nodes[stalled].go_on()
            pool.start_missing_nodes()
            finish()
            pool.wait_until_whole("v")
            ledger.verify(server.uri("v"))
        # Every shard of parity is that of its data, and any two nodes may be lost.
        fieldstone("scrub", pool.path)
        status = pool.volume_status("v")
        check(status["shards_damaged"] == 0, f"{status['shards_damaged']} shards damaged")
        server.kill()
        server = pool.serve("v", name=f"serve-stream-{turn}")
        ledger.verify(server.uri("v"))
    before = pool.volume_status("v")["parities_streamed"]

    def again():
        load(ledger, server.uri("v"), 1)()
        return pool.volume_status("v")["parities_streamed"] > before

    wait_until("nodes make parity again", again, seconds=90)
    if world.case.nodes == "processes":
        # Reads without two nodes decode with the parity that nodes made.
        pool.kill_nodes(rng.sample(range(world.case.node_count), 2))
        ledger.verify(server.uri("v"))
    server.stop()
    pool.stop_nodes()


def exhausted(world, rng):
    """The nodes have little memory for parity. The server makes what they deny."""
    processes = world.case.nodes == "processes"
    options = ["--encode", "stream"]
    little = ["--parity-memory", "256K"]
    of_nodes = {"node_options": little} if processes else {}
    pool = world.pool("768M", name="little", options=options, **of_nodes)
    pool.create_volume("v", SIZE)
    server = pool.serve("v", name="serve-little", options=[] if processes else little)
    ledger = Ledger(SIZE // BLOCK, rng.randrange(1 << 30))
    load(ledger, server.uri("v"), 6)()
    ledger.verify(server.uri("v"))
    status = pool.volume_status("v")
    streamed, again = status["parities_streamed"], status["parities_coded_again"]
    print(f"little memory: {streamed} pieces of parity made by nodes, {again} by the server")
    check(again > 0, "no node was short of memory for parity")
    memory = pool.status()["server"]["parity_memory"]
    print(f"the server's process: {memory}")
    if not processes:
        check(memory["total_bytes"] == 256 << 10, "--parity-memory is not what the server has")
        check(memory["denied"] > 0, "no piece was denied")
        text = fieldstone("status", pool.path).stdout
        check("of 256 KiB in use" in text, f"status: {text}")
    check(all(node["state"] == "up" for node in status["nodes"]), "a node was given up")
    fieldstone("scrub", pool.path)
    check(pool.volume_status("v")["shards_damaged"] == 0, "shards are damaged")
    if processes:
        # The parity that either of them made restores the data.
        pool.kill_nodes(rng.sample(range(world.case.node_count), 2))
    ledger.verify(server.uri("v"))
    server.stop()
    pool.stop_nodes()


def scenario(world):
    rng = random.Random(7)
    if world.case.copies == 5:
        deep_tree(world, rng)
        return
    if world.case.code in REGENERATING:
        streams(world, rng)
        return
    if world.case.code == "rs:4+2":
        carries(world, rng)
        streams(world, rng)
        exhausted(world, rng)
    for way in WAYS:
        (processes if world.case.nodes == "processes" else inside)(world, way, rng)


if __name__ == "__main__":
    elements = [Case(code, nodes) for code in REGENERATING for nodes in ("inside", "processes")]
    more = EVERY_CASE + elements + [Case("copies:5", "processes")]
    main(scenario, COPIES_INSIDE + elements[:1], waits=True, more=more)
