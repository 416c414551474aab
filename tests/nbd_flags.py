#!/usr/bin/python3
"""Every command and flag of the protocol, through libnbd, and nbdsh as users run it."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, error_of, extents, nbd, noise
from scenario import main
from world import COPIES_INSIDE, EVERY_CASE, MIB, check, need, run

SIZE = 128 * MIB
DATA, HOLE_ZERO, ZERO = 0, 3, 2


def reads_and_writes(uri, structured):
    handle = connect(uri, structured)
    check(handle.get_structured_replies_negotiated() == structured, "structured replies")
    check(handle.can_df() == structured, "DF is offered with structured replies only")
    # Unaligned in every way: start, end, across blocks, one byte.
    model = bytearray(handle.pread(2 * MIB, 0))
    for turn, (offset, length) in enumerate(
        [(0, 1), (4095, 2), (4096, 4096), (511, 1025), (65535, 65538), (MIB - 3, 7), (777, 300_000)]
    ):
        part = noise(length, turn)
        handle.pwrite(part, offset, nbd.CMD_FLAG_FUA if turn % 2 else 0)
        model[offset : offset + length] = part
        check(handle.pread(2 * MIB, 0) == model, f"after a write of {length} at {offset}")
    for offset, length in [(1, 1), (4094, 4), (12345, 67890), (MIB - 1, 2)]:
        check(handle.pread(length, offset) == model[offset : offset + length], f"read at {offset}")
    # The largest payload.
    large = noise(32 * MIB, 99)
    handle.pwrite(large, 64 * MIB)
    check(handle.pread(32 * MIB, 64 * MIB) == large, "32 MiB read back differ")
    # The very end.
    handle.pwrite(b"end", SIZE - 3)
    check(handle.pread(3, SIZE - 3) == b"end", "the last bytes differ")
    handle.shutdown()


def zeroes_and_trims(uri):
    handle = connect(uri)
    at, length = 8 * MIB, 8 * MIB

    def fill():
        handle.pwrite(noise(length, 5), at)
        check(extents(handle, at, length) == [(length, DATA)], "written data is not data")

    def zero_at(offset, size):
        check(handle.pread(size, offset) == bytes(size), f"{offset} + {size} is not zero")

    fill()
    handle.trim(length, at)
    zero_at(at, length)
    [(_, kind)] = extents(handle, at, length)
    check(kind & ZERO, f"trimmed space has the state {kind}")
    fill()
    handle.trim(length, at, nbd.CMD_FLAG_FUA)
    zero_at(at, length)
    fill()
    handle.zero(length, at)
    zero_at(at, length)
    check(extents(handle, at, length)[0][1] & ZERO, "zeroed space is not told as zero")
    fill()
    handle.zero(length, at, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
    zero_at(at, length)
    fill()
    handle.zero(length, at, nbd.CMD_FLAG_NO_HOLE)
    zero_at(at, length)
    for size, kind in extents(handle, at, length):
        check(not kind & 1, f"{size} bytes zeroed with NO_HOLE are a hole")
    # Unaligned: only what was named may change.
    fill()
    data = bytearray(noise(length, 5))
    handle.zero(10_000, at + 1)
    data[1:10_001] = bytes(10_000)
    handle.zero(3, at + MIB + 4095)
    data[MIB + 4095 : MIB + 4098] = bytes(3)
    check(handle.pread(length, at) == data, "an unaligned zeroing changed its neighbours")
    handle.trim(10_000, at + 2 * MIB + 1)
    got = handle.pread(length, at)
    inside = slice(2 * MIB + 1, 2 * MIB + 10_001)
    check(got[: inside.start] == data[: inside.start], "an unaligned trim changed what is before")
    check(got[inside.stop :] == data[inside.stop :], "an unaligned trim changed what is behind")
    # All of the device at once.
    handle.zero(SIZE, 0)
    zero_at(0, 32 * MIB)
    handle.shutdown()


def block_status(uri):
    handle = connect(uri)
    handle.trim(SIZE, 0)
    for at in (MIB, 3 * MIB, 5 * MIB):
        handle.pwrite(noise(MIB, at), at)
    found = extents(handle, 0, 7 * MIB)
    expected = [(MIB, True)] + [(MIB, data) for data in (False, True) * 3]
    check(
        [(size, bool(kind & ZERO)) for size, kind in found] == expected, f"the extents are {found}"
    )
    one = []
    handle.block_status(7 * MIB, MIB, lambda *a: one.extend(a[2]) or 0, nbd.CMD_FLAG_REQ_ONE)
    check(one == [MIB, DATA], f"REQ_ONE gave {one}")
    one.clear()
    handle.block_status(4096, 4 * MIB + 512, lambda *a: one.extend(a[2]) or 0, nbd.CMD_FLAG_REQ_ONE)
    check(len(one) == 2 and one[0] == 4096 and one[1] & ZERO, f"REQ_ONE in a hole gave {one}")

    chunks = []
    buffer = handle.pread_structured(
        7 * MIB, 0, lambda part, at, kind, err: chunks.append((at, len(part), kind)) or 0
    )
    check(buffer[MIB : 2 * MIB] == noise(MIB, MIB), "a structured read differs")
    check(any(kind == nbd.READ_HOLE for _, _, kind in chunks), "no hole chunk in a sparse range")
    chunks.clear()
    handle.pread_structured(
        7 * MIB, 0, lambda part, at, kind, err: chunks.append((at, len(part), kind)) or 0,
        nbd.CMD_FLAG_DF,
    )
    check(len(chunks) == 1, f"DF gave {len(chunks)} chunks")
    handle.cache(MIB, MIB)
    handle.shutdown()


def errors(uri):
    for structured in (True, False):
        # libnbd would refuse most of this by itself.
        handle = connect(uri, structured, strict=0)
        past = [
            ("read", handle.pread, (4096, SIZE - 4095), "EINVAL"),
            ("read", handle.pread, (1, SIZE), "EINVAL"),
            ("write", handle.pwrite, (bytes(4096), SIZE - 4095), "ENOSPC"),
            ("write", handle.pwrite, (b"x", 1 << 62), "ENOSPC"),
            ("zero", handle.zero, (4096, SIZE - 1), "ENOSPC"),
            ("trim", handle.trim, (4096, SIZE - 1), "EINVAL"),
            ("write with an unknown flag", handle.pwrite, (b"x", 0, 1 << 12), "EINVAL"),
        ]
        for what, call, arguments, expected in past:
            got = error_of(call, *arguments)
            check(got == expected, f"{what} past the end gives {got}, expected {expected}")
        # The connection goes on.
        check(handle.pread(1, 0) is not None, "the connection ended")
        handle.shutdown()
    handle = connect(uri, context=False, strict=0)
    got = error_of(handle.block_status, 4096, 0, lambda *a: 0)
    check(got in ("EINVAL", "ENOTSUP"), f"block status without context gives {got}")
    handle.shutdown()


def several_connections(uri):
    writer, other = connect(uri), connect(uri)
    check(writer.can_multi_conn(), "multi-conn is not offered")
    for turn in range(50):
        data = noise(16384, turn)
        writer.pwrite(data, 24 * MIB + turn * 512)
        check(other.pread(16384, 24 * MIB + turn * 512) == data, "the other connection sees old data")
        other.flush()
        other.zero(512, 24 * MIB + turn * 512)
        check(writer.pread(512, 24 * MIB + turn * 512) == bytes(512), "zeroes are not seen")
    writer.shutdown()
    other.shutdown()


def from_the_shell(uri):
    need("nbdsh")
    script = [
        "h.pwrite(b'stone' * 100, 4096, nbd.CMD_FLAG_FUA)",
        "assert h.pread(500, 4096) == b'stone' * 100",
        "h.flush()",
        "h.trim(4096, 4096)",
        "h.zero(4096, 8192, nbd.CMD_FLAG_NO_HOLE)",
        "print(h.get_size())",
    ]
    arguments = [word for line in script for word in ("-c", line)]
    shown = run("nbdsh", "-u", uri, *arguments).stdout
    check(shown.strip() == str(SIZE), f"nbdsh prints {shown}")


def scenario(world):
    pool = world.pool()
    pool.create_volume("v", SIZE)
    server = pool.serve("v")
    uri = server.uri("v")
    reads_and_writes(uri, structured=True)
    reads_and_writes(uri, structured=False)
    zeroes_and_trims(uri)
    block_status(uri)
    errors(uri)
    several_connections(uri)
    from_the_shell(uri)

    # What was written stays when the server has gone and come back; read-only refuses.
    handle = connect(uri)
    data = noise(3 * MIB + 77, 1)
    handle.pwrite(data, 17 * MIB + 5)
    handle.shutdown()
    server.stop()
    server = pool.serve("v", options=["--read-only"])
    handle = connect(server.uri("v"), strict=0)
    check(handle.pread(len(data), 17 * MIB + 5) == data, "data changed over a restart")
    for call, arguments in [(handle.pwrite, (b"x", 0)), (handle.trim, (1, 0)), (handle.zero, (1, 0))]:
        check(error_of(call, *arguments) == "EPERM", "a read-only device takes a change")
    handle.shutdown()
    server.stop()


main(scenario, COPIES_INSIDE, more=EVERY_CASE)
