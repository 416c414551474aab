"""A writer that knows what a device must hold after a crash, and checks it.

The device is cut into 4 KiB blocks. Every version of a block that is ever written carries the
block's number, a version that rises with every write to the device, and a checksum. Per block the
ledger keeps what may be read:

- the version that was last acknowledged, and
- the versions issued after that and not acknowledged when the server died.

At most one request per block is in flight, so nothing else is possible: an older version is a lost
write, one from the future or of another block is nonsense, and a block whose checksum is wrong was
torn. What has been read once after a crash must stay: a write that was in flight is there or it is
not, but it does not change its mind.

Two strengths. A write that was acknowledged survives the death of the processes. A write that a
FLUSH or FUA has covered survives that of the machine. `stable_only` asks for the second alone.
"""

import collections
import random
import struct
import zlib

from device import BLOCK, connect, nbd
from world import Failure, check

HEADER = struct.Struct("<4sIQQ")
MAGIC = b"blok"
# Blocks of one request at most: more than a row of any case, so that some go around the journal.
SPAN_MAX = 96
NOISE = random.Random(0).randbytes(256 << 10)


def make_block(number, version, seed):
    """The content of version `version` of block `number`."""
    head = HEADER.pack(MAGIC, seed, number, version)
    length = BLOCK - len(head) - 4
    start = (version * 7919 + number * 104_729) % (len(NOISE) - length)
    body = head + NOISE[start : start + length]
    return body + struct.pack("<I", zlib.crc32(body))


def read_version(block, number):
    """The version that `block` holds; 0 for zeroes. Anything else is a failure."""
    if block == bytes(BLOCK):
        return 0
    magic, _, found, version = HEADER.unpack_from(block)
    check(magic == MAGIC, f"block {number} holds nonsense: {block[:24].hex()}")
    check(found == number, f"block {number} holds what was written to block {found}")
    (crc,) = struct.unpack_from("<I", block, BLOCK - 4)
    check(zlib.crc32(block[:-4]) == crc, f"block {number} is torn: version {version}, wrong checksum")
    return version


class Ledger:
    """What each block of a device may hold."""

    def __init__(self, blocks, seed):
        self.blocks, self.seed = blocks, seed
        self.dice = random.Random(seed)
        self.next_version = 1
        # Version 0 is a block of zeroes, as at first and after zeroing. A zeroing has a version of
        # its own here, and `zeroed` says which versions read as zeroes.
        self.acknowledged = [0] * blocks
        self.stable = [0] * blocks
        self.issued = collections.defaultdict(list)
        self.zeroed = set()
        self.writes = self.flushes = 0

    def load(self, uri, depth, stop, on_progress=None):
        """Writes until the connection dies or `stop()` says so. True if the connection died."""
        handle = connect(uri)
        busy, running = set(), {}
        try:
            while not stop():
                while len(running) < depth:
                    self._issue(handle, busy, running)
                handle.poll(1)
                self._retire(handle, busy, running)
                if on_progress:
                    on_progress(self)
            while running:
                handle.poll(100)
                self._retire(handle, busy, running)
            handle.shutdown()
            return False
        except nbd.Error as error:
            if not (handle.aio_is_dead() or handle.aio_is_closed()):
                raise Failure(f"a request failed while the server lives: {error}") from error
            return True

    def _issue(self, handle, busy, running):
        if self.dice.random() < 0.02:
            # Covers what has been acknowledged before it is sent.
            covered = list(self.acknowledged)
            running[handle.aio_flush()] = ("flush", covered)
            return
        span = self.dice.choice([1, 1, 1, 2, 4, SPAN_MAX])
        for _ in range(20):
            first = self.dice.randrange(self.blocks - span + 1)
            numbers = range(first, first + span)
            if busy.isdisjoint(numbers):
                break
        else:
            return
        busy.update(numbers)
        version = self.next_version
        self.next_version += 1
        for number in numbers:
            self.issued[number].append(version)
        kind = self.dice.random()
        fua = nbd.CMD_FLAG_FUA if self.dice.random() < 0.05 else 0
        if kind < 0.08:
            self.zeroed.add(version)
            command = handle.aio_trim if kind < 0.04 else handle.aio_zero
            cookie = command(span * BLOCK, first * BLOCK, flags=fua)
        else:
            data = b"".join(make_block(number, version, self.seed) for number in numbers)
            cookie = handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), first * BLOCK, flags=fua)
        running[cookie] = ("write", numbers, version, bool(fua))

    def _retire(self, handle, busy, running):
        while running and (cookie := handle.aio_peek_command_completed()) > 0:
            what = running.pop(cookie)
            handle.aio_command_completed(cookie)
            if what[0] == "flush":
                self.flushes += 1
                self.stable = [max(pair) for pair in zip(self.stable, what[1])]
                continue
            _, numbers, version, fua = what
            self.writes += 1
            busy.difference_update(numbers)
            for number in numbers:
                self.acknowledged[number] = version
                self.issued[number] = []
                if fua:
                    self.stable[number] = version

    def verify(self, uri, stable_only=False):
        """Reads all of the device twice; afterwards what was read is what must stay."""
        handle = connect(uri)
        first = [self._verify_block(handle, at, stable_only) for at in range(0, self.blocks, 256)]
        for at, versions in zip(range(0, self.blocks, 256), first):
            check(self._read(handle, at) == versions, f"blocks at {at} change between two reads")
        handle.shutdown()
        self.acknowledged = [version for part in first for version in part]
        self.stable = list(self.acknowledged)
        self.issued.clear()

    def _read(self, handle, first):
        count = min(256, self.blocks - first)
        data = bytes(handle.pread(count * BLOCK, first * BLOCK))
        return [
            self._canonical(read_version(data[i * BLOCK : (i + 1) * BLOCK], first + i), first + i)
            for i in range(count)
        ]

    def _canonical(self, version, number):
        """Zeroes stand for the newest zeroing that may be read, if there is one."""
        if version != 0:
            return version
        allowed = [self.acknowledged[number], *self.issued[number]]
        zeroes = [candidate for candidate in allowed if candidate == 0 or candidate in self.zeroed]
        return max(zeroes, default=0)

    def _verify_block(self, handle, first, stable_only):
        versions = self._read(handle, first)
        for number, version in enumerate(versions, first):
            floor = self.stable[number] if stable_only else self.acknowledged[number]
            allowed = {self.acknowledged[number], *self.issued[number]}
            if stable_only:
                check(version >= floor, self._text(number, version))
            else:
                check(version in allowed, self._text(number, version))
        return versions

    def _text(self, number, version):
        return (
            f"block {number} holds version {version}; acknowledged was {self.acknowledged[number]}, "
            f"flushed {self.stable[number]}, in flight {self.issued[number]}"
        )
