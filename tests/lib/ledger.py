"""A client that knows what a device must hold after a crash, and checks it.

The device is cut into 4 KiB blocks. Every version of a block that is ever written carries the
block's number, the device's seed, a version that rises with every write to the device, and a
checksum. Per block the ledger knows

- the last acknowledged version: an older one is a lost write;
- the stable version, which a FLUSH or FUA has covered: the power may fail, and it stays;
- all versions issued since the stable one.

At most one write per block is in flight, so the versions of a block are written in their order. A
block may hold the last acknowledged version, or one issued after that and not answered, or answered
with ENOSPC. Nothing else is possible: a version from the future or of another block is nonsense,
and a block whose checksum is wrong was torn. What has been read once after a crash must stay: a write
that was in flight is there or it is not, but it does not change its mind.

Two strengths. A write that was acknowledged survives the death of the processes. A write that a
FLUSH or FUA has covered survives that of the machine: `power_failed` says that it died.
"""

import collections
import random
import struct
import time
import zlib

from device import BLOCK, ConnectionBroke, connect, finish, nbd
from pulse import stalled_seconds
from world import Failure, check

HEADER = struct.Struct("<4sIQQ")
MAGIC = b"blok"
# Blocks of one request at most: more than a row of any case, so that some go around the journal.
SPAN_MAX = 96
# Blocks that verification reads at once.
READ_BLOCKS = 256
# How long a request may take. A node that does not answer is given up after 10 s.
ANSWER_SECONDS = 45
NOISE = random.Random(0).randbytes(256 << 10)

# The version of a block that holds what the device held before the first write, if not zeroes.
AT_FIRST = -1

# Shares of the requests of a load.
Mix = collections.namedtuple("Mix", ["flush", "read", "trim", "zero", "fua"])
WRITES = Mix(flush=0.02, read=0.0, trim=0.04, zero=0.04, fua=0.05)


def make_block(number, version, seed):
    """The content of version `version` of block `number`."""
    head = HEADER.pack(MAGIC, seed, number, version)
    length = BLOCK - len(head) - 4
    start = (version * 7919 + number * 104_729) % (len(NOISE) - length)
    body = head + NOISE[start : start + length]
    return body + struct.pack("<I", zlib.crc32(body))


def read_version(block, number, seed):
    """The version that `block` holds; 0 for zeroes. Anything else is a failure."""
    if block == bytes(BLOCK):
        return 0
    magic, found_seed, found, version = HEADER.unpack_from(block)
    check(magic == MAGIC, f"block {number} holds nonsense: {block[:24].hex()}")
    check(
        (found_seed, found) == (seed, number),
        f"block {number} of device {seed} holds block {found} of device {found_seed}",
    )
    (crc,) = struct.unpack_from("<I", block, BLOCK - 4)
    check(zlib.crc32(block[:-4]) == crc, f"block {number} is torn, version {version}")
    return version


class Request:
    """A request in flight. `numbers` are its blocks; `versions` what was acknowledged when a read
    was sent; `covers` what a flush covers."""

    def __init__(self, kind, numbers=(), version=0, fua=False, buffer=None, before=None):
        self.kind, self.numbers, self.version, self.fua = kind, numbers, version, fua
        self.buffer, self.before = buffer, before
        self.sent, self.stalled = time.monotonic(), stalled_seconds()

    def __str__(self):
        place = f" of {len(self.numbers)} blocks at {self.numbers[0]}" if self.numbers else ""
        return f"{self.kind}{place}"


