"""What Python lends: any buffer of bytes, used in place; and what cannot be used is refused."""

import array
import mmap
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray

from fieldstone_codes import Code, CodeError

Bytes = NDArray[numpy.uint8]

CODE = Code("rs:4+2")
DATA = [bytes([i] * 64) for i in range(4)]
PARITY = [bytes(row) for row in CODE.encode(DATA)]


def mapped(content: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(content))
    memory[:] = content
    return memory


KINDS: list[Callable[[bytes], Any]] = [
    bytearray,
    lambda content: memoryview(bytearray(content)),
    lambda content: array.array("B", content),
    lambda content: numpy.frombuffer(bytearray(content), numpy.uint8),
    lambda content: numpy.frombuffer(bytearray(b"xyz" + content), numpy.uint8)[3:],
    lambda content: numpy.frombuffer(bytearray(content), numpy.uint8).reshape(8, 8),
    mapped,
]


@pytest.mark.parametrize("kind", KINDS)
def test_any_writable_buffer_of_bytes_will_do(kind: Callable[[bytes], Any]) -> None:
    parity = [kind(bytes(64)) for _ in range(2)]
    CODE.encode([kind(shard) for shard in DATA], parity)
    assert [bytes(shard) for shard in parity] == PARITY
    out = kind(bytes(64))
    CODE.decode([None, *(kind(shard) for shard in DATA[1:]), kind(PARITY[0]), None], {0: out})
    assert bytes(out) == DATA[0]
    assert CODE.verify([kind(shard) for shard in DATA + PARITY])


def test_buffers_may_come_in_any_iterable() -> None:
    rows = numpy.frombuffer(b"".join(DATA), numpy.uint8).reshape(4, 64)
    iterables: list[Iterable[bytes | Bytes]] = [rows, tuple(rows), iter(DATA), dict(zip(DATA, "0123"))]
    for data in iterables:
        assert [bytes(row) for row in CODE.encode(data)] == PARITY


def test_nothing_is_copied() -> None:
    """Coding 256 MiB in place takes a program that holds them no memory to speak of."""
    program = """
import resource
import numpy
from fieldstone_codes import Code

def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

code = Code("zigzag:4+2")
shards = numpy.ones((6, 256 << 20 >> 2), numpy.uint8)
code.encode(shards[:4, :64], shards[4:, :64])
before = peak_kib()
code.encode(shards[:4], shards[4:])
code.decode([None, None, *shards[2:]], {0: shards[0], 1: shards[1]})
plan = code.repair_plan([0], [1, 2, 3, 4, 5])
plan.execute([row[: len(row) // 2] for row in shards[1:]], shards[:1])
print(peak_kib() - before)
"""
    output = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert int(output.stdout) < 8 << 10


def test_other_threads_run_meanwhile() -> None:
    """A thread that needs the interpreter all the time sees it in the middle of a call."""
    code = Code("jerasure-van:8+3,w=32")
    shards = numpy.ones((11, 8 << 20), numpy.uint8)
    seen: list[float] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        # A machine that is busy may need more than one attempt.
        for _ in range(10):
            began = time.perf_counter()
            code.encode(shards[:8], shards[8:])
            ended = time.perf_counter()
            quarter = (ended - began) / 4
            if any(began + quarter < moment < ended - quarter for moment in seen):
                return
    finally:
        done.set()
        thread.join()
    pytest.fail(f"no other thread ran during calls of {4 * quarter:.3f} s")


def writable(count: int, len_bytes: int = 64) -> list[bytearray]:
    return [bytearray(b"\xee" * len_bytes) for _ in range(count)]


@pytest.mark.parametrize(
    ("error", "message", "data", "parity"),
    [
        (CodeError, "3 data shards were given instead of 4", DATA[:3], writable(2)),
        (CodeError, "3 parity shards were given instead of 2", DATA, writable(3)),
        (CodeError, "shard 3 has 63 bytes instead of 64", [*DATA[:3], DATA[3][1:]], writable(2)),
        (CodeError, "shard 4 has 65 bytes instead of 64", DATA, writable(2, 65)),
        (CodeError, r"parity\[0\] is read-only", DATA, [bytes(64), bytearray(64)]),
        (CodeError, r"data\[1\] is not contiguous", [DATA[0], memoryview(bytes(128))[::2], *DATA[2:]], writable(2)),
        (CodeError, r"parity\[1\] is not contiguous", DATA, [bytearray(64), numpy.zeros((64, 2), numpy.uint8)[:, 0]]),
        (CodeError, r"parity\[0\] is not contiguous", DATA, numpy.broadcast_to(numpy.uint8(0), (2, 64)).copy("F")),
        (TypeError, r"data\[2\] must be a buffer of bytes, not .*list", [*DATA[:2], [1], DATA[3]], writable(2)),
        (TypeError, r"data\[0\] must be a buffer of bytes .* format .d", [numpy.zeros(8), *DATA[1:]], writable(2)),
        (TypeError, r"data\[0\] must be a buffer of bytes, not .*int", bytes(4), writable(2)),
        (TypeError, "not iterable", 7, writable(2)),
    ],
)
def test_what_does_not_fit_is_refused(error: type[Exception], message: str, data: Any, parity: Any) -> None:
    before = [bytes(shard) for shard in parity]
    with pytest.raises(error, match=message):
        CODE.encode(data, parity)
    assert [bytes(shard) for shard in parity] == before


