#!/usr/bin/python3
"""A stranger on the nodes' network, in a network namespace of its own, while a client writes.

It sends packets of each class with forged and expired capabilities, with those of other volumes,
rights and segments, and replays what it has recorded of the client after the client has started
again. It uses up the memory for parity and falls silent, begins writes in fragments that never end,
and floods a node with requests (82,000 in the long case). No request of it changes anything, the
node's memory is bounded, nothing leaks, and the client's data is whole.

    tests/strangers.py
    tests/strangers.py --case both,long
    make test-net
"""

import collections
import pathlib
import random
import struct
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from cluster import SIZE
from formats import ADMIN, HEADER, READ, WRITE, capability, crc32c, reply, request
from kill_nodes import load
from ledger import BLOCK, Ledger
from scenario import main
from stranger import (
    ADMIT_RELAYS, ASK_STATE, BUSY, DONE, FENCE, FENCED, FRAGMENT, GATHER_SECONDS, GIVE_UP, HARMLESS,
    IDENTIFY, IN_FRAGMENTS, IN_USE, JOURNAL_APPEND, JOURNAL_CREATE, JOURNAL_DELETE, JOURNAL_READ,
    JOURNAL_SYNC, LIST_VOLUMES, NOT_PASSED_ON, OUTCOMES, PARTED, PRIMARY, PUT_ROOT, REFUSED,
    REMOVE_VOLUME, RENEW_RECORD, RESERVE, RING, ROUTED, SHARD_DELETE, SHARD_LIST, SHARD_READ,
    SHARD_SYNC, SHARD_VERIFY, SHARD_WRITE, STAT, STREAMED, SUM, TABLED, TREE, VOLUME_STATE, ZERO_CRC,
    ZEROES, Stranger, fragment, route, shard_write, tapped, text, version,
)
from world import MIB, Case, check, wait_until

FORGED, EXPIRED, RIGHTS, RANGE = range(4)
NS = 1_000_000_000
# The paper's NIC keeps so many requests in 6 MiB.
FLOOD = 82_000
# Sums of 1 MiB that a tenant begins. It may have 8 MiB. All of them may have half of a process's
# memory for parity.
SUMS, SUMS_OF_MEMORY = 12, 32
# The node's own bounds (crates/node/src/limits.rs).
REQUESTS_MAX, GATHERING_PER_VOLUME_MAX = 4096, 512
# Writes in fragments that a tenant begins, and their length. A volume may have 64 of them.
BEGUN, BEGUN_BYTES = 300, MIB
# What the flood's connections, answers and allocators may take.
GROWTH_MAX = 96 * MIB
# Requests that a node answers at any epoch.
AT_ANY_EPOCH = {LIST_VOLUMES, ASK_STATE}
ONE_FACTOR = text(b"\x01")
TWO_ROWS = text(struct.pack("<HHBHHB", 1, 1, 3, 1, 0, 1))


