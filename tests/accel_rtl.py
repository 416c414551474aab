#!/usr/bin/python3
"""The simulated FPGA behind files and the block device: quickstart, self-test, load during swaps.

Every placement and every parity comes out of the RTL; a second user of the device changes its
reconfigurable partition a hundred times while fio writes and verifies.
"""

import json
import pathlib
import re
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from scenario import main
from world import ONE_CASE, Skip, check, fieldstone, need, refused, run, wait_until

SWAPS = 100
# Of the files: stripes, and bytes of a unit.
STRIPES, UNIT = 6, 32768
# Seconds. A turn begins no round after 2 ms (TURN_NS in host/src/worker.rs). A round has at most 16
# rounds of a device (ROUNDS_MAX in host/src/device.rs), and each asks the model once, which waits
# up to 0.2 ms for news (RELAX in fpga/src/verilated/mod.rs) and reads a register or two, of about
# 0.5 ms each. Software verifies for about 1 ms (POLL_SOFTWARE_BYTES in accel/src/engine.rs). That
# is 25 ms. Each wait may end in the queue for one of two CPUs, behind the model, fio and other
# scenarios, for some 10 ms: half a second, and again as much for inline writes to a busy disk. A
# core that waited for jobs had turns of several seconds.
LONGEST_TURN = 1.0


def device_or_skip():
    result = fieldstone("fpga", "info", ok=(0, 1))
    if result.returncode == 1:
        # What cannot be done is refused by name, and with what to do.
        encode = ["code", "encode", __file__, "--out", "/nowhere", "--accel", "rtl"]
        for command in (["fpga", "selftest"], ["quickstart", "--accel", "rtl"], encode):
            refused(*command, says=["make hdl-tools", "make build"])
        raise Skip("this build has no simulated FPGA (make hdl-tools)")
    for word in ("partition", "16 items", "functions"):
        check(word in result.stdout, f"fpga info does not tell of {word!r}:\n{result.stdout}")


def quickstart():
    text = fieldstone("quickstart", "--accel", "rtl", seconds=300).stdout
    for word in ("every byte as written", "rebuild"):
        check(word in text, f"the quickstart does not tell of {word!r}:\n{text}")
    for kind in ("code", "place"):
        done, all_of_them = map(int, re.search(rf"(\d+) of (\d+) {kind}", text).groups())
        # The model has 20 s for a job. On a busy machine it may be late, and software does the job.
        repeated = re.search(r"\((\d+) repeated in software, (\d+) of them late\)", text)
        failed = int(repeated[1]) - int(repeated[2]) if repeated else 0
        least = 0.9 * all_of_them if repeated else all_of_them
        is_done = done >= least > 0 and failed == 0
        check(is_done, f"the device did {done} of {all_of_them} {kind} jobs:\n{text}")


def files(world):
    """The device codes every whole stripe of a file, as the CPU does."""
    big, shards, out = world.file("big"), world.file("shards"), world.file("out")
    run("sh", "-c", f"head -c {4 * STRIPES * UNIT} /dev/urandom > {big}")
    for code in ("rs:4+2", "clay:4+2", "cauchy-good:4+2,ps=512"):
        jobs = [["encode", big, "--code", code, "--unit", UNIT, "--out", shards]]
        jobs += [["decode", shards, "--out", out], ["repair", shards]]
        for job in jobs:
            if job[0] == "decode":
                fieldstone("code", "verify", shards)
                lost = (shards / "shard.1").read_bytes()
                (shards / "shard.1").unlink()
            options = ["--accel", "rtl", "--jobs", "4", "--json"]
            did = json.loads(fieldstone("code", *job, *options, seconds=300).stdout)
            check(did["coding_jobs"] == did["device_jobs"] == STRIPES, f"{code}: {did}")
            check(did["accel"] == "rtl" and did["device_failures"] == 0, f"{code}: {did}")
        check(out.read_bytes() == big.read_bytes(), f"{code}: other bytes than were encoded")
        check((shards / "shard.1").read_bytes() == lost, f"{code}: another shard than was lost")
        shutil.rmtree(shards)
        out.unlink()