class Ledger:
    """What each block of a device may hold, and a client that reads and writes it."""

    def __init__(self, blocks, seed, at_first=b""):
        """`at_first`: the device's bytes before the first write, for example those of the parent
        of a clone; zeroes follow."""
        self.blocks, self.seed = blocks, seed
        self.at_first = at_first.ljust(blocks * BLOCK, b"\0")
        self.rng = random.Random(seed)
        self.next_version = 1
        # Version 0 is a block of zeroes, as at first and after zeroing. A zeroing has a version of
        # its own here, and `zeroed` says which versions read as zeroes.
        self.acknowledged = [
            AT_FIRST if self._block_at_first(number) != bytes(BLOCK) else 0
            for number in range(blocks)
        ]
        self.stable = list(self.acknowledged)
        # The versions issued after the stable one, in their order, acknowledged or not.
        self.issued = collections.defaultdict(list)
        self.zeroed = {0}
        # Zeroes are older than the content at first, until the block is zeroed.
        self.last_zeroed = [0 if version == 0 else AT_FIRST - 1 for version in self.stable]
        self.writes = self.flushes = self.reads = self.full = self.verified = 0
        self.slowest = 0.0

    def _block_at_first(self, number):
        return self.at_first[number * BLOCK : (number + 1) * BLOCK]

    def _read_version(self, block, number):
        """The version that `block` holds; 0 for zeroes."""
        if block != bytes(BLOCK) and block == self._block_at_first(number):
            return AT_FIRST
        return read_version(block, number, self.seed)

    def live_blocks(self):
        """How many blocks hold data, as far as was acknowledged."""
        return sum(version not in self.zeroed for version in self.acknowledged)

    def power_failed(self):
        """The machine has lost its power: what no flush has covered may be gone."""
        self.acknowledged = list(self.stable)

    def load(self, uri, depth, stop, mix=WRITES, full=False, late=ANSWER_SECONDS):
        """Sends requests until the connection dies or `stop()` says so. True if it died.

        Writes may fail with ENOSPC if `full`. A request that takes longer than `late` seconds
        fails the case, as do all other errors.
        """
        try:
            handle = connect(uri, seconds=late)
        except ConnectionBroke:
            return True
        busy, running = set(), {}
        while True:
            stopped = stop()
            if stopped and not running:
                break
            try:
                while not stopped and len(running) < depth:
                    self._issue(handle, busy, running, mix)
                handle.poll(10)
            except nbd.Error as error:
                return self._died(handle, error)
            if self._retire(handle, busy, running, full):
                return True
            self._check_late(running, late)
        try:
            handle.shutdown()
        except nbd.Error as error:
            return self._died(handle, error)  # killed after its last answer
        return False

    def _died(self, handle, error):
        if handle.aio_is_dead() or handle.aio_is_closed():
            return True
        raise Failure(f"a request failed while the server lives: {error}") from error

    def _check_late(self, running, late):
        oldest = next(iter(running.values()), None)
        if oldest is not None:
            waited = time.monotonic() - oldest.sent
            stalled = stalled_seconds() - oldest.stalled
            check(waited - stalled < late, f"no answer to a {oldest} for {waited:.0f} s")

    def _issue(self, handle, busy, running, mix):
        draw = self.rng.random()
        if draw < mix.flush:
            # Covers what has been acknowledged before it is sent.
            running[handle.aio_flush()] = Request("flush", before=list(self.acknowledged))
            return
        reads = draw < mix.flush + mix.read
        span = self.rng.choice([1, 1, 1, 2, 4, SPAN_MAX])
        for _ in range(20):
            first = self.rng.randrange(self.blocks - span + 1)
            numbers = range(first, first + span)
            if reads or busy.isdisjoint(numbers):
                break
        else:
            return
        if reads:
            request = Request("read", numbers, buffer=bytearray(span * BLOCK))
            request.before = self.acknowledged[first : first + span]
            running[handle.aio_pread(request.buffer, first * BLOCK)] = request
            return
        busy.update(numbers)
        cookie, request = self._change(handle, numbers, mix)
        running[cookie] = request

    def begin(self, numbers, zeroes=False):
        """A change of these blocks is sent; returns its version. Until `done` it may be there."""
        version = self.next_version
        self.next_version += 1
        for number in numbers:
            self.issued[number].append(version)
        if zeroes:
            self.zeroed.add(version)
            self.last_zeroed[numbers[0] : numbers[-1] + 1] = [version] * len(numbers)
        return version

    def done(self, numbers, version, stable=False):
        """A change of these blocks is acknowledged; it may be stable already."""
        self.writes += 1
        for number in numbers:
            self.acknowledged[number] = version
            if stable:
                self.stable[number] = version
                self.issued.pop(number, None)

    def _change(self, handle, numbers, mix):
        kind = self.rng.random()
        version = self.begin(numbers, zeroes=kind < mix.trim + mix.zero)
        fua = self.rng.random() < mix.fua
        flags = nbd.CMD_FLAG_FUA if fua else 0
        at, length = numbers[0] * BLOCK, len(numbers) * BLOCK
        if kind < mix.trim + mix.zero:
            name = "trim" if kind < mix.trim else "zero"
            command = handle.aio_trim if name == "trim" else handle.aio_zero
            return command(length, at, flags=flags), Request(name, numbers, version, fua)
        buffer = bytearray().join(make_block(number, version, self.seed) for number in numbers)
        cookie = handle.aio_pwrite(buffer, at, flags=flags)
        return cookie, Request("write", numbers, version, fua, buffer)

    def _retire(self, handle, busy, running, full):
        """Takes the answers that are there. True if the connection died."""
        while running and (cookie := handle.aio_peek_command_completed()) > 0:
            request = running.pop(cookie)
            try:
                handle.aio_command_completed(cookie)
            except nbd.Error as error:
                if error.errno == "ENOSPC" and request.kind != "trim" and full:
                    # Possible for each of its blocks, until a later write replaces it.
                    self.full += 1
                    busy.difference_update(request.numbers)
                    continue
                if error.errno in ("ENOTCONN", "ESHUTDOWN") or handle.aio_is_dead():
                    return True
                raise Failure(f"a {request} failed while the server lives: {error}") from error
            self.slowest = max(self.slowest, time.monotonic() - request.sent)
            self._answered(request, busy)
        return False

    def _answered(self, request, busy):
        if request.kind == "flush":
            self.flushes += 1
            self._stabilise(request.before)
        elif request.kind == "read":
            self.reads += 1
            self._check_read(request)
        else:
            busy.difference_update(request.numbers)
            self.done(request.numbers, request.version, stable=request.fua)

    def _stabilise(self, covered):
        """A flush has covered these versions."""
        self.stable = [max(pair) for pair in zip(self.stable, covered)]
        for number in list(self.issued):
            floor = self.stable[number]
            left = [version for version in self.issued[number] if version > floor]
            if left:
                self.issued[number] = left
            else:
                del self.issued[number]

    def _check_read(self, request):
        """A read under load gives what was acknowledged when it was sent, or something newer."""
        data = bytes(request.buffer)
        for index, (number, floor) in enumerate(zip(request.numbers, request.before)):
            block = data[index * BLOCK : (index + 1) * BLOCK]
            version = self._read_version(block, number)
            newest = self.last_zeroed[number] if version == 0 else version
            check(newest >= floor, f"a read of {self._text(number, version)} gave an old version")

    def verify(self, uri, part=1.0, flush=True):
        """Reads a part of the device twice; afterwards what was read is what must stay. The flush
        at the end makes it stable."""
        handle = connect(uri, seconds=ANSWER_SECONDS)
        places = [at for at in range(0, self.blocks, READ_BLOCKS) if self.rng.random() < part]
        read = {at: self._read(handle, at) for at in places}
        for at, versions in read.items():
            for number, version in enumerate(versions, at):
                check(version in self._allowed(number), self._text(number, version))
            check(self._read(handle, at) == versions, f"blocks at {at} change between two reads")
        for at, versions in read.items():
            for number, version in enumerate(versions, at):
                self.acknowledged[number] = version
                kept = [older for older in self.issued.pop(number, []) if older <= version]
                if kept:
                    self.issued[number] = kept
            self.verified += len(versions)
        if flush:
            finish(handle, handle.aio_flush(), ANSWER_SECONDS, "a flush")
            self._stabilise(self.acknowledged)
        handle.shutdown()

    def _allowed(self, number):
        floor = self.acknowledged[number]
        return {floor, *(version for version in self.issued.get(number, ()) if version > floor)}

    def _read(self, handle, first):
        count = min(READ_BLOCKS, self.blocks - first)
        buffer = bytearray(count * BLOCK)
        what = f"a read of {count} blocks at {first}"
        finish(handle, handle.aio_pread(buffer, first * BLOCK), ANSWER_SECONDS, what)
        data = bytes(buffer)
        return [
            self._canonical(
                self._read_version(data[i * BLOCK : (i + 1) * BLOCK], first + i), first + i
            )
            for i in range(count)
        ]

    def _canonical(self, version, number):
        """Zeroes stand for the newest zeroing that may be read, if there is one."""
        if version != 0:
            return version
        return max(self._allowed(number) & self.zeroed, default=0)

    def _text(self, number, version):
        return (
            f"block {number} holds version {version}; "
            f"acknowledged was {self.acknowledged[number]}, flushed {self.stable[number]}, issued since {self.issued.get(number, [])}, "
            f"zeroed last {self.last_zeroed[number]}"
        )