def classes(target, segment):
    """Each class of packets to this node: operation, kind of route, body behind the capability,
    payload (`None` if it follows in fragments), the right that it needs, whether it names a
    segment. If a node took one, it would change data, or tell what is there."""
    append = struct.pack("<QQ", 1, 0)
    write = shard_write(segment, [SUM])
    other = target ^ 1
    head, other = (target, other), (other, target)
    # Behind rank 0 are ranks 1 and 2, and behind rank 1 are ranks 3 and 4.
    beside = [node for node in range(6) if node not in head]
    tree, inner = (*head, *beside[:3]), (*other, *beside[:3])
    primary = route(PRIMARY, 0, head)
    column = struct.pack("<BB", 0, 4) + ONE_FACTOR
    table = struct.pack("<BBIH", 0, 4, BLOCK, 2) + TWO_ROWS
    length, empty = struct.pack("<I", 2 * BLOCK), shard_write(segment, [])
    rows = [
        (LIST_VOLUMES, 0, b"", b"", ADMIN, False),
        (ASK_STATE, 0, b"", b"", READ, False),
        (FENCE, 0, b"\1", b"", ADMIN, False),
        (PUT_ROOT, 0, struct.pack("<Q", 1 << 60), ZEROES, ADMIN, False),
        (JOURNAL_CREATE, 0, struct.pack("<QQ", 1 << 40, MIB), b"", WRITE, False),
        (JOURNAL_APPEND, 0, append, ZEROES, WRITE, False),
        (JOURNAL_APPEND, ROUTED, route(RING, 0, head) + append, ZEROES, WRITE, False),
        (JOURNAL_APPEND, ROUTED, route(RING, 1, other) + append, ZEROES, WRITE, False),
        (JOURNAL_APPEND, ROUTED, route(TREE, 0, tree) + append, ZEROES, WRITE, False),
        (JOURNAL_APPEND, ROUTED, route(TREE, 1, inner) + append, ZEROES, WRITE, False),
        (JOURNAL_SYNC, 0, struct.pack("<Q", 1), b"", WRITE, False),
        (JOURNAL_READ, 0, struct.pack("<QQI", 1, 0, BLOCK), b"", READ, False),
        (JOURNAL_DELETE, 0, struct.pack("<QQ", 0, 1 << 60), b"", WRITE, False),
        (SHARD_WRITE, 0, write, ZEROES, WRITE, True),
        (SHARD_WRITE, ROUTED, route(PRIMARY, 0, head) + write, ZEROES, WRITE, True),
        (SHARD_WRITE, ROUTED, route(RING, 0, head) + write, ZEROES, WRITE, True),
        (SHARD_WRITE, ROUTED, route(RING, 1, other) + write, ZEROES, WRITE, True),
        (SHARD_WRITE, ROUTED, route(TREE, 1, inner) + write, ZEROES, WRITE, True),
        (SHARD_WRITE, STREAMED, primary + column + write, ZEROES, WRITE, True),
        (SHARD_WRITE, STREAMED, route(PRIMARY, 1, other) + column + write, ZEROES, WRITE, True),
        (SHARD_WRITE, TABLED, primary + table + write, ZEROES, WRITE, True),
        (SHARD_WRITE, PARTED, primary + shard_write(segment, [SUM, SUM]), ZEROES * 2, WRITE, True),
        (JOURNAL_APPEND, ROUTED, route(RING, 0, head) + length + append, None, WRITE, False),
        (SHARD_WRITE, STREAMED, primary + column + length + empty, None, WRITE, True),
        (SHARD_WRITE, ROUTED, route(RING, 0, head) + length + empty, None, WRITE, True),
        (SHARD_WRITE, TABLED, primary + table + length + empty, None, WRITE, True),
        (SHARD_WRITE, PARTED, primary + length + empty, None, WRITE, True),
        (SHARD_SYNC, 0, b"", b"", WRITE, False),
        (SHARD_READ, 0, struct.pack("<QBII", segment, 0, 0, BLOCK), b"", READ, True),
        (SHARD_VERIFY, 0, struct.pack("<QB", segment, 0), b"", READ, True),
        (SHARD_LIST, 0, struct.pack("<Q", 0), b"", READ, False),
        (SHARD_DELETE, 0, struct.pack("<IQ", 1, segment), b"", WRITE, True),
        (REMOVE_VOLUME, 0, b"", b"", ADMIN, False),
        (RESERVE, 0, struct.pack("<II", 0, 0), b"", ADMIN, False),
        (RENEW_RECORD, 0, b"", b"", ADMIN, False),
        (ADMIT_RELAYS, 0, struct.pack("<Q", 1 << 60), b"", WRITE, False),
    ]
    return rows


