#!/usr/bin/python3
"""The layers of a device: chosen by options, shown by `status`, limits changed while it serves."""

import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, error_of, noise
from ledger import Ledger, Mix
from scenario import main
from world import EVERY_CODE, FIELDSTONE, MIB, ONE_CASE, Process, check, fieldstone, refused

BLOCK = 4096
# A header without data, whose passphrase is PASSPHRASE. The data would begin at 2 MiB.
HEADER = pathlib.Path(__file__).resolve().parent.parent / "crates/luks/tests/data/luks1.bin"
PASSPHRASE = "open sesame"


def layer_of(pool, name, device="v"):
    layers = pool.volume_status(device)["io"]["layers"]
    found = [layer for layer in layers if layer["name"] == name]
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
    check("bytes=2M" in told.stdout, f"{told.stdout}")
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


def write_cache(pool):
    """Writes are answered from memory, leave merged, and are in the store after a flush or the
    end."""
    keeps = ["--layer", "write-cache:policy=back,until-flush=off,max-age=600s", "--cache", "0"]
    server = pool.serve("v", options=keeps)
    handle = connect(server.uri("v"))
    data = noise(MIB, 5)
    for at in range(0, MIB, BLOCK):
        handle.pwrite(data[at : at + BLOCK], at)
    handle.pwrite(data[:BLOCK], 0)
    check(counter_of(pool, "write-cache", "kept") == 257, f"{layer_of(pool, 'write-cache')}")
    check(counter_of(pool, "write-cache", "write_outs") == 0, f"{layer_of(pool, 'write-cache')}")
    check(counter_of(pool, "write-cache", "overwritten_bytes") == BLOCK, "nothing is overwritten")
    check(handle.pread(MIB, 0) == data, "a client does not read what it wrote")
    handle.flush()
    check(counter_of(pool, "write-cache", "write_outs") == 1, f"{layer_of(pool, 'write-cache')}")
    check(counter_of(pool, "write-cache", "dirty_bytes") == 0, f"{layer_of(pool, 'write-cache')}")
    handle.pwrite(data[:BLOCK], 8 * MIB + 1)
    handle.shutdown()
    server.stop()
    server = pool.serve("v")
    handle = connect(server.uri("v"))
    check(handle.pread(MIB, 0) == data, "a flush was lost")
    check(handle.pread(BLOCK, 8 * MIB + 1) == data[:BLOCK], "the end of a server loses a write")
    handle.shutdown()
    server.stop()


def write_cache_killed(pool):
    """kill -9 is to the clients what a loss of power is: what was flushed is there."""
    mix = Mix(flush=0.05, read=0.2, trim=0.04, zero=0.04, fua=0.05)
    pool.create_volume("w", "16M")
    ledger = Ledger(1024, seed=8)
    for policy in ("back", "around"):
        small = f"write-cache:policy={policy},max-dirty=1M,target-dirty=256K,max-age=50ms"
        server = pool.serve("w", options=["--layer", small])
        ledger.verify(server.uri("w"))
        wanted = ledger.writes + 500
        killed = []

        def stop():
            if ledger.writes >= wanted and not killed:
                killed.append(server.kill())
            return False

        check(ledger.load(server.uri("w"), 16, stop, mix), "the server did not die")
        check(ledger.reads > 0, "the load did not read")
        ledger.power_failed()
    server = pool.serve("w")
    ledger.verify(server.uri("w"))
    server.stop()


def refusing_store(pool):
    """Bytes that the store refuses stay, a flush fails, and the end says what is lost."""
    layers = ["write-cache:policy=back,until-flush=off,max-age=10ms", "error:writes=1"]
    server = pool.serve("v", options=[part for text in layers for part in ("--layer", text)])
    handle = connect(server.uri("v"))
    handle.pwrite(noise(BLOCK, 6), 12 * MIB)
    check(error_of(handle.flush) == "EIO", "a flush succeeds, and the store has nothing")
    check(error_of(handle.flush) == "EIO", "the second flush forgets the bytes")
    check(handle.pread(BLOCK, 12 * MIB) == noise(BLOCK, 6), "the bytes are gone")
    check(error_of(handle.pwrite, noise(BLOCK, 7), 13 * MIB) == "EIO", "errors are hidden")
    server.wait_until_logged("refuses bytes")
    handle.shutdown()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(60)
    said = server.errors()
    check("4096 bytes" in said and "are lost" in said, f"what is lost is not named: {said}")


