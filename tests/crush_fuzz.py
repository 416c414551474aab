#!/usr/bin/python3
"""Random CRUSH maps, compiled and run by crushtool and by us: everything must be the same.

    tests/crush_fuzz.py --maps 20000 --seed 1     a campaign
    tests/crush_fuzz.py --maps 1 --seed 4711      map 4711 alone

Of every map: the binary, byte for byte; the texts that we and crushtool print of it, each compiled
again by both; mappings, bad mappings, statistics and utilization, line by line. What differs is kept with its seed under target/evidence/crush_fuzz. Maps at which crushtool
dies of a signal count apart; we must not die of them.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from crush_maps import RandomMap, random_options
from scenario import main
from world import ENVIRONMENT, EVIDENCE, FIELDSTONE, ONE_CASE, check, need

SECONDS = 60
SHOWS = (
    ("--show-mappings",),
    ("--show-mappings", "--show-bad-mappings"),
    ("--show-statistics",),
    ("--show-utilization",),
    ("--show-utilization-all",),
    ("--show-mappings", "--show-utilization", "--show-choose-tries"),
)


class Difference(Exception):
    """We and crushtool disagree; the text says on what."""


class Died(Exception):
    """crushtool died of a signal, or hung."""


def crushtool(*arguments):
    """Runs crushtool; its output, or None if it refuses."""
    try:
        result = subprocess.run(
            ["crushtool", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as late:
        raise Died(f"crushtool {arguments}: no end after {SECONDS} s") from late
    if result.returncode < 0 or result.returncode >= 128:
        raise Died(f"crushtool {arguments}: {result.returncode}")
    return result.stdout if result.returncode == 0 else None


def ours(*arguments):
    """Runs `fieldstone crush`; its output, or None if it refuses. Anything else is a difference."""
    try:
        result = subprocess.run(
            [FIELDSTONE, "crush", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as late:
        raise Difference(f"crush {arguments}: no end after {SECONDS} s") from late
    if result.returncode not in (0, 1) or b"panicked" in result.stderr:
        raise Difference(f"crush {arguments}: exit code {result.returncode}: {result.stderr!r}")
    if result.returncode == 1:
        (pathlib.Path(arguments[1]).parent / "refusal").write_bytes(result.stderr)
    return result.stdout if result.returncode == 0 else None


def compiled(folder, text, by):
    """The binary that one side makes of a text; None if it refuses."""
    out = folder / f"{text.name}.{by}.bin"
    out.unlink(missing_ok=True)
    if by == "crushtool":
        done = crushtool("-c", text, "-o", out, "--enable-unsafe-tunables")
    else:
        done = ours("compile", text, "-o", out)
    return out if done is not None and out.exists() else None


def equal(one, other):
    return one.read_bytes() == other.read_bytes()


def same_binaries(folder, text, what):
    """Both sides compile `text`; their binaries must be equal. None if both refuse."""
    mine = compiled(folder, text, "ours")
    theirs = compiled(folder, text, "crushtool")
    if theirs is None and mine is None:
        return None
    if theirs is None or mine is None:
        raise Difference(f"{what}: only {'we compile' if mine else 'crushtool compiles'} it")
    if not equal(theirs, mine):
        raise Difference(f"{what}: the binaries differ: {theirs.name}, {mine.name}")
    return theirs, mine


def decompiled(folder, binary):
    """The text we print gives the binary again, by either compiler. The text crushtool prints, with
    weights rounded to three digits, means the same to both."""
    printed = folder / "printed.ours.txt"
    if ours("decompile", binary, "-o", printed) is None:
        raise Difference("we cannot decompile what we compile")
    again = same_binaries(folder, printed, "the text we print")
    if again is None or not equal(again[0], binary):
        raise Difference("the text we print is that of another map")
    printed = folder / "printed.crushtool.txt"
    crushtool("-d", binary, "-o", printed)
    if "weight -" in printed.read_text():
        # It prints 32768 and more so, which we refuse to read.
        return
    same_binaries(folder, printed, "the text crushtool prints")


def mapped(rng, theirs, mine, made):
    """One run with random options on both sides; how many lines it printed."""
    options = [*random_options(rng, made), *rng.choice(SHOWS)]
    out = ours("map", "-i", mine, *options)
    if out is not None:
        # crushtool has this line on stderr.
        lines = out.splitlines(keepends=True)
        out = b"".join(line for line in lines if not line.startswith(b"devices weights"))
    expected = crushtool("-i", theirs, "--test", *options)
    if out != expected:
        theirs.with_name("theirs.out").write_bytes(expected or b"refused\n")
        mine.with_name("ours.out").write_bytes(out or b"refused\n")
        raise Difference(f"the outputs differ: {' '.join(options)}")
    return out.count(b"\n")


def try_map(seed, folder):
    """All that is tried with one map; counts of lines compared."""
    folder.mkdir()
    rng = random.Random(seed)
    made = RandomMap(rng)
    text = folder / "map.txt"
    text.write_text(made.text)
    binaries = same_binaries(folder, text, "the map")
    if binaries is None:
        return "refused", 0
    decompiled(folder, binaries[1])
    return "same", sum(mapped(rng, *binaries, made) for _ in range(2))


def outcome(seed, world):
    folder = world.file(f"map{seed}")
    try:
        kind, lines = try_map(seed, folder)
    except Difference as difference:
        place = EVIDENCE / "crush_fuzz" / str(seed)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)
        print(f"seed {seed}: {difference}\n    kept: {place}", flush=True)
        kind, lines = "different", 0
    except Died as died:
        print(f"seed {seed}: {died}", flush=True)
        kind, lines = "crushtool died", 0
    shutil.rmtree(folder, ignore_errors=True)
    return kind, lines


def scenario(world, options):
    need("crushtool")
    began, counts, lines = time.monotonic(), collections.Counter(), 0
    seeds = range(options.seed, options.seed + options.maps)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for kind, more in pool.map(lambda seed: outcome(seed, world), seeds):
            counts[kind] += 1
            lines += more
    seconds = time.monotonic() - began
    print(f"{options.maps} maps from seed {options.seed}: {dict(counts)}, {lines} lines, {seconds:.0f} s")
    check(counts["different"] == 0, f"{counts['different']} maps differ")
    check(counts["same"] > options.maps // 2, f"too few maps could be compared: {dict(counts)}")


parser = argparse.ArgumentParser()
parser.add_argument("--maps", type=int, default=300)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
main(scenario, ONE_CASE, parser)
