#!/usr/bin/python3
"""kill -9 of the server at random moments, again and again; nodes are lost on top of it.

Each round: a verifying writer (lib/ledger.py) loads one volume while fio verifies another of the
same server. At a random moment the server is killed. Then, at random: nothing else; all node
processes are killed as well; up to M nodes lose their folders. The server is started again, and

- every acknowledged write is there, no block is torn or changes between two reads;
- fio finds nothing wrong with what it reads back;
- missing shards are rebuilt without being asked, before the next round.

    tests/kill_server.py --rounds 50 --seed 1 --case rs:4+2,inside

docs/campaigns.md records long runs.
"""

import argparse
import pathlib
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect
from ledger import BLOCK, Ledger
from scenario import main
from world import COPIES_INSIDE, ENVIRONMENT, EVERY_CASE, MIB, check, need

LEDGER_BYTES = 48 * MIB


class Fio:
    """fio beside the writer, on a volume of its own, until the server dies."""

    def __init__(self, world, uri, seed):
        self.log = world.file(f"fio{seed}.log")
        command = [
            "fio", "--name=beside", "--ioengine=nbd", f"--uri={uri}", "--rw=randrw",
            "--bsrange=4k-512k", "--size=40M", "--iodepth=8", "--verify=crc32c",
            "--verify_fatal=1", "--verify_backlog=64", "--time_based", "--runtime=60",
            f"--randseed={seed}", "--verify_state_save=0",
        ]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT
            )

    def end(self):
        """The connection is gone; fio must not have seen wrong data before that."""
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        text = self.log.read_text(errors="replace")
        check("verify:" not in text and "bad magic" not in text, text)


def one_round(world, pool, server, ledger, rng, number):
    fio = Fio(world, server.uri("fio"), number)
    moment = rng.uniform(0.05, 1.5)
    killer = threading.Timer(moment, server.process.kill)
    killer.start()
    try:
        died = ledger.load(server.uri("v"), rng.choice([1, 8, 32]), stop=lambda: False)
    finally:
        killer.cancel()
        server.process.kill()
        fio.end()
    check(died, "the writer ended by itself")
    server.process.wait()
    misfortune = rng.choice(["none", "none", "processes", "folders"])
    lost = []
    if misfortune == "processes":
        pool.kill_nodes()
    if misfortune == "folders":
        lost = rng.sample(range(pool.count), rng.randint(1, pool.case.tolerance))
        for index in lost:
            pool.delete_node(index)
    pool.start_missing_nodes()
    # Direct appends take a while, so large writes gather and go around the journal.
    direct = ["--direct"] if pool.case.nodes == "inside" and rng.random() < 0.5 else []
    server = pool.serve("v", "fio", options=direct)
    ledger.verify(server.uri("v"))
    pool.wait_until_whole("v", "fio")
    if lost:
        # Once more from the rebuilt shards.
        ledger.verify(server.uri("v"))
    print(
        f"round {number}: killed after {moment:.2f} s, {misfortune} {lost or ''}, "
        f"{ledger.writes} writes and {ledger.flushes} flushes so far", flush=True,
    )
    return server


def scenario(world, options):
    need("fio")
    rng = random.Random(options.seed)
    pool = world.pool("768M")
    pool.create_volume("v", LEDGER_BYTES)
    pool.create_volume("fio", "48M")
    ledger = Ledger(LEDGER_BYTES // BLOCK, options.seed)
    server = pool.serve("v", "fio")
    began = time.monotonic()
    for number in range(options.rounds):
        server = one_round(world, pool, server, ledger, rng, number)
    # An orderly end, and everything once more.
    server.stop()
    server = pool.serve("v", "fio")
    ledger.verify(server.uri("v"))
    connect(server.uri("fio")).shutdown()
    server.stop()
    print(
        f"{options.rounds} rounds, seed {options.seed}: {ledger.writes} acknowledged writes, "
        f"{ledger.flushes} flushes, nothing lost, {time.monotonic() - began:.0f} s"
    )


parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--seed", type=int, default=1)
main(scenario, COPIES_INSIDE, parser, more=EVERY_CASE)
