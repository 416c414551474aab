#!/usr/bin/python3
"""Everything that goes wrong with machines, drawn from a seed, under verified load.

A pool with little room serves two volumes and a thin one. In each cycle clients read, write, trim
and flush all of them, and one to three misfortunes begin: processes are killed or stalled, the
power fails (of some nodes, or of everything), disks answer EIO, die or run full, files are damaged.
At most M nodes lack data at a time. Then the faults end, the volumes open again within a bound, and
what clients were told must be there:

- an acknowledged write always, but when everything lost its power; a flushed one even then;
- no request waits longer than a bound, none fails, except for ENOSPC where the rules allow it: on
  the thin volume when the pool is tight, on the others only while a disk is full, or while nodes are
  lost in a pool of more nodes than a segment has shards;
- trims never fail, and make room;
- what is lost is rebuilt; a scrub and, if need be, an operator mend what was damaged.

    tests/thrash.py --case rs:4+2,processes --cycles 500 --seed 1 --progress target/thrash.jsonl

A campaign is cut into chapters of CHAPTER cycles, each with a pool of its own. All that is drawn
follows from the seed and the number of the chapter; moments and the order of requests do not. With
--progress, chapters that are done are written to a file and passed over by the next run of the same
command, so a campaign can be stopped at any time. --chapter N runs one chapter, for a second look.
Bounds do not count the time that the machine itself stood still (see lib/pulse.py).
--keep-going goes on after a failure, with the next chapter. Evidence of each lies in
target/evidence/thrash/CASE.seedS.chapterN, with --keep-pool also the pool's files.

Power failures and full disks need root, loop devices and mkfs; they are passed over and counted
elsewhere. docs/campaigns.md records long runs.
"""

import argparse
import collections
import datetime
import json
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import BLOCK, need_libnbd
from disks import why_not
from faults import KINDS, Plan
from pulse import Pulse, stalled_seconds
from rig import TIGHT_BYTES, Clients, Rig, Shape
from scenario import main
from world import Case, Failure, World, check, run

# Cycles with one pool.
CHAPTER = 25
# The run without --cycles: a few cycles, none of which waits for long, and about so many seconds.
QUICK_CYCLES = 12
QUICK_SECONDS = 35
# Every so many cycles all blocks are verified; otherwise this part.
FULL_EVERY = 5
PART = 0.25