def test_what_is_written_overlaps_nothing() -> None:
    memory = numpy.zeros(1024, numpy.uint8)
    data = [memory[64 * i : 64 * (i + 1)] for i in range(4)]
    with pytest.raises(CodeError, match=r"parity\[1\] overlaps data\[3\]"):
        CODE.encode(data, [memory[512:576], memory[255:319]])
    with pytest.raises(CodeError, match=r"parity\[1\] overlaps parity\[0\]"):
        CODE.encode(data, [memory[512:576], memory[512:576]])
    with pytest.raises(CodeError, match=r"out\[1\] overlaps shards\[0\]"):
        CODE.decode([data[0], None, *data[2:], PARITY[0], None], {1: data[0]})
    # What is only read may be the same memory.
    CODE.encode([data[0]] * 4, [memory[512:576], memory[576:640]])


def test_buffers_are_given_back() -> None:
    """A bytearray that is held by someone refuses to be resized."""
    data, parity = [bytearray(shard) for shard in DATA], writable(2)
    CODE.encode(data, parity)
    with pytest.raises(CodeError):
        CODE.encode(data[:3], parity)
    with pytest.raises(CodeError):
        CODE.update(9, 0, data[0], data[1], parity)
    for buffer in data + parity:
        buffer.append(0)


def test_impossible_decodings_are_refused() -> None:
    shards = dict(enumerate(DATA + PARITY))
    for given, out, message in [
        ({0: DATA[0]}, None, "needs 4 shards to repair, but only 1 are available"),
        ({}, None, "only 0 are available"),
        (DATA, None, "4 entries instead of 6"),
        (shards, {2: bytearray(64)}, "shard 2 is both given and wanted"),
        (shards, {6: bytearray(64)}, "out has shard 6, but there are 6"),
        ({i: shards[i] for i in range(4)}, {4: bytearray(63)}, "shard 4 has 63 bytes instead of 64"),
        ({i: shards[i] for i in range(4)}, {4: bytes(64)}, r"out\[4\] is read-only"),
    ]:
        with pytest.raises(CodeError, match=message):
            CODE.decode(given, out)  # type: ignore[call-overload]
    with pytest.raises(OverflowError):
        CODE.decode({-1: DATA[0]})


def test_impossible_plans_are_refused() -> None:
    code = Code("zigzag:4+2")
    for lost, available, message in [
        ([], range(6), "no shard to repair"),
        ([0, 0], range(1, 6), "named twice as lost"),
        ([0], range(6), "both as lost and as available"),
        ([6], range(6), "shard 6 does not exist"),
        ([0], [1, 2, 3], "only 3 are available"),
    ]:
        with pytest.raises(CodeError, match=message):
            code.repair_plan(lost, available)
    plan = code.repair_plan([0], range(1, 6))
    for call in [plan.read_bytes, plan.reads[0].slices, plan.reads[0].len_bytes]:
        with pytest.raises(CodeError, match="multiples of 8 bytes, and 12"):
            call(12)
    with pytest.raises(CodeError, match="4 reads were given instead of 5"):
        plan.execute([bytes(8)] * 4)
    with pytest.raises(CodeError, match="read 4 has 12 bytes instead of 8"):
        plan.execute([bytes(8)] * 4 + [bytes(12)])
    with pytest.raises(CodeError, match="multiples of 8 bytes"):
        plan.execute([bytes(7)] * 5)
    with pytest.raises(CodeError, match="2 buffers for lost shards were given instead of 1"):
        plan.execute([bytes(8)] * 5, writable(2, 16))


def test_impossible_writes_are_refused() -> None:
    parity = writable(2)
    for shard, offset, old, new, message in [
        (4, 0, b"a", b"b", "shard 4 is no data shard"),
        (0, 63, b"ab", b"cd", "2 bytes at 63 are not inside a shard of 64 bytes"),
        (0, 0, b"ab", b"c", "new content of shard 0 has 1 bytes instead of 2"),
    ]:
        with pytest.raises(CodeError, match=message):
            CODE.update(shard, offset, old, new, parity)
    with pytest.raises(CodeError, match="whole words of 4 bytes"):
        Code("jerasure-van:4+2,w=32").update(0, 2, bytes(4), bytes(4), parity)
    assert parity == writable(2)
