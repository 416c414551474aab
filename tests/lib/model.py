"""A device as a row of bytes, and random requests that change both the device and the row.

Requests have any alignment that the device allows, and lengths from one block to several objects of
an image. Some wait for each other, most are sent together where their ranges do not meet.
"""

import random

from device import connect, finish, nbd
from ledger import ANSWER_SECONDS
from world import MIB, check

# Lengths of requests; trims and zeroes are often of a whole object.
LENGTHS = [512, 4096, 4096, 12 << 10, 64 << 10, 300 << 10]
LONG_LENGTHS = [4096, 64 << 10, MIB, 2 * MIB, 5 * MIB]
TOGETHER = 8
STEP = 2 * MIB


def read_all(handle):
    """All bytes of a device."""
    size = handle.get_size()
    return b"".join(
        bytes(handle.pread(min(STEP, size - at), at)) for at in range(0, size, STEP)
    )


class Model:
    """What a device of `size` bytes must hold.

    Requests have whole multiples of `grain` bytes: of parts of a block, a trim zeroes nothing.
    """

    def __init__(self, size, seed, grain=512):
        self.data, self.rng, self.grain = bytearray(size), random.Random(seed), grain

    def work(self, uri, count):
        """Sends `count` requests, some at a time, and checks what is read; flushes at the end."""
        handle = connect(uri, seconds=ANSWER_SECONDS)
        grain = max(self.grain, handle.get_block_size(nbd.SIZE_MINIMUM))
        while count > 0:
            batch, ranges = [], []
            for _ in range(min(count, self.rng.choice([1, 2, TOGETHER]))):
                kind = self.rng.choices(["write", "read", "trim", "zero"], [5, 2, 2, 2])[0]
                at, length = self._place(kind, grain)
                if all(at + length <= first or at >= end for first, end in ranges):
                    ranges.append((at, at + length))
                    batch.append(self._send(handle, kind, at, length))
                count -= 1
            for cookie, what, buffer, expected in batch:
                finish(handle, cookie, ANSWER_SECONDS, what)
                check(expected is None or bytes(buffer) == expected, f"{what} gives other bytes")
        finish(handle, handle.aio_flush(), ANSWER_SECONDS, "a flush")
        found = read_all(handle)
        same = found == bytes(self.data)
        at = None if same else next(i for i, byte in enumerate(found) if byte != self.data[i])
        check(same, f"the device is not as the model, first at {at}")
        handle.shutdown()

    def _place(self, kind, grain):
        lengths = LENGTHS if kind in ("write", "read") else LONG_LENGTHS
        length = max(grain, self.rng.choice(lengths) // grain * grain)
        # Often at the start of an object, or at its end.
        at = self.rng.randrange(0, len(self.data), self.rng.choice([grain, grain, MIB]))
        if self.rng.random() < 0.2:
            at -= length
        at = max(0, min(at, len(self.data) - length))
        return at // grain * grain, length

    def _send(self, handle, kind, at, length):
        what = f"a {kind} of {length} bytes at {at}"
        if kind == "read":
            buffer = bytearray(length)
            return handle.aio_pread(buffer, at), what, buffer, bytes(self.data[at : at + length])
        if kind == "write":
            buffer = bytearray(self.rng.randbytes(length))
            self.data[at : at + length] = buffer
            return handle.aio_pwrite(buffer, at), what, buffer, None
        self.data[at : at + length] = bytes(length)
        send = handle.aio_trim if kind == "trim" else handle.aio_zero
        # Some zeroes must keep their space.
        flags = nbd.CMD_FLAG_NO_HOLE if kind == "zero" and self.rng.random() < 0.5 else 0
        return send(length, at, flags=flags), what, None, None