class Cycle:
    """What happens in one cycle, as drawn."""

    def __init__(self, rng, case, faulty, quick):
        self.seconds = rng.uniform(0.3, 1.2)
        self.depth = rng.choice([1, 4, 16, 32])
        self.flush = rng.random() < 0.7
        # Servers that are killed while they open: after so many seconds.
        self.openings = [rng.uniform(0.01, 0.5) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
        # The server opens while the faults last.
        self.opens_faulty = rng.random() < (0.0 if quick else 0.1)
        # Rebuild ends before the next cycle.
        self.waits = rng.random() < 0.6
        self.plans = []
        free = case.tolerance - len(faulty)
        taken = set()
        for _ in range(rng.choice([1, 1, 2, 2, 3])):
            plan, new = self._draw(rng, case, faulty - taken, free, taken, quick)
            if plan is not None:
                self.plans.append(plan)
                taken |= set(plan.nodes)
                free -= new
        self.plans.sort(key=lambda plan: plan.at)

    def _draw(self, rng, case, faulty, free, taken, quick):
        """A fault that makes at most `free` more nodes faulty."""
        chosen = [
            kind for kind, (fault, _) in KINDS.items()
            if (case.nodes == "processes" or not fault.needs_processes)
            and all(plan.kind != kind for plan in self.plans)
        ]
        kind = rng.choices(chosen, [KINDS[kind][1] for kind in chosen])[0]
        fault = KINDS[kind][0]
        at, seed = rng.random() * self.seconds, rng.randrange(1 << 32)
        seconds = rng.uniform(0.2, 3.0) if fault.stalls else 0
        if fault.stalls and not quick and rng.random() < 0.1:
            seconds = rng.uniform(10, 14)
        nodes, new = (), 0
        if fault.takes != "none":
            known, others = sorted(faulty), sorted(set(range(case.node_count)) - faulty - taken)
            rng.shuffle(known)
            rng.shuffle(others)
            wanted = 1 if fault.takes == "one" else rng.choice([1, 1, case.tolerance])
            if rng.random() < 0.3:
                nodes = known[:wanted]
            more = others[: min(free, wanted - len(nodes))]
            nodes, new = sorted([*nodes, *more]), len(more)
            if not nodes:
                return None, 0
        return Plan(kind, nodes, at, seconds, seed), new

    def __str__(self):
        return "; ".join(map(str, self.plans)) or "nothing"


class Chapter:
    """Cycles with one pool."""

    def __init__(self, world, options, number, with_disks):
        self.options, self.number = options, number
        self.rng = random.Random(f"{options.seed}:{number}")
        shape = Shape(world.case, self.rng, options.room)
        print(f"chapter {number}, seed {options.seed}: {shape}", flush=True)
        self.log = open(world.file("thrash.log"), "w")
        self.rig = Rig(world, shape, with_disks, self.tell)
        self.faulty = set()
        self.counts = collections.Counter()
        self.failed = False
        # Before the disks are taken down.
        world.closers.insert(0, self._keep_pool)

    def _keep_pool(self):
        """The pool's files as evidence, if that was asked for."""
        if self.failed and self.options.keep_pool:
            place = self.rig.world.evidence / "pool"
            run("cp", "-r", "--sparse=always", self.rig.pool.path, place, ok=None)

    def tell(self, text):
        print(text, flush=True)
        print(text, file=self.log, flush=True)

    def run(self, cycles, over):
        """Runs so many cycles, or until `over()` says that time is up."""
        self.rig.open()
        for number in range(cycles):
            if over():
                break
            began = time.monotonic()
            cycle = Cycle(self.rng, self.rig.case, self.faulty, self.options.quick)
            self.rig.notes.clear()
            label = f"seed {self.options.seed} chapter {self.number} cycle {number}"
            print(f"{label}: {cycle}", file=self.log, flush=True)
            try:
                self._cycle(cycle, number)
            except Exception as error:
                self.failed = True
                raise Failure(f"{label} ({cycle}; {'; '.join(self.rig.notes)}): {error}") from error
            self.counts["cycles"] += 1
            notes = f" [{'; '.join(self.rig.notes)}]" if self.rig.notes else ""
            self.tell(f"{label}: {cycle}{notes} ({time.monotonic() - began:.1f} s)")
        self.rig.end_server()
        self.rig.start_nodes(range(self.rig.pool.count))
        self.rig.open()
        self.rig.verify()
        self.rig.wait_until_whole()
        self.rig.end_server()

    def _faults(self, cycle):
        for plan in cycle.plans:
            fault = KINDS[plan.kind][0]
            if fault.needs_disks and self.rig.disks is None:
                self.counts["passed over"] += 1
                self.rig.note(f"{plan.kind} passed over")
                continue
            self.counts[plan.kind] += 1
            if fault.hurts:
                self.faulty |= set(plan.nodes)
            yield fault(plan)

    def _cycle(self, cycle, number):
        rig, full = self.rig, {name: ledger.full for name, ledger in self.rig.ledgers.items()}
        rooms = rig.room()
        faults = list(self._faults(cycle))
        faulty = set(self.faulty)
        for fault in faults:
            fault.prepare(rig)
        self._under_load(cycle, faults)
        if rig.power_lost:
            for ledger in rig.ledgers.values():
                ledger.power_failed()
        everywhere = {"kill_all", "power_all"} & {plan.kind for plan in cycle.plans}
        if cycle.opens_faulty and not everywhere:
            # The nodes that are left are enough.
            rig.open()
            rig.verify(PART, cycle.flush)
            self.counts["openings with faults"] += 1
        for fault in sorted(faults, key=lambda fault: fault.rank):
            fault.end(rig)
        if not rig.server.is_running():
            for seconds in cycle.openings:
                rig.open_and_kill(seconds)
                self.counts["openings killed"] += 1
        rig.open()
        everything = rig.power_lost or number % FULL_EVERY == FULL_EVERY - 1
        rig.power_lost = False
        rig.verify(1.0 if everything else PART, cycle.flush)
        if rig.damaged:
            rig.mend()
            self.faulty.clear()
        elif faulty and (cycle.waits or len(faulty) == rig.case.tolerance):
            rig.wait_until_whole()
            self.faulty.clear()
        if faulty and not self.faulty:
            # Once more, from what was rebuilt.
            rig.verify(PART, cycle.flush)
        self._check_full(full, rooms, faulty)

    def _under_load(self, cycle, faults):
        """Faults begin while clients are at work; those end whom a fault has left a server."""
        rig = self.rig
        # A full disk counts as a full pool; and where nodes are lost, each of the others has to take
        # more shards than a volume reserves there.
        full = any(fault.plan.kind == "full_disk" for fault in faults)
        full = full or (bool(self.faulty) and rig.case.has_spare_nodes)
        clients = Clients(rig, cycle.depth, full)
        began = time.monotonic()
        killed = False
        for fault in faults:
            if not killed:
                time.sleep(max(0, began + fault.plan.at - time.monotonic()))
            check(killed or rig.server.is_running(), f"the server ended:\n{rig.server.errors()}")
            fault.begin(rig)
            killed = killed or not rig.server.is_running()
        if not killed:
            time.sleep(max(0, began + cycle.seconds - time.monotonic()))
        for fault in faults:
            # A short stall is over before the clients stop. A long one shows what they wait for.
            if fault.plan.kind == "stall_nodes" and not cycle.opens_faulty:
                fault.end(rig)
        died = clients.finish()
        check(killed or not died, f"connections broke:\n{rig.server.errors()[-4000:]}")

    def _check_full(self, full, rooms, faulty):
        """ENOSPC on the thin volume is right if the pool is tight, nodes were `faulty`, or the
        volume is nearly full."""
        rig = self.rig
        for name, ledger in rig.ledgers.items():
            refusals = ledger.full - full[name]
            if refusals == 0:
                continue
            self.counts["ENOSPC"] += refusals
            capacities, free = rig.room()
            live = ledger.live_blocks() * BLOCK
            check(
                min(free, rooms[1]) < TIGHT_BYTES or live > rooms[0][name] / 2 or faulty,
                f"{name}: {refusals} times ENOSPC with {live} of {capacities[name]} bytes live "
                f"and {free} bytes free on each node",
            )
            if not self.faulty:
                rig.make_room(name)
                self.counts["trims for room"] += 1

    def result(self, failure, seconds):
        """One line of the progress file."""
        rig, ledgers = self.rig, self.rig.ledgers.values()
        for name in ("writes", "reads", "flushes", "verified"):
            self.counts[name] = sum(getattr(ledger, name) for ledger in ledgers)
        self.counts["nodes given up"] = rig.renewed
        self.log.close()
        return {
            "case": str(rig.case), "seed": self.options.seed, "chapter": self.number,
            "seconds": round(seconds, 1), "failure": failure, "counts": dict(self.counts),
            "slowest_answer": round(max(ledger.slowest for ledger in ledgers), 2),
            "slowest_opening": round(rig.slowest_opening, 2),
            "slowest_whole": round(rig.slowest_whole, 2),
        }


class Campaign:
    """Chapters until all cycles are done."""

    def __init__(self, case, options):
        self.case, self.options = case, options
        self.began = time.monotonic()
        self.results = []
        self.progress = pathlib.Path(options.progress) if options.progress else None
        if self.progress and self.progress.exists():
            lines = map(json.loads, self.progress.read_text().splitlines())
            mine = lambda line: (line["case"], line["seed"]) == (str(case), options.seed)
            self.results = list(filter(mine, lines))
        self.resumed = len(self.results)

    def is_over(self):
        return self.options.quick and time.monotonic() - self.began > QUICK_SECONDS

    def run(self, with_disks):
        done = {result["chapter"] for result in self.results}
        chapters = -(-self.options.cycles // CHAPTER)
        wanted = range(chapters) if self.options.chapter is None else [self.options.chapter]
        left = [number for number in wanted if number not in done]
        for place, number in enumerate(left):
            result = self._chapter(number, with_disks)
            self.results.append(result)
            if self.progress:
                with open(self.progress, "a") as file:
                    print(json.dumps(result), file=file, flush=True)
            self._tell(len(left) - place - 1)
            if result["failure"] and not self.options.keep_going:
                break
            if self.is_over():
                break
        return [result["failure"] for result in self.results if result["failure"]]

    def _chapter(self, number, with_disks):
        cycles = min(CHAPTER, self.options.cycles - number * CHAPTER)
        if self.options.chapter is not None:
            cycles = CHAPTER
        began, failure, chapter = time.monotonic(), None, None
        stalled = stalled_seconds()
        evidence = f"{self.case}.seed{self.options.seed}.chapter{number}"
        try:
            with World("thrash", self.case, evidence) as world, Pulse(world.folder):
                world.die_with_parent = True
                chapter = Chapter(world, self.options, number, with_disks)
                chapter.run(cycles, self.is_over)
        except Failure as error:
            if chapter is None or "time limit" in str(error):
                raise
            failure = str(error)
            print(f"FAILED: {failure}", flush=True)
        result = chapter.result(failure, time.monotonic() - began)
        result["stalled_seconds"] = round(stalled_seconds() - stalled, 1)
        return result

    def _tell(self, left):
        ran = self.results[self.resumed :]
        seconds = time.monotonic() - self.began
        cycles = sum(result["counts"].get("cycles", 0) for result in ran)
        rest = datetime.timedelta(seconds=int(seconds / len(ran) * left))
        failures = sum(1 for result in self.results if result["failure"])
        print(
            f"{cycles} cycles in {seconds:.0f} s, {cycles * 60 / seconds:.1f} a minute, "
            f"{failures} failed chapters, {left} chapters left, about {rest}", flush=True,
        )

    def summary(self, why_no_disks):
        """The run in a few lines, the first of them a row for docs/campaigns.md."""
        total = collections.Counter()
        for result in self.results:
            total.update(result["counts"])
        failures = [result["failure"] for result in self.results if result["failure"]]
        worst = {
            name: max((result[f"slowest_{name}"] for result in self.results), default=0)
            for name in ("answer", "opening", "whole")
        }
        faults = sum(total[kind] for kind in KINDS)
        what = (
            f"thrasher, {self.case}: {total['cycles']} cycles, {faults} faults, "
            f"{total['writes']:,} acknowledged writes, {total['flushes']:,} flushes, "
            f"{total['reads']:,} reads, {total['verified'] * BLOCK / (1 << 30):.1f} GiB verified"
        )
        command = (
            f"tests/thrash.py --case {self.case} --cycles {self.options.cycles} "
            f"--seed {self.options.seed}"
        )
        outcome = f"{len(failures)} failed chapters" if failures else "nothing lost, all reopened"
        print(
            f"| {datetime.date.today()} | {what} | `{command}` | COMMIT | {outcome}; "
            f"slowest answer {worst['answer']} s, opening {worst['opening']} s, rebuild {worst['whole']} s |"
        )
        print("faults: " + ", ".join(f"{total[kind]} {kind}" for kind in KINDS))
        rest = ["openings with faults", "openings killed", "ENOSPC", "trims for room"]
        rest.append("nodes given up")
        stalled = sum(result.get("stalled_seconds", 0) for result in self.results)
        print(f"the machine stood still for {stalled:.0f} s in all")
        print("beside: " + ", ".join(f"{total[name]} {name}" for name in rest))
        if why_no_disks:
            count = total["passed over"]
            print(f"passed over: {count} faults that need disks ({why_no_disks})")
        for failure in failures:
            print(f"failed: {failure.splitlines()[0]}")


def scenario(world, options):
    need_libnbd()
    options.quick = options.cycles is None
    if options.quick:
        options.cycles = QUICK_CYCLES
    reason = "--no-disks" if options.no_disks else why_not(world.folder, ("ext4", "xfs"))
    if reason:
        print(f"no disks that can fail here: {reason}", flush=True)
    campaign = Campaign(world.case, options)
    try:
        failures = campaign.run(with_disks=reason is None)
    finally:
        campaign.summary(reason)
    if failures:
        raise Failure(f"{len(failures)} chapters failed; the first: {failures[0]}")


parser = argparse.ArgumentParser()
parser.add_argument("--cycles", type=int, help="a campaign of so many; without it a few quick ones")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--chapter", type=int, help="run this chapter only")
parser.add_argument("--room", type=int, help="MiB of each node beyond the least; drawn by default")
parser.add_argument("--progress", help="file of what is done; the same command goes on from there")
parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
parser.add_argument("--keep-pool", action="store_true", help="the pool's files are evidence, too")
parser.add_argument("--no-disks", action="store_true", help="no loop devices, as without root")
main(scenario, [Case("rs:4+2", "processes"), Case("copies:3", "inside")], parser)
