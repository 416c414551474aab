#!/usr/bin/python3
"""`fieldstone bench rbd` on a real cluster and on the null cluster: every row is there, its numbers
fit together, nothing is left behind, and no image of somebody else is written."""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, need_ceph
from scenario import main
from world import Case, Skip, check, fieldstone, need, refused

DEPTHS = {
    "4k-randread-qd1": 1,
    "4k-randwrite-qd1": 1,
    "4k-randread-qd32": 32,
    "4k-randwrite-qd32": 32,
    "128k-randread-qd16": 16,
    "128k-randwrite-qd16": 16,
}
PAIRS = [
    ("embed", "librbd"),
    ("embed-callback", "librbd"),
    ("embed-callback", "librbd-callback"),
    ("nbd", "librbd"),
    ("rados", "librados"),
]
UNITS = [
    "IOPS",
    "us mean latency",
    "us p99 latency",
    "us of client CPU per I/O",
    "context switches per I/O",
    "us of OSD CPU per I/O",
]
# What the process that is the client of Ceph costs, and what it costs together with fio.
OF_THE_CLIENT = ["us of client CPU per I/O", "context switches per I/O"]
WITH_FIO = ["us of client and fio CPU per I/O", "context switches of client and fio per I/O"]
BENCH_SECONDS = 400


def need_fio():
    need("fio")
    engines = subprocess.run(["fio", "--enghelp"], capture_output=True, text=True, timeout=30)
    for engine in ("rbd", "nbd"):
        if engine not in engines.stdout.split():
            raise Skip(f"fio has no engine {engine}")


def rows_of(cluster, world, *options):
    file = world.file("bench.json")
    place = ["--conf", cluster.conf, "--pool", "rep", "--json", file, "--dir", world.folder]
    text = fieldstone("bench", "rbd", *place, *options, seconds=BENCH_SECONDS).stdout
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    found = {(row["case"], row["unit"], row["peer"]): row for row in rows}
    check(len(found) == len(rows), "case, unit and peer are not unique")
    return found, text


def fits(detail, depth, what):
    """Little's law: the requests under way are those per second times the time of each. A short
    run and a loaded machine move it, but not by much."""
    under_way = detail["iops"] * detail["mean_us"] / 1e6
    check(0.6 * depth < under_way < 1.3 * depth, f"{what}: {under_way:.2f} under way, not {depth}")
    check(detail["p50_us"] <= detail["p99_us"] * 1.001, f"{what}: p50 is above p99: {detail}")
    parts = detail["client_user_us_per_io"] + detail["client_system_us_per_io"]
    check(0 < detail["client_us_per_io"] < 20_000, f"{what}: CPU time {detail}")
    check(abs(parts - detail["client_us_per_io"]) < 1 + 0.2 * parts, f"{what}: parts {detail}")


def every_row(found, prefix):
    for case, depth in DEPTHS.items():
        for ours, peer in PAIRS:
            name = f"{prefix}{case}/{ours}"
            for unit in UNITS:
                row = found.get((name, unit, peer))
                check(row is not None, f"there is no row {name}, {unit}, {peer}")
                # fio is in librbd's number, and not in that of our server.
                alike = ours != "nbd" or unit not in OF_THE_CLIENT
                check((row["theirs"] is not None) == alike, f"fio on one side, or a hole: {row}")
                # One in flight on an idle machine needs hardly a switch, and OSDs little time.
                least = 0 if "switches" in unit or "OSD" in unit else 1e-9
                numbers = [row["ours"], row["theirs"]] if alike else [row["ours"]]
                check(all(number >= least for number in numbers), f"no number: {row}")
            details = found[(name, "IOPS", peer)]
            fits(details["ours_detail"], depth, name)
            fits(details["theirs_detail"], depth, f"{name}, {peer}")
        for unit in WITH_FIO:
            row = found.get((f"{prefix}{case}/nbd", unit, "librbd"))
            check(row is not None and row["ours"] > 0, f"{prefix}{case}: nothing with fio: {row}")
            check(row["theirs"] is not None, f"{prefix}{case}: no librbd beside it: {row}")
    row = found[(f"{prefix}open/embed", "ms of client CPU", "librbd")]
    check(0.1 < row["ours"] < 2_000 and 1 < row["theirs"] < 10_000, f"opening costs {row}")


def whole(cluster, world):
    found, text = rows_of(cluster, world, "--quick")
    every_row(found, "")
    every_row(found, "null/")
    for case in DEPTHS:
        row = found[(f"{case}/embed", "IOPS", "librbd")]
        check(row["limit"] > row["ours"] * 0.5, f"the bound of the OSDs is not plausible: {row}")
        check(row["theirs_detail"]["osd_us_per_io"] > 1, f"OSDs use no CPU time: {row}")
    check("at most" in text and "of librbd's IOPS" in text, f"no bound is told:\n{text}")
    check("targets reached" in text, text)
    check(cluster.rbd("ls", "rep").stdout == "", "an image is left behind")
    left = [name for name in cluster.rados("-p", "rep", "ls").stdout.split() if "bench" in name]
    check(not left, f"objects are left behind: {left[:3]}")


def foreign_images(cluster, world):
    """An image of somebody else is refused, and written only if the user says so. It stays."""
    cluster.rbd("create", "rep/mine", "--size", "32M")
    file = world.file("mine.raw")
    file.write_bytes(b"precious" * 4096)
    cluster.rbd("rm", "rep/mine", "--no-progress")
    cluster.rbd("import", "--no-progress", file, "rep/mine")
    place = ["--conf", cluster.conf, "--pool", "rep", "--image", "mine"]
    refused("bench", "rbd", "--quick", *place, says=["rep/mine", "--overwrite"], seconds=60)
    check(cluster.export("rep/mine") == file.read_bytes(), "a refused image was written")

    cluster.rbd("create", "rep/given", "--size", "32M")
    only = ["--only", "4k-randread-qd1/embed", "--image", "given", "--overwrite"]
    found, _ = rows_of(cluster, world, "--quick", *only)
    row = found[("4k-randread-qd1/embed", "IOPS", None)]
    check(row["ours"] > 1 and row["theirs"] is None, f"one contender gives {row}")
    data = cluster.export("rep/given")
    check(len(data) == 32 << 20, f"the image has {len(data)} bytes")
    check(data[: 1 << 20].strip(b"\0") != b"", "the image was not written before it was read")


def refusals(cluster, world):
    nowhere = world.file("no.conf")
    refused("bench", "rbd", "--conf", nowhere, says=["no.conf", "--null"], seconds=30)
    place = ["--conf", cluster.conf]
    refused("bench", "rbd", *place, "--pool", "none", says=["none"], seconds=60)
    words = ["--only", "4k-randread-qd2"]
    refused("bench", "rbd", *place, *words, says=["4k-randread-qd2", "librbd"], seconds=30)


def scenario(world):
    need_ceph()
    need_fio()
    cluster = Cluster(world)
    cluster.make_pool("rep")
    cluster.wait_until_clean()
    refusals(cluster, world)
    whole(cluster, world)
    foreign_images(cluster, world)


main(scenario, [Case("ceph", "memstore")])
