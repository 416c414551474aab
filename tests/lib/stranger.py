"""A machine that listens in between nodes, a machine that attacks one, and requests as they go over
the wire.

    tap = Tap(world, cluster.network, "tap", TAP_PORT, target)
    stranger = Stranger(cluster, 2)
    stranger.dial().sendall(tap.messages()[JOURNAL_APPEND][0])

It follows docs/formats.md; nothing here shares code with what is tested.
"""

import collections
import pathlib
import socket
import struct
import threading

from cluster import PORT, Cluster
from formats import HEADER, crc32c, request, resealed
from ledger import BLOCK
from world import MIB, check

# Operations of the wire, and what is added for routes, columns, tables and parts.
FENCE, PUT_ROOT, JOURNAL_CREATE, JOURNAL_APPEND, JOURNAL_SYNC, JOURNAL_READ = range(2, 8)
JOURNAL_DELETE, SHARD_WRITE, SHARD_SYNC, SHARD_READ, SHARD_VERIFY, SHARD_DELETE = range(8, 14)
SHARD_LIST, REMOVE_VOLUME, ASK_STATE, RESERVE, RENEW_RECORD, ADMIT_RELAYS = range(14, 20)
IDENTIFY, LIST_VOLUMES, FRAGMENT, GIVE_UP = 0, 1, 20, 21
ROUTED, STREAMED, TABLED, PARTED = 64, 128, 160, 192
# Requests that change nothing. All others are of a writer, and need its epoch.
HARMLESS = {
    IDENTIFY, LIST_VOLUMES, JOURNAL_READ, SHARD_READ, SHARD_VERIFY, SHARD_LIST, ASK_STATE,
}

# Kinds of replies.
DONE, STAT, VOLUME_STATE, OUTCOMES, REFUSED, FENCED, IN_USE, NOT_FOUND = 0, 2, 4, 6, *range(128, 132)
NO_SPACE, BUSY, INVALID, NOT_PASSED_ON = 133, 134, 135, 138
# Strategies of routes.
RING, TREE, PRIMARY = 1, 2, 3
# Everybody sees node i at this port and the i behind it, on a machine that listens in.
TAP_PORT = 7701
KEPT_BYTES = 256 * MIB
# Where a request has its epoch: behind header and checksum, and behind the volume.
EPOCH_AT = HEADER.size + 4 + 16
# How long a parity node waits for contributions: half of what the route says.
GATHER_SECONDS = 5
# The version of the protocol that has fragments.
IN_FRAGMENTS = 7


def version(operation):
    """The version of the protocol that added it."""
    if operation in (FRAGMENT, GIVE_UP):
        return IN_FRAGMENTS
    if operation < ROUTED:
        return 3 if operation == ADMIT_RELAYS else 2
    added = ((PARTED, 5), (TABLED, 6), (STREAMED, 4), (ROUTED, 3))
    return next(version for first, version in added if operation >= first)


def text(data):
    return struct.pack("<I", len(data)) + data


class Tap:
    """Between a node and all that send to it: it passes everything on, and keeps what comes."""

    # Of all taps together.
    kept_bytes = 0

    def __init__(self, world, network, machine, port, target):
        self.network, self.machine, self.target = network, machine, target
        self.address = f"tcp:{network.addresses[machine]}:{port}"
        self.recorded = []
        self.listener = network.socket(machine)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((network.addresses[machine], port))
        self.listener.listen(64)
        world.closers.append(self.listener.close)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = self.network.socket(self.machine)
                far.connect(self.target)
            except OSError:
                near.close()
                continue
            stream = bytearray()
            self.recorded.append(stream)
            for source, sink, kept in ((near, far, stream), (far, near, None)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=pump, args=(source, sink, kept), daemon=True).start()

    def messages(self):
        """The messages that were recorded, by operation."""
        found = collections.defaultdict(list)
        for stream in self.recorded:
            for _, operation, _, message in cut(stream):
                found[operation].append(message)
        return found

    def requests(self, epoch):
        """The requests at this epoch that were recorded whole, each a list of messages, because
        fragments may follow. They are sorted by operation, and by whether fragments follow."""
        found = collections.defaultdict(list)
        for stream in self.recorded:
            coming = {}
            for spoken, operation, tag, message in cut(stream):
                if operation in (FRAGMENT, GIVE_UP):
                    coming.get(tag, []).append(message)
                    continue
                coming[tag] = [message]
                if struct.unpack_from("<Q", message, EPOCH_AT)[0] == epoch:
                    found[operation, spoken == IN_FRAGMENTS].append(coming[tag])
        return found

    @classmethod
    def forget(cls, taps):
        """Drops what was recorded. Nothing may be on its way."""
        for tap in taps:
            for stream in tap.recorded:
                stream.clear()
        cls.kept_bytes = 0


