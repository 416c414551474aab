#!/usr/bin/python3
"""nbdinfo sees what is served: sizes, flags, several exports, and the map of a volume."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from scenario import main
from world import EVERY_CASE, MIB, ONE_CASE, Server, check, need, run


def info(*arguments):
    return json.loads(run("nbdinfo", "--json", *arguments).stdout)


def scenario(world):
    need("nbdinfo")
    pool = world.pool()
    pool.create_volume("first", "64M")
    pool.create_volume("second", "96M")
    server = pool.serve("first", "second")

    for name, size in [("first", 64 * MIB), ("second", 96 * MIB), ("", 64 * MIB)]:
        [export] = info(server.uri(name))["exports"]
        check(export["export-size"] == size, f"{name!r} has {export['export-size']} bytes")
        check(not export["is_read_only"], f"{name!r} is read-only")
        for flag in ["flush", "fua", "multi_conn", "trim", "zero", "fast_zero", "df", "cache"]:
            check(export[f"can_{flag}"], f"{name!r} does not offer {flag}")
        check("base:allocation" in export["contexts"], f"{name!r} has no base:allocation")
        check(export["block_size_minimum"] == 1, "the minimum block size is not 1")
        check(export["block_size_preferred"] >= 4096, "the preferred block size is below 4096")
        check(export["block_size_maximum"] == 32 * MIB, "the maximum block size is not 32 MiB")
    check(run("nbdinfo", "--size", server.uri("second")).stdout.strip() == str(96 * MIB), "--size")
    listed = info("--list", server.uri())["exports"]
    check([e["export-name"] for e in listed] == ["first", "second"], f"--list gives {listed}")
    run("nbdinfo", "--can", "multi-conn", server.uri("first"))
    run("nbdinfo", "--is", "read-only", server.uri("first"), ok=(2,))
    missing = run("nbdinfo", server.uri("third"), ok=(1,)).stderr
    check("third" in missing, f"the error does not name the export: {missing}")

    handle = connect(server.uri("first"))
    handle.pwrite(noise(MIB, 1), 8 * MIB)
    handle.pwrite(noise(MIB, 2), 32 * MIB)
    handle.flush()
    ranges = json.loads(run("nbdinfo", "--map", "--json", server.uri("first")).stdout)
    data = [(r["offset"], r["length"]) for r in ranges if r["type"] == 0]
    check(data == [(8 * MIB, MIB), (32 * MIB, MIB)], f"--map shows data at {data}")
    check(sum(r["length"] for r in ranges) == 64 * MIB, "--map does not cover the device")
    handle.shutdown()
    server.stop()

    # The map outlives the server, and clients see --read-only, and the block of a volume
    # without the layer align.
    server = pool.serve("first", options=["--read-only", "--layer", "align:off"])
    again = json.loads(run("nbdinfo", "--map", "--json", server.uri()).stdout)
    check([(r["offset"], r["length"]) for r in again if r["type"] == 0] == data, f"now {again}")
    [export] = info(server.uri())["exports"]
    check(export["is_read_only"], "--read-only is not told")
    minimum = export["block_size_minimum"]
    check(minimum == 4096, f"without the layer align, the minimum block size is {minimum}")
    server.stop()

    # Over TCP, and with --cores 2.
    server = Server(pool, ["first"], ["--nbd", "tcp:127.0.0.1:0", "--cores", "2"])
    address = next(w for w in server.output().split() if w.startswith("tcp:"))
    uri = f"nbd://{address.removeprefix('tcp:')}/first"
    check(run("nbdinfo", "--size", uri).stdout.strip() == str(64 * MIB), "--size over TCP")
    server.stop()


main(scenario, ONE_CASE, more=EVERY_CASE)
