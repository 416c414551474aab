#!/usr/bin/python3
"""A stranger sends again what it has recorded of a client, while the client's epoch is current.

The stranger, in a network namespace of its own, has recorded all requests that came to the nodes.
It sends those of each class to the same node over other connections, the oldest ones last, while
the client is silent and while the client writes. No acknowledged data is lost. The server is killed
behind the replays and starts again, and in the end each node is away once, so that parity is used.
docs/threat-model.md says what a replay of each class does.

    tests/replays.py
    tests/replays.py --case parts,long             # data nodes pass parity on
    make test-net
"""

import collections
import concurrent.futures
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from cluster import SIZE
from formats import reply
from kill_nodes import load
from ledger import BLOCK, Ledger
from scenario import main
from stranger import (
    ADMIT_RELAYS, BUSY, DONE, FENCE, FENCED, HARMLESS, IN_USE, INVALID, JOURNAL_APPEND,
    JOURNAL_CREATE, JOURNAL_DELETE, JOURNAL_SYNC, NO_SPACE, NOT_FOUND, OUTCOMES, PARTED, PUT_ROOT,
    RESERVE, ROUTED, SHARD_DELETE, SHARD_SYNC, SHARD_WRITE, STREAMED, TABLED, Stranger, Tap, retagged,
    tapped,
)
from world import Case, check, fieldstone, wait_until

# Requests that the stranger sends over one connection, and of each class to one node.
BATCH, MOST = 16, 96
# How long the client writes at most while the stranger replays, and how long the stranger waits
# before it looks whether the client has come back to the node.
SECONDS, PAUSE_SECONDS = 60, 0.1
APPENDS = (JOURNAL_APPEND, JOURNAL_APPEND + ROUTED)

# What a node may answer. It calls a request invalid if the client has come back over a newer
# connection. It takes an append only if its place in the ring has no later bytes. It has no room for
# more shards than the volume has reserved.
ANSWERS = {
    FENCE: {FENCED, IN_USE, INVALID},
    PUT_ROOT: {DONE, INVALID},
    JOURNAL_CREATE: {DONE, INVALID},
    JOURNAL_APPEND: {DONE, NOT_FOUND, INVALID},
    JOURNAL_SYNC: {DONE, NOT_FOUND, INVALID},
    JOURNAL_DELETE: {DONE, INVALID},
    SHARD_WRITE: {DONE, NO_SPACE, INVALID},
    SHARD_SYNC: {DONE, INVALID},
    SHARD_DELETE: {DONE, INVALID},
    RESERVE: {DONE, NO_SPACE, BUSY, INVALID},
    ADMIT_RELAYS: {DONE, INVALID},
}
OF_ROUTES = {OUTCOMES, NOT_FOUND, BUSY, INVALID}
# The classes that each way shows, and those of one way: operations, and whether fragments follow.
OF_ALL = {(operation, False) for operation in ANSWERS.keys() - {JOURNAL_APPEND, ADMIT_RELAYS}}
PASSES = {(ADMIT_RELAYS, False)}
RECORDS = PASSES | {(JOURNAL_APPEND + ROUTED, False), (JOURNAL_APPEND + ROUTED, True)}
COPIES = RECORDS | {(SHARD_WRITE + ROUTED, True)}
OF_WAY = {
    "flat": {(JOURNAL_APPEND, False)},
    "ring": COPIES,
    "tree": COPIES,
    "both": RECORDS | {(SHARD_WRITE + STREAMED, True)},
    "zigzag": PASSES | {(SHARD_WRITE + TABLED, True)},
    "parts": RECORDS | {(SHARD_WRITE + PARTED, True)},
}


def replay(stranger, name, requests, counts):
    """Sends the requests once more over several connections, the oldest ones last."""
    waiting = []
    requests = requests[::-1]
    for begin in range(0, len(requests), BATCH):
        batch = requests[begin : begin + BATCH]
        connection = stranger.dial()
        connection.sendall(b"".join(retagged(messages, tag) for tag, messages in enumerate(batch)))
        waiting.append((connection, len(batch)))
    for connection, count in waiting:
        for _ in range(count):
            kind, answer, _ = reply(connection)
            is_known = kind in ANSWERS.get(name[0], OF_ROUTES)
            check(is_known, f"the answer to a replay of {name} is {kind} {answer!r}")
            counts[name, kind] += 1
        connection.close()