def cut(stream):
    """The messages that have come whole: version, operation, tag and bytes of each."""
    at = 0
    while at + HEADER.size + 4 <= len(stream):
        _, version, _, operation, tag, _, body, payload, _, _ = HEADER.unpack_from(stream, at)
        end = at + HEADER.size + 4 + body + payload
        if end > len(stream):
            return
        yield version, operation, tag, bytes(stream[at:end])
        at = end


def retagged(messages, tag):
    """A request and its fragments, as bytes, with this tag."""
    parts = []
    for message in map(bytearray, messages):
        struct.pack_into("<Q", message, 8, tag)
        struct.pack_into("<I", message, HEADER.size, crc32c(message[: HEADER.size]))
        parts.append(message)
    return b"".join(parts)


def pump(source, sink, kept):
    try:
        while part := source.recv(1 << 18):
            if kept is not None and Tap.kept_bytes < KEPT_BYTES:
                kept += part
                Tap.kept_bytes += len(part)
            sink.sendall(part)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def tapped(world, way):
    """A cluster with a machine for a stranger, and one that listens in at all nodes. Returns the
    taps as well."""
    taps = []

    def seen_at(cluster):
        for index in range(cluster.count):
            target = (cluster.network.addresses[cluster.machine(index)], PORT)
            taps.append(Tap(world, cluster.network, "tap", TAP_PORT + index, target))
        return {index: tap.address for index, tap in enumerate(taps)}

    return Cluster(world, way, others=["tap", "stranger"], seen_at=seen_at), taps


class Stranger:
    """The machine, what it knows of the pool, and the node that it attacks."""

    def __init__(self, cluster, target):
        self.cluster, self.target = cluster, target
        self.node = cluster.nodes[target]
        self.address = (cluster.network.addresses[cluster.machine(target)], PORT)
        superblock = (cluster.pool.node_path(target) / "superblock").read_bytes()
        check(resealed(superblock[:512]) == superblock[:512], "our own checksum is wrong")
        # A stranger does not know it. With it the test makes what a stranger may have got hold of.
        self.secret = superblock[40:56]

    def dial(self):
        made = self.cluster.network.socket("stranger")
        made.settimeout(30)
        made.connect(self.address)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def resident(self):
        for line in pathlib.Path(f"/proc/{self.node.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) << 10
        raise AssertionError("the node has ended")


def route(strategy, rank, nodes, passes=0):
    replicas = [struct.pack("<HQB", node, passes, at) + text(b"") for at, node in enumerate(nodes)]
    return struct.pack("<BBII", strategy, rank, 2 * GATHER_SECONDS * 1000, len(nodes)) + b"".join(
        replicas
    )


def shard_write(segment, checksums):
    return struct.pack("<QBIBI", segment, 0, 0, 0, len(checksums)) + b"".join(checksums)


ZEROES = bytes(BLOCK)
ZERO_CRC = crc32c(ZEROES)
SUM = struct.pack("<I", ZERO_CRC)


def fragment(tag, payload, checksums, payload_crc):
    """The next bytes of the write with this tag."""
    body = struct.pack("<I", len(checksums) // 4) + checksums
    return request(FRAGMENT, body, payload, tag, IN_FRAGMENTS, payload_crc)
