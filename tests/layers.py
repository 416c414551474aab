#!/usr/bin/python3
"""The layers of a device: chosen by options, shown by `status`, limits changed while it serves."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, error_of, noise
from scenario import main
from world import EVERY_CODE, MIB, check, fieldstone, refused

BLOCK = 4096


def layer_of(pool, name):
    found = [layer for layer in pool.volume_status("v")["io"]["layers"] if layer["name"] == name]
    return found[0] if found else None


def counter_of(pool, layer, name):
    return {c["name"]: c["value"] for c in layer_of(pool, layer)["counters"]}[name]


def seconds_of(handle, reads):
    """How long so many reads take, eight in flight."""
    began = time.monotonic()
    cookies = []
    for index in range(reads):
        cookies.append(handle.aio_pread(bytearray(BLOCK), index % 64 * BLOCK))
        if len(cookies) == 8:
            wait_for(handle, cookies.pop(0))
    for cookie in cookies:
        wait_for(handle, cookie)
    return time.monotonic() - began


def wait_for(handle, cookie):
    while not handle.aio_command_completed(cookie):
        handle.poll(-1)


def limits(pool):
    """A limit bounds the rate, and changes while requests wait."""
    server = pool.serve("v", options=["--limit", "iops=100,burst=0"])
    handle = connect(server.uri("v"))
    handle.pwrite(noise(MIB, 1), 0)
    took = seconds_of(handle, 200)
    # The first request passes at once. Being slower than the limit is no fault of the layer.
    check(took >= 1.9, f"200 reads took {took:.2f} s at 100 requests per second")
    check(layer_of(pool, "limit")["options"]["iops"] == "100", f"{layer_of(pool, 'limit')}")
    check(counter_of(pool, "limit", "delayed") >= 150, f"{layer_of(pool, 'limit')}")

    told = fieldstone("volume", "limit", pool.path / "v", "--iops", "0", "--bytes", "2M")
    check("bytes=2097152" in told.stdout, f"{told.stdout}")
    options = layer_of(pool, "limit")["options"]
    check((options["iops"], options["bytes"]) == ("0", "2M"), f"{options}")
    took = seconds_of(handle, 1024)
    check(took >= 1.8, f"4 MiB took {took:.2f} s at 2 MiB/s")

    fieldstone("volume", "limit", pool.path / "v", "--bytes", "0")
    delayed = counter_of(pool, "limit", "delayed")
    seconds_of(handle, 1024)
    check(counter_of(pool, "limit", "delayed") == delayed, "requests wait where nothing is bounded")
    handle.shutdown()
    server.stop()
    refused("volume", "limit", pool.path / "v", "--iops", "5", says=["no server serves"])


def chosen(pool):
    """Layers are added, changed and left out by options."""
    texts = ["cache:off", "error:reads=1", "scheduler:policy=off"]
    server = pool.serve("v", options=[part for text in texts for part in ("--layer", text)])
    handle = connect(server.uri("v"))
    handle.pwrite(noise(BLOCK, 2), 0)
    check(error_of(lambda: handle.pread(BLOCK, 0)) == "EIO", "a read does not fail as asked")
    names = [layer["name"] for layer in pool.volume_status("v")["io"]["layers"]]
    check(names == ["meter", "limit", "scheduler", "readahead", "align", "error"], f"{names}")
    check(layer_of(pool, "scheduler")["options"]["policy"] == "off", "the option has no effect")
    check(counter_of(pool, "error", "injected") == 1, f"{layer_of(pool, 'error')}")
    handle.shutdown()
    server.stop()


def read_ahead(pool):
    """A client that reads in order gets its bytes from windows, unless they are off."""
    for option, works in [("readahead:window=256K", True), ("readahead:window=0", False)]:
        server = pool.serve("v", options=["--layer", option, "--layer", "cache:off"])
        handle = connect(server.uri("v"))
        data = noise(4 * MIB, 3)
        handle.pwrite(data, 0)
        read = b"".join(handle.pread(65536, at) for at in range(0, len(data), 65536))
        check(read == data, "a read in order gives other bytes")
        hits = counter_of(pool, "readahead", "hits")
        check((hits > 50) == works and (hits == 0) != works, f"{option}: {hits} hits")
        handle.shutdown()
        server.stop()


def wrong(pool):
    """A wrong option is named, with those that there are, and nothing is served."""
    for option, says in [
        (["--layer", "crypt"], ["crypt", "meter, limit, scheduler"]),
        (["--layer", "cache:size=1M"], ["cache", "size", "capacity"]),
        (["--layer", "cache:bypass=512K"], ["bypass", "512K", "256 KiB"]),
        (["--limit", "iops=many"], ["iops", "many"]),
    ]:
        socket = pool.path / "s.sock"
        said = fieldstone(
            "serve", pool.path / "v", "--nbd", f"unix:{socket}", *option, ok=(1, 2), seconds=20
        ).stderr
        for word in says:
            check(word in said, f"the error does not name {word!r}: {said}")


def scenario(world):
    pool = world.pool("128M")
    pool.create_volume("v", "16M")
    limits(pool)
    chosen(pool)
    read_ahead(pool)
    wrong(pool)


main(scenario, EVERY_CODE)
