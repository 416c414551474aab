#!/usr/bin/python3
"""A GPU behind files and volumes: refused by name without a card, and right with one."""

import json
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from scenario import main
from world import ONE_CASE, Skip, check, fieldstone, refused, run


def card_or_skip(world):
    result = fieldstone("gpu", "info", ok=(0, 1))
    if result.returncode == 0:
        for word in ("driver", "multiprocessors", "memory"):
            check(word in result.stdout, f"gpu info does not tell of {word!r}:\n{result.stdout}")
        return
    # What cannot be done is refused by name, in one line, before anything is made.
    check(result.stderr.count("\n") == 1, f"more than one line:\n{result.stderr}")
    out = world.file("none")
    encode = ["code", "encode", __file__, "--out", out, "--accel", "gpu"]
    commands = [["gpu", "selftest"], ["gpu", "bench"], ["quickstart", "--accel", "gpu"], encode]
    for command in commands:
        refused(*command, says=["NVIDIA driver"])
    check(not out.exists(), "a refused encode made a folder")
    raise Skip("this machine has no NVIDIA driver")


def selftest():
    did = json.loads(fieldstone("gpu", "selftest", "--count", "2000", "--json", seconds=300).stdout)
    check(did["wrong"] == did["failed"] == 0 and did["jobs"] > 0, f"{did}")


def files(world):
    """The shards are those of the CPU, whoever did the jobs."""
    big, shards, out = world.file("big"), world.file("shards"), world.file("out")
    run("sh", "-c", f"head -c 200000000 /dev/urandom > {big}")
    for code in ("rs:4+2", "clay:4+2"):
        options = ["--accel", "gpu", "--json"]
        unit = ["--unit", "4M"]
        encode = ["code", "encode", big, "--code", code, *unit, "--out", shards]
        did = json.loads(fieldstone(*encode, *options).stdout)
        check(did["accel"] == "gpu" and did["device_failures"] == 0, f"{code}: {did}")
        fieldstone("code", "verify", shards)
        lost = (shards / "shard.1").read_bytes()
        (shards / "shard.1").unlink()
        fieldstone("code", "decode", shards, "--out", out, *options)
        fieldstone("code", "repair", shards, *options)
        check(out.read_bytes() == big.read_bytes(), f"{code}: other bytes than were encoded")
        check((shards / "shard.1").read_bytes() == lost, f"{code}: another shard than was lost")
        shutil.rmtree(shards)
        out.unlink()


def scenario(world):
    card_or_skip(world)
    selftest()
    files(world)


main(scenario, ONE_CASE)
