"""Our side of an NBD connection, with libnbd: connections, and data that can be recognised.

Requests take a `bytearray`, never an `nbd.Buffer`: python3-libnbd 1.14 never frees a buffer that a
request has used, which costs a campaign gigabytes.
"""

import random
import sys

from pulse import Deadline
from world import Failure, Skip, check

try:
    import nbd
except ImportError:
    nbd = None

BLOCK = 4096


class ConnectionBroke(Failure):
    """The server went away while a connection was made."""


def need_libnbd():
    """Skips the case unless this Python has libnbd."""
    if nbd is None:
        raise Skip(f"{sys.executable} has no module nbd (package python3-libnbd)")


def connect(uri, structured=True, context=True, strict=None, seconds=None):
    """A libnbd handle connected to `uri`; within so many seconds, if they are given."""
    need_libnbd()
    handle = nbd.NBD()
    handle.set_request_structured_replies(structured)
    if context and structured:
        handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    if strict is not None:
        handle.set_strict_mode(strict)
    if seconds is None:
        handle.connect_uri(uri)
        return handle
    deadline = Deadline(seconds)
    try:
        handle.aio_connect_uri(uri)
        while handle.aio_is_created() or handle.aio_is_connecting():
            check(not deadline.has_passed(), f"{uri}: no connection after {seconds} s")
            handle.poll(100)
    except nbd.Error as error:
        raise ConnectionBroke(f"{uri}: {error}") from error
    if not handle.aio_is_ready():
        raise ConnectionBroke(f"{uri}: the connection broke while it was made")
    return handle


def finish(handle, cookie, seconds, what):
    """Waits until a request is answered; `what` it is, for the message when it is not in time."""
    deadline = Deadline(seconds)
    try:
        while not handle.aio_command_completed(cookie):
            check(not deadline.has_passed(), f"no answer to {what} for {seconds} s")
            handle.poll(100)
    except nbd.Error as error:
        raise Failure(f"{what} failed: {error}") from error


def noise(length, seed):
    """Bytes that do not compress and are not zero by chance; the same for the same seed."""
    return random.Random(seed).randbytes(length)


def extents(handle, offset, length, flags=0):
    """Block status as a list of (length, flags), merged over as many calls as it takes."""
    found = []
    while length > 0:
        part = []

        def take(context, at, entries, error):
            part.extend(zip(entries[0::2], entries[1::2]))
            return 0

        handle.block_status(length, offset, take, flags)
        assert part, "block status gave nothing"
        for size, kind in part:
            if found and found[-1][1] == kind:
                found[-1] = (found[-1][0] + size, kind)
            else:
                found.append((size, kind))
            offset += size
            length -= size
    return found


def error_of(call, *arguments, **options):
    """The errno name that `call` fails with, or None when it succeeds."""
    try:
        call(*arguments, **options)
    except nbd.Error as error:
        return error.errno
    return None


STEP = 4 << 20


def fill(uri, size, turn=0):
    """Writes the first `size` bytes of a device, as `check_fill` expects them, and flushes."""
    handle = connect(uri)
    for at in range(0, size, STEP):
        handle.pwrite(noise(min(STEP, size - at), f"{turn}/{at}"), at)
    handle.flush()
    handle.shutdown()


def check_fill(uri, size, turn=0):
    """Fails unless the first `size` bytes are what `fill` wrote."""
    handle = connect(uri)
    for at in range(0, size, STEP):
        length = min(STEP, size - at)
        data = handle.pread(length, at)
        check(data == noise(length, f"{turn}/{at}"), f"{uri}: data at {at >> 20} MiB differs")
    handle.shutdown()