def end_at_once(pool):
    """A second signal ends a server at once, and it says what is lost with it."""
    keeps = ["--layer", "write-cache:policy=back,until-flush=off,max-age=600s"]
    server = pool.serve("v", options=[*keeps, "--layer", "delay:write=5s"])
    handle = connect(server.uri("v"))
    handle.pwrite(noise(BLOCK, 10), 14 * MIB)
    handle.shutdown()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(20)
    check(code == 130, f"after a second signal it ended with {code}")
    said = server.errors()
    check("v: 4 KiB of writes have not left its write cache, and may be lost" in said, said)
    check("is safe" not in said, f"a lost write is called safe: {said}")


def wrong(pool):
    """A wrong option is named, with those that there are, and nothing is served."""
    for option, says in [
        (["--layer", "crypt"], ["crypt", "meter, limit, scheduler"]),
        (["--layer", "cache:size=1M"], ["cache", "size", "capacity"]),
        (["--layer", "cache:bypass=512K"], ["bypass", "512K", "256 KiB"]),
        (["--layer", "write-cache:policy=fast"], ["policy", "fast", "through, around, back"]),
        (["--limit", "iops=many"], ["iops", "many"]),
    ]:
        socket = pool.path / "s.sock"
        said = fieldstone(
            "serve", pool.path / "v", "--nbd", f"unix:{socket}", *option, ok=(1, 2), seconds=20
        ).stderr
        for word in says:
            check(word in said, f"the error does not name {word!r}: {said}")


def locked(world, pool):
    """A device whose header does not open fails at once, with its reason; others are served."""
    image, right, wrong = world.file("encrypted.img"), world.file("right"), world.file("wrong")
    image.write_bytes(HEADER.read_bytes().ljust(4 * MIB, b"\0"))
    right.write_text(PASSPHRASE)
    wrong.write_text("close sesame")
    socket = world.file("locked.sock")
    said = refused(
        "serve", f"file:{image}", "--nbd", f"unix:{socket}",
        "--layer", f"luks:passphrase-file={wrong}",
        says=["encrypted.img", "no key slot opens with this passphrase", wrong],
    )
    check("tried again" not in said, f"a wrong passphrase is tried again: {said}")
    command = [FIELDSTONE, "serve", pool.path / "v", f"file:{image}", "--nbd", f"unix:{socket}"]
    server = Process(world, "locked", [*command, "--layer", f"luks:passphrase-file={right}"])
    server.wait_for_output("serving encrypted.img")
    server.wait_until_logged("there is no LUKS header", "v is not tried again")
    failed = pool.volume_status("v")
    check(failed["phase"] == "failed", f"a volume without a header is {failed['phase']}")
    check("there is no LUKS header" in failed["reason"], f"the reason is {failed['reason']!r}")
    handle = connect(f"nbd+unix:///encrypted.img?socket={socket}")
    check(handle.get_size() == 2 * MIB, "the size behind the header")
    handle.pwrite(noise(BLOCK, 9), MIB + 1)
    check(handle.pread(BLOCK, MIB + 1) == noise(BLOCK, 9), "what was written")
    # A store that needs no pool is in the status of a pool of the same server, with its layers.
    luks = layer_of(pool, "luks", "encrypted.img")
    counters = {counter["name"]: counter["value"] for counter in luks["counters"]}
    check(counters["encrypted_bytes"] >= BLOCK, f"the counters of luks are {counters}")
    store = pool.volume_status("encrypted.img")["io"]["store"]
    counters = {counter["name"]: counter["value"] for counter in store}
    check(counters["operations"] >= 2, f"a write and a read: the store's counters are {counters}")
    handle.shutdown()
    server.stop()


def scenario(world):
    pool = world.pool("128M")
    pool.create_volume("v", "16M")
    limits(pool)
    chosen(pool)
    read_ahead(pool)
    write_cache(pool)
    write_cache_killed(pool)
    refusing_store(pool)
    end_at_once(pool)
    wrong(pool)
    locked(world, pool)


main(scenario, ONE_CASE, waits=True, more=EVERY_CODE)
