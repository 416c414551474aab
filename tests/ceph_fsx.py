#!/usr/bin/python3
"""Random steps on images of a Ceph cluster against a model, checked by Ceph's own tools.

The example `rbd_fsx` of the crate `host` takes the steps with our client: requests of odd offsets
and lengths, resizes, snapshots, rollbacks, clones of clones, flattening, clients that die. It
compares every read. At checkpoints this script compares what `rbd export` reads, and has `rbd
object-map check` and `rbd du` look at the image.

    tests/ceph_fsx.py --case ceph,memstore --config mixed --seed 7 --operations 5000
    tests/ceph_fsx.py --case long,memstore        # 10^5 operations
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, need_ceph
from scenario import main
from world import TARGET, Case, Failure, Skip, check

# The debug build: `make unit` makes it, too, and its assertions are on.
PROGRAM = TARGET / "debug" / "examples" / "rbd_fsx"
# Configuration, operations, and in how many of 10,000 steps the client dies. The checks by Ceph's
# tools take longer than all else, so a long course has a part of them.
QUICK = [("default", 500, 0), ("mixed", 500, 0)]
LONG = [
    ("layering", 20_000, 20), ("default", 30_000, 4), ("striped", 15_000, 2),
    ("data-pool", 15_000, 2), ("mixed", 20_000, 4),
]
# One of so many checkpoints in a course of 1,000 times as many operations is checked by Ceph.
CHECKS_OF = 1_000
# Nothing is said for longer than this only if something hangs: a dead client's lock is free after
# half a minute.
SILENT_SECONDS = 300


class Course:
    """The program, and what it asks for."""

    def __init__(self, world, cluster, config, seed, operations, kills):
        self.world, self.cluster, self.checks = world, cluster, 0
        words = [
            PROGRAM, "--conf", cluster.conf, "--pool", "rep", "--folder", world.file("fsx"),
            "--config", config, "--seed", seed, "--operations", operations, "--kills", kills,
            "--every", max(1, operations // CHECKS_OF),
        ]
        world.file("fsx").mkdir(exist_ok=True)
        self.errors = world.file(f"fsx-{config}-{seed}.err")
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True,
            )
        world.closers.append(self.process.kill)
        self.heard = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        """Ends a program that says nothing for long."""
        while self.process.poll() is None:
            if time.monotonic() - self.heard > SILENT_SECONDS:
                self.process.kill()
            time.sleep(1)

    def run(self):
        """Answers until the program ends; returns its last line."""
        last = ""
        for line in self.process.stdout:
            self.heard = time.monotonic()
            last = line.strip()
            if last.startswith("check "):
                self._answer(last.split()[1:])
            self.heard = time.monotonic()
        code = self.process.wait()
        errors = self.errors.read_text()
        check(code == 0 and last.startswith("done"), f"exit code {code}, {last}\n{errors}")
        return last

    def _answer(self, words):
        image, path, *marks = words
        try:
            self._check(image, path, marks)
            answer = "ok"
            self.checks += 1
        except Failure as failure:
            answer = str(failure).replace("\n", " ")[:2000]
        self.process.stdin.write(f"{answer}\n")
        self.process.stdin.flush()

    def _check(self, image, path, marks):
        expected = pathlib.Path(path).read_bytes()
        found = self.cluster.export(image)
        if found != expected:
            at = next(
                (at for at, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), None
            )
            raise Failure(f"rbd export: {len(found)} of {len(expected)} bytes, first at {at}")
        if "map" in marks:
            if "killed" in marks:
                # A dead owner may have left an object in the map that it did not make.
                self.cluster.rbd("object-map", "rebuild", "--no-progress", image)
            self.cluster.check_object_map(image)
            self._check_usage(image, len(expected), expected)

    def _check_usage(self, image, size, expected):
        """`rbd du` trusts the map. It counts whole objects, so never less than what is not zero."""
        text = self.cluster.rbd("du", "--format", "json", image.split("@")[0]).stdout
        rows = json.loads(text)["images"]
        wanted = image.partition("@")[2] or None
        row = next(row for row in rows if row.get("snapshot") == wanted)
        check(row["provisioned_size"] == size, f"rbd du: {row} instead of {size} bytes")
        has_parent = "parent" in json.loads(
            self.cluster.rbd("info", "--format", "json", image).stdout
        )
        # What a snapshot uses is what changed since the one before it.
        alone = wanted is None and len(rows) == 1 and not has_parent
        if alone and expected.strip(b"\0"):
            check(row["used_size"] > 0, f"rbd du: {row}, and the image has data")


def scenario(world, options):
    need_ceph()
    if not PROGRAM.exists():
        build = "cargo build --workspace --example rbd_fsx"
        raise Skip(f"{PROGRAM} is not built: {build}")
    # The erasure code of the long case has four shards.
    cluster = Cluster(world, osds=4 if world.case.code == "long" else 3)
    cluster.make_pool("rep")
    cluster.make_pool("data", "jerasure" if world.case.code == "long" else None)
    cluster.wait_until_clean()
    courses = LONG if world.case.code == "long" else QUICK
    if options.config:
        courses = [(options.config, options.operations or 1_000, options.kills)]
    for config, operations, kills in courses:
        operations = options.operations or operations
        for seed in range(options.seed, options.seed + options.seeds):
            began = time.monotonic()
            course = Course(world, cluster, config, seed, operations, kills)
            last = course.run()
            counts = re.sub(r"done: |Counts ", "", last)
            print(
                f"{config}, seed {seed}: {counts}, {course.checks} checks by Ceph, "
                f"{time.monotonic() - began:.1f} s",
                flush=True,
            )


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", help="this configuration only")
parser.add_argument("--seed", type=int, default=1, help="the first seed")
parser.add_argument("--seeds", type=int, default=1, help="so many seeds")
parser.add_argument("--operations", type=int, default=0, help="so many operations of each seed")
parser.add_argument("--kills", type=int, default=0, help="deaths of the client in 10,000 steps")
main(
    scenario, [Case("ceph", "memstore")], parser, long=[Case("long", "memstore")],
    long_seconds=7200,
)