def check_forgeries(stranger, volume, epoch):
    """Each is wrong in one thing only."""
    secret, segment = stranger.secret, 1 << 40 | 1
    past = int((time.time() - 3600) * NS)
    tried = 0
    with stranger.dial() as connection:

        def refused(row, why, entitled):
            operation, routed, body, payload, _, _ = row
            operation += routed
            speaks = IN_FRAGMENTS if payload is None else version(operation)
            message = request(operation, entitled + body, payload or b"", 1, speaks)
            if payload is None:
                # What follows is of no write.
                message += fragment(1, ZEROES, SUM, ZERO_CRC) * 2
            connection.sendall(message)
            kind, answer, _ = reply(connection)
            if why is FENCED:
                is_so = kind == FENCED and struct.unpack("<QQ", answer) == (epoch - 1, epoch)
            else:
                is_so = (kind, answer[:1]) == (REFUSED, bytes([why]))
            check(is_so, f"operation {operation}, {why}: {kind} {answer!r}")

        good = capability(secret, volume, epoch)
        for row in classes(stranger.target, segment):
            flipped = bytearray(good)
            flipped[-1] ^= 0x40
            rights = (READ | WRITE | ADMIN) & ~row[4]
            wrong = [
                (FORGED, bytes(flipped)),
                (FORGED, capability(bytes(16), volume, epoch)),
                # The signature is that of another volume's.
                (FORGED, good[:52] + capability(secret, 9, epoch)[52:]),
                (EXPIRED, capability(secret, volume, epoch, expires=past)),
                (RIGHTS, capability(secret, volume, epoch, rights)),
            ]
            if row[0] not in AT_ANY_EPOCH:
                wrong.append((FENCED, capability(secret, volume, epoch - 1)))
            if row[5]:
                wrong.append((RANGE, capability(secret, volume, epoch, segments=(1, 2))))
            for why, entitled in wrong:
                refused(row, why, entitled)
            tried += len(wrong)
    count = len(classes(stranger.target, segment))
    print(f"{tried} requests of {count} classes with wrong capabilities refused", flush=True)


def check_replays(stranger, messages):
    """The client has started again. What was recorded before is sent once more."""
    counts = collections.Counter()
    with stranger.dial() as connection:
        for operation, recorded in sorted(messages.items()):
            if operation in HARMLESS:
                continue
            for message in recorded[:200]:
                connection.sendall(message)
                counts[operation] += 1
                if operation in (FRAGMENT, GIVE_UP):
                    # They get no answer, and are of no write.
                    continue
                kind, answer, _ = reply(connection)
                refused = kind == FENCED or (operation, kind) == (FENCE, IN_USE)
                check(refused, f"a replay of operation {operation}: {kind} {answer!r}")
        connection.sendall(request(IDENTIFY, capability(bytes(16), 0, 0)))
        check(reply(connection)[0] == STAT, "the node does not answer after the replays")
    check(counts[FRAGMENT] > 0, "no write went in fragments")
    passed_on = {JOURNAL_APPEND + ROUTED, SHARD_WRITE + STREAMED}
    check(passed_on <= set(counts), f"only these were recorded: {dict(counts)}")
    print(f"{sum(counts.values())} replays refused, by operation: {dict(counts)}", flush=True)