def selftest(world):
    waves = world.file("out.fst")
    text = fieldstone("fpga", "selftest", "--count", "40", "--seed", "3").stdout
    check("cycles per second" in text, text)
    fieldstone("fpga", "selftest", "--count", "6", "--size", "4K", "--trace", waves, seconds=300)
    check(waves.stat().st_size > 100_000, f"waves of {waves.stat().st_size} bytes")
    nowhere = world.file("no-folder/out.fst")
    refused("fpga", "selftest", "--trace", nowhere, says=["waves cannot be written", "no-folder"])


def bench(world):
    """A paper's number stands next to a row of the same work, and rows say what they are of."""
    file = world.file("bench.json")
    text = fieldstone("fpga", "bench", "--json", file, seconds=300).stdout
    for words in ("kernel alone:", "not in the device:", "in the same cycle", "would be 492 MHz"):
        check(words in text, f"the table does not say {words!r}:\n{text}")
    rows = {row["case"]: row for row in map(json.loads, file.read_text().splitlines())}
    buckets = ["straw2", "straw", "list", "tree", "uniform"]
    first_parities = [case for case in rows if case.startswith("code/") and "first-parity" in case]
    published = {f"place/{bucket}-64/one" for bucket in buckets} | set(first_parities)
    check(len(published) == 7, f"rows are missing: {sorted(rows)}")
    for case, row in rows.items():
        check(("paper" in row) == (case in published), f"paper's number: {row}")
        check("paper" not in row or "235 MHz" in row["paper_note"], f"the paper's clock: {row}")
        check("note" in row or not case.startswith(("kernel/", "code/")), f"no note: {row}")
    alone = rows["kernel/rs:8+4/first-parity"]["ours"]
    for case in first_parities:
        # Two answers of card memory at least, program and data, each after 40 cycles.
        check(alone + 80 < rows[case]["ours"] < rows[case]["cycles"], f"{rows[case]}")


def load_during_swaps(world):
    need("fio")
    pool = world.pool("256M")
    pool.create_volume("v", "64M")
    server = pool.serve("v", options=["--accel", "rtl", "--exercise-swaps", str(SWAPS)])
    options = ["--ioengine=nbd", "--verify=crc32c", "--verify_fatal=1", "--group_reporting"]
    options += ["--size=16M", "--iodepth=8", f"--aux-path={world.folder}"]
    for number, (pattern, size) in enumerate([("randwrite", "4k"), ("write", "256k")]):
        result = run(
            "fio", f"--name=load{number}", *options,
            f"--uri={server.uri('v')}", f"--rw={pattern}", f"--bs={size}", "--end_fsync=1", seconds=300,
        )
        text = result.stdout + result.stderr
        check("err= 0" in text and "verify:" not in text, text)
    server.wait_for_output("exercise: ", times=2, seconds=300)
    said = [line for line in server.output().splitlines() if line.startswith("exercise: ")]
    print("\n".join(said))
    check(f"{SWAPS} swaps" in said[0] and "0 failed, 0 wrong" in said[0], said[0])
    check(during_swaps(said) > 1.0, f"the codes stood still during swaps: {said[1]}")

    check_turns(pool)
    engine = {did["kind"]: did for did in pool.volume_status("v")["engine"]["kinds"]}
    print(json.dumps(engine))
    for kind in ("code", "place"):
        did = engine[kind]
        check(did["device_jobs"] > 0, f"no {kind} job went to the device: {engine}")
        check(did["device_failures"] == 0, f"the device failed at {kind} jobs: {engine}")

    # At rest the clock rests, too.
    wait_until("nothing moves", lambda: idle(server), seconds=60, step=0.2)
    server.stop()


def check_turns(pool):
    """The core does not wait for the device, which takes up to seconds for a job."""
    for core in pool.status()["server"]["cores"]:
        longest = core["turn_max_ns"] / 1e9
        print(f"core {core['core']}: longest turn {longest * 1e3:.1f} ms of {core['turns']}")
        check(0 < longest <= LONGEST_TURN, f"a turn of {longest} s: {core}")
        check(core["turns"] > 1000, f"few turns: {core}")


def during_swaps(said):
    return float(re.search(r"codes ([\d.]+) bytes per cycle during swaps", said[1]).group(1))


def idle(server):
    before = server.cpu_seconds()
    time.sleep(1)
    return server.cpu_seconds() - before < 0.05


def scenario(world):
    device_or_skip()
    quickstart()
    files(world)
    selftest(world)
    bench(world)
    load_during_swaps(world)


main(scenario, ONE_CASE, computes=True)
