"""Our side of an NBD connection, with libnbd: connections, and data that can be recognised."""

import random

from world import Skip

try:
    import nbd
except ImportError:
    nbd = None

BLOCK = 4096


def connect(uri, structured=True, context=True, strict=None):
    """A libnbd handle connected to `uri`."""
    if nbd is None:
        raise Skip("python3-libnbd is not installed for /usr/bin/python3")
    handle = nbd.NBD()
    handle.set_request_structured_replies(structured)
    if context and structured:
        handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    if strict is not None:
        handle.set_strict_mode(strict)
    handle.connect_uri(uri)
    return handle


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