class Tenant:
    """A volume of the stranger's own on the node: it may write there."""

    def __init__(self, stranger, volume):
        self.stranger, self.volume = stranger, volume
        self.capability = capability(stranger.secret, volume, 1)
        self.connection = stranger.dial()
        self.ask(FENCE, b"\0", VOLUME_STATE)
        self.ask(ADMIT_RELAYS, struct.pack("<Q", 1), DONE)

    def ask(self, operation, body, wanted):
        message = request(operation, self.capability + body, b"", 1, version(operation))
        self.connection.sendall(message)
        kind, answer, _ = reply(self.connection)
        check(kind == wanted, f"operation {operation} of a tenant: {kind} {answer!r}")

    def contribution(self, segment, column, count, tag, payload=ZEROES, payload_crc=ZERO_CRC):
        """What data node `column` of `count` adds to a parity shard on the node."""
        target = self.stranger.target
        way = route(PRIMARY, 1, (target ^ 1, target), passes=1)
        way += struct.pack("<BB", column, count) + ONE_FACTOR
        body = way + shard_write(segment, [SUM] * (len(payload) // BLOCK))
        operation, body = SHARD_WRITE + STREAMED, self.capability + body
        return request(operation, body, payload, tag, version(operation), payload_crc)

    def begin(self, segment, tag):
        """The request of a write in fragments; none of them follows."""
        target = self.stranger.target
        way = route(PRIMARY, 0, (target,)) + struct.pack("<I", BEGUN_BYTES)
        body = self.capability + way + shard_write(segment, [])
        return request(SHARD_WRITE + ROUTED, body, b"", tag, IN_FRAGMENTS)

    def remove(self):
        self.ask(REMOVE_VOLUME, b"", DONE)
        self.connection.close()


def begin_sums(stranger, tenants):
    """Sums that never get their other contributions. Returns the connections."""
    payload = bytes(MIB)
    payload_crc = crc32c(payload)
    connections = [stranger.dial() for _ in tenants]
    for tenant, connection in zip(tenants, connections):
        for segment in range(SUMS):
            message = tenant.contribution(segment, 0, 2, segment, payload, payload_crc)
            connection.sendall(message)
    return connections


def taken_sums(connections):
    """How many of these sums the node has taken. It has denied the others at once, and answers
    those that it took when it gives them up."""
    taken = 0
    for connection in connections:
        for _ in range(SUMS):
            kind, answer, _ = reply(connection)
            check(kind == OUTCOMES, f"the answer is {kind} {answer!r}")
            error = struct.unpack_from("<IHB", answer)[2]
            check(error in (NOT_PASSED_ON, BUSY), f"the outcome is {error}")
            taken += error == BUSY
        connection.close()
    check(0 < taken < SUMS * len(connections), f"{taken} sums: tenants have no bound")
    return taken


def check_exhausted_memory(stranger):
    """Tenants use the memory for sums up, and their machine is silent from then on. What they took
    comes back by time. The client is idle: it needs memory for sums, too."""
    network = stranger.cluster.network
    tenants = [Tenant(stranger, 1000 + index) for index in range(5)]
    connections = begin_sums(stranger, tenants)
    network.unplug("stranger")
    time.sleep(GATHER_SECONDS + 1)
    network.plug("stranger")
    first = taken_sums(connections)
    second = taken_sums(begin_sums(stranger, tenants))
    print(f"sums that the node took: {first}, and {second} after they were given up", flush=True)
    # More, if the machine is slow: the node gives up the first ones before the last ones come.
    check(min(first, second) >= SUMS_OF_MEMORY, "memory for parity has leaked")
    for tenant in tenants:
        tenant.remove()


def check_unfinished_writes(stranger, with_bytes):
    """A tenant begins writes in fragments, and never ends them. Their memory comes back by time."""
    tenant = Tenant(stranger, 3000)
    connection = tenant.connection
    payload = bytes(64 << 10)
    part = fragment(0, payload, SUM * (len(payload) // BLOCK), crc32c(payload))
    before, most = stranger.resident(), 0
    taken = []
    for _ in range(2):
        began = time.monotonic()
        for segment in range(BEGUN):
            connection.sendall(tenant.begin(segment, segment))
        for segment in range(BEGUN if with_bytes else 0):
            # Each write lacks one fragment.
            tagged = bytearray(part)
            struct.pack_into("<Q", tagged, 8, segment)
            struct.pack_into("<I", tagged, HEADER.size, crc32c(tagged[: HEADER.size]))
            connection.sendall(tagged * (BEGUN_BYTES // len(payload) - 1))
        most = max(most, stranger.resident())
        answers = collections.Counter()
        for _ in range(BEGUN):
            kind, answer, _ = reply(connection)
            error = struct.unpack_from("<IHB", answer)[2] if kind == OUTCOMES else kind
            check(error == BUSY, f"the answer to an unfinished write is {kind} {answer!r}")
            answers[kind] += 1
        seconds = time.monotonic() - began
        check(seconds < 60, f"unfinished writes are given up after {seconds} s")
        taken.append(answers[OUTCOMES])
    grown = most - before
    print(
        f"unfinished writes that the node took: {taken[0]}, and {taken[1]} after they were given "
        f"up; {grown / MIB:.1f} MiB more",
        flush=True,
    )
    check(all(0 < count < BEGUN for count in taken), "payloads have no bound")
    check(abs(taken[0] - taken[1]) <= 8, "memory for payloads has leaked")
    check(grown < (256 * MIB if with_bytes else 0) + GROWTH_MAX, f"{grown} bytes more")
    tenant.remove()


def check_flood(stranger, requests):
    """Requests that wait for others at the same time, of as many volumes as that needs. The node
    takes what its table holds, denies the rest at once, and answers all of them in the end."""
    of_each = GATHERING_PER_VOLUME_MAX
    tenants = [Tenant(stranger, 2000 + index) for index in range(-(-requests // of_each))]
    before = stranger.resident()
    answers = collections.Counter()
    most = [before]
    lock = threading.Lock()
    began = time.monotonic()

    def send(tenant, count, connection):
        # 15 of 16 contributions: no sum is ever complete.
        messages = [
            tenant.contribution(number // 15, number % 15, 16, number) for number in range(count)
        ]
        connection.sendall(b"".join(messages))

    def take(count, connection):
        for _ in range(count):
            kind, _, _ = reply(connection)
            with lock:
                answers[kind] += 1

    def flood(part):
        left = requests
        for index, tenant in enumerate(tenants):
            count = min(of_each, left)
            left -= count
            if index % 4 != part:
                continue
            connection = stranger.dial()
            reader = threading.Thread(target=take, args=(count, connection))
            reader.start()
            readers.append((reader, connection))
            send(tenant, count, connection)
            most.append(stranger.resident())

    readers = []
    senders = [threading.Thread(target=flood, args=(part,)) for part in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    sent_seconds = time.monotonic() - began
    while any(reader.is_alive() for reader, _ in readers) and time.monotonic() - began < 120:
        most.append(stranger.resident())
        time.sleep(0.2)
    for _, connection in readers:
        connection.close()
    grown = max(most) - before
    print(
        f"{requests} requests in {sent_seconds:.1f} s: {dict(answers)}; {grown / MIB:.1f} MiB more",
        flush=True,
    )
    check(sum(answers.values()) == requests, f"{sum(answers.values())} were answered")
    check(set(answers) <= {BUSY, OUTCOMES}, f"answers: {dict(answers)}")
    check(answers[OUTCOMES] >= REQUESTS_MAX / 2, "the node denied too many")
    check(answers[BUSY] > 0, "the table has no bound")
    check(grown < GROWTH_MAX, f"the node has taken {grown / MIB:.1f} MiB")
    for tenant in tenants:
        tenant.remove()


def fall_silent(stranger, volume, epoch):
    """Opens connections that say nothing more behind the header of a write, or in the middle."""
    body = capability(stranger.secret, volume, epoch) + shard_write(1 << 40 | 1, [SUM] * 256)
    message = request(SHARD_WRITE, body, bytes(MIB), 1, 2, 0)
    connections = []
    for cut in (HEADER.size + 4, HEADER.size + 4 + len(body), 512 << 10):
        for _ in range(40):
            connection = stranger.dial()
            connection.sendall(message[:cut])
            connections.append(connection)
    return connections


def scenario(world):
    is_long = world.case.nodes == "long"
    rng = random.Random(11)
    cluster, taps = tapped(world, "both")
    # It gets records from another node.
    stranger = Stranger(cluster, cluster.status()["journal_nodes"][1])
    ledger = Ledger(SIZE // BLOCK, rng.randrange(1 << 30))
    load(ledger, cluster.uri, 2)()
    status = cluster.status()
    volume, epoch = int(status["id"], 16), status["epoch"]
    check(status["parities_streamed"] > 0 and status["appends_relayed"] > 0, "nothing is passed on")

    finish = load(ledger, cluster.uri, 3)
    check_forgeries(stranger, volume, epoch)
    finish()
    ledger.verify(cluster.uri)
    status = cluster.status()
    check(status["protection"] == "healthy", "a node was given up")

    cluster.server.stop()
    messages = taps[stranger.target].messages()
    taps.clear()
    cluster.see_at({})
    cluster.serve()
    finish = load(ledger, cluster.uri, 4)
    check_replays(stranger, messages)
    finish()
    ledger.verify(cluster.uri)

    check_exhausted_memory(stranger)
    ledger.verify(cluster.uri)

    check_unfinished_writes(stranger, is_long)
    ledger.verify(cluster.uri)

    silent = fall_silent(stranger, volume, cluster.status()["epoch"])
    finish = load(ledger, cluster.uri, 20 if is_long else 8)
    begun = ledger.writes
    check_flood(stranger, FLOOD if is_long else 4 * REQUESTS_MAX)
    finish()
    check(ledger.writes > begun, "the client wrote nothing meanwhile")
    for connection in silent:
        connection.close()
    cluster.wait_until_whole()
    ledger.verify(cluster.uri)

    def passes_on():
        before = cluster.status()
        load(ledger, cluster.uri, 1)()
        after = cluster.status()
        keys = ("appends_relayed", "parities_streamed")
        return all(after[key] > before[key] for key in keys)

    wait_until("nodes pass writes on again", passes_on, seconds=90)
    ledger.verify(cluster.uri)
    cluster.stop()


main(scenario, [Case("both", "processes")], computes=True, long=[Case("both", "long")])