class Replays:
    """The pool, its client, and what the stranger has recorded at each node."""

    def __init__(self, world):
        self.way = world.case.code
        self.cluster, self.taps = tapped(world, self.way)
        self.strangers = [Stranger(self.cluster, node) for node in range(self.cluster.count)]
        self.ledger = Ledger(SIZE // BLOCK, 13)
        self.seen = set()

    def write(self, seconds):
        load(self.ledger, self.cluster.uri, seconds)()

    def recorded(self, node):
        """What was sent to a node at the present epoch, by class."""
        found = self.taps[node].requests(self.cluster.status()["epoch"])
        found = {name: requests for name, requests in found.items() if name[0] not in HARMLESS}
        self.seen |= set(found)
        return found

    def start_anew(self):
        """The server's process dies. What it has acknowledged is there."""
        self.cluster.server.kill()
        wait_until("nothing is on its way", self.nothing_comes)
        Tap.forget(self.taps)
        self.cluster.serve()
        self.ledger.verify(self.cluster.uri)

    def nothing_comes(self):
        before = Tap.kept_bytes
        time.sleep(0.3)
        return Tap.kept_bytes == before

    def show(self, when, counts):
        kinds = collections.defaultdict(dict)
        for (name, kind), count in sorted(counts.items()):
            kinds[name][kind] = count
        for (operation, follows), of_class in kinds.items():
            what = f"{operation} in fragments" if follows else operation
            print(f"{self.way}, {when}: answers to operation {what}: {of_class}", flush=True)

    def of_records(self):
        """The client is silent, and only its journal has its last records. The stranger sends all
        appends, at the head of a route first: they go to all nodes of the journal."""
        self.write(2)
        status = self.cluster.status()
        check(status["journal_used_bytes"] > 0, "the journal is empty")
        counts = collections.Counter()
        for node in status["journal_nodes"]:
            for name, requests in sorted(self.recorded(node).items(), reverse=True):
                if name[0] in APPENDS:
                    replay(self.strangers[node], name, requests, counts)
        self.show("appends to a silent client's journal", counts)
        refused = sum(count for (_, kind), count in counts.items() if kind != DONE)
        check(refused > 0, "no append is of an earlier turn of the ring")
        self.start_anew()

    def of_all(self):
        """All classes, at all nodes. Before, a node is lost and comes back, and the journal moves."""
        self.write(1)
        lost = self.cluster.status()["journal_nodes"][0]
        self.cluster.nodes[lost].kill()
        self.write(1)
        self.cluster.nodes[lost] = self.cluster.start_node(lost)
        self.cluster.wait_until_whole()
        self.write(1)
        nodes = range(self.cluster.count)
        recorded = [self.recorded(node) for node in nodes]
        counts = [collections.Counter() for _ in nodes]

        def at(node):
            for name, requests in sorted(recorded[node].items()):
                replay(self.strangers[node], name, requests[:MOST], counts[node])

        with concurrent.futures.ThreadPoolExecutor(len(nodes)) as threads:
            list(threads.map(at, nodes))
        self.show("a silent client", sum(counts, collections.Counter()))
        lacks = (OF_ALL | OF_WAY[self.way]) - self.seen
        check(not lacks, f"not recorded: {lacks}")
        self.start_anew()

    def all_are_up(self):
        return all(node["state"] == "up" for node in self.cluster.status()["nodes"])

    def while_writing(self):
        """All classes, one after the other, each at another node, while the client writes. The
        client loses one node at a time: it can write without two, and not without three."""
        self.write(2)
        counts = collections.Counter()
        recorded = [self.recorded(node) for node in range(self.cluster.count)]
        done = threading.Event()
        finish = load(self.ledger, self.cluster.uri, SECONDS, over=done.is_set)
        begun = self.ledger.writes
        for index, name in enumerate(sorted(self.seen)):
            node = index % self.cluster.count
            replay(self.strangers[node], name, recorded[node].get(name, [])[:MOST], counts)
            time.sleep(PAUSE_SECONDS)
            wait_until("the client is back", self.all_are_up)
        done.set()
        finish()
        check(self.ledger.writes > begun, "the client wrote nothing meanwhile")
        self.show("a client that writes", counts)
        self.ledger.verify(self.cluster.uri)

    def lose_nodes(self):
        """Each node is away once, so that what it has is decoded or read elsewhere."""
        cluster = self.cluster
        for pair in zip(range(0, cluster.count, 2), range(1, cluster.count, 2)):
            cluster.wait_until_whole()
            for node in pair:
                cluster.nodes[node].kill()
            self.ledger.verify(cluster.uri)
            for node in pair:
                cluster.nodes[node] = cluster.start_node(node)
        cluster.wait_until_whole()
        fieldstone("scrub", cluster.pool.path)
        check(cluster.status()["shards_damaged"] == 0, "shards are damaged")


def scenario(world):
    replays = Replays(world)
    parts = (replays.of_records, replays.of_all, replays.while_writing, replays.lose_nodes)
    for part in parts:
        began = time.monotonic()
        part()
        print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)
    replays.ledger.verify(replays.cluster.uri)
    replays.cluster.stop()


if __name__ == "__main__":
    main(scenario, [Case("both", "processes")], long=[Case(way, "long") for way in OF_WAY])
