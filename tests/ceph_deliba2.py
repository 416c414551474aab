#!/usr/bin/python3
"""`fieldstone bench deliba2-…` on our own nodes, on the null cluster and on a real cluster: every
row is there with the paper's number or the reason why there is none, numbers fit together, the page
needs nothing else, and nothing is left behind."""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, need_ceph
from scenario import main
from world import Case, Skip, check, fieldstone, need, refused

PATTERNS = ["write", "read", "randread", "randwrite"]
STAGES = ["client", "kernel", "user-space", "storage"]
OWN = ["own-embed", "own-nbd"]
CEPH = ["ceph-embed", "ceph-nbd"]
# Our volumes have a cache and read ahead, and so does their peer.
PEERS = {**dict.fromkeys(OWN, "librbd-cache"), **dict.fromkeys(CEPH, "librbd")}
BENCH_SECONDS = 500
# Table 3 of the paper: 4 kB, hardware and software, of replication and of erasure coding.
TABLE_3 = {
    "rep-4k-read-qd1": (55, 65),
    "rep-4k-randread-qd1": (85, 130),
    "ec-4k-write-qd1": (70, 88),
    "ec-128k-randwrite-qd1": (198, 221),
}


def need_fio(*engines):
    need("fio")
    listed = subprocess.run(["fio", "--enghelp"], capture_output=True, text=True, timeout=30)
    for engine in engines:
        if engine not in listed.stdout.split():
            raise Skip(f"fio has no engine {engine}")


def bench(world, name, *options):
    """Runs a benchmark: its rows by case, unit and peer, its report and its page."""
    rows, page = world.file("rows.json"), world.file("page.html")
    files = ["--json", rows, "--html", page, "--dir", world.folder]
    text = fieldstone("bench", name, "--quick", *files, *options, seconds=BENCH_SECONDS).stdout
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    unique = {(row["case"], row["unit"], row["peer"]): row for row in found}
    check(len(unique) == len(found), f"{name}: case, unit and peer are not unique")
    for row in found:
        check(row["bench"] == name, f"a row of {name} says {row['bench']}")
        check((row["paper"] is None) == ("paper_note" in row), f"no word about the paper: {row}")
        check(row["paper"] is None or "DeLiBA-2" in row["paper_ref"], f"no place: {row}")
        check(any("FPGA" in line for line in row["differs"]), f"what differs: {row}")
    html = page.read_text()
    check("<svg" in html and name.split("-")[0] in html.lower(), f"{name}: no charts")
    for outside in ("<script", "<link", "src=", "@import"):
        check(outside not in html, f"{name}: the page needs {outside}")
    left = list(world.folder.glob("fieldstone-bench-*"))
    check(not left, f"{name}: {left} is left behind")
    return unique, text


def latencies(found, peers, modes):
    """Table 3: latencies with both numbers of the paper. `peers` has the peer of each of ours."""
    contenders = list(peers)
    check(len(found) == len(modes) * 2 * 4 * len(contenders), f"{len(found)} rows")
    for row in found.values():
        check(0.1 < row["ours"] < 1e6, f"no latency: {row}")
        peer = peers[row["case"].split("/")[1]]
        check((row["theirs"] is not None) == (peer is not None), f"peer: {row}")
    for case, (hardware, software) in TABLE_3.items():
        if case.split("-")[0] not in modes:
            continue
        for contender in contenders:
            row = found[(f"{case}/{contender}", "us", peers[contender])]
            printed = (row["paper"], row["paper_software"], row["paper_of"])
            check(printed == (hardware, software, "hardware"), f"the paper: {row}")


def stages(found, contenders):
    """Fig. 6: the stages of each pattern and of their mean are 100 %."""
    check(len(found) == len(contenders) * 5 * 4, f"{len(found)} rows")
    for contender in contenders:
        for pattern in [*PATTERNS, "mean"]:
            case = f"rep-4k-{pattern}-qd1/{contender}"
            rows = [found[(f"{case}/{stage}", "% of the latency", None)] for stage in STAGES]
            check(abs(sum(row["ours"] for row in rows) - 100) < 0.5, f"{case} is not 100 %")
            check(all(row["ours_us"] >= 0 for row in rows), f"{case}: below zero")
            printed = [row["paper"] for row in rows]
            wanted = [7, 47.25, 15.75, 29.5] if pattern == "mean" else [None] * 4
            check(printed == wanted, f"{case}: the paper: {printed}")
            # A read may come from the cache; a write waits for its copies.
            if pattern in ("write", "randwrite"):
                check(rows[3]["ours_us"] > 0.5, f"{case}: no time for storage: {rows[3]}")
            check(rows[2]["ours_parts_us"], f"{case}: no parts of user space: {rows[2]}")


def cores(found, peers):
    """Fig. 7: one core and more, and the best, which has the paper's number."""
    for contender, peer in peers.items():
        for pattern, printed in (("read", 45), ("write", 30)):
            case = f"rep-4k-{pattern}-qd64"
            one = found[(f"{case}-cores1/{contender}", "MB/s", peer)]
            best = found[(f"{case}-best/{contender}", "MB/s", None)]
            check(0 < one["ours"] <= best["ours"], f"{case}: {one} is above the best {best}")
            check(best["paper"] == printed and one["paper"] is None, f"the paper: {best}")


def own(world):
    need_fio("nbd")
    found, text = bench(world, "deliba2-table3", "--size", "32M")
    latencies(found, dict.fromkeys(OWN), ["rep", "ec"])
    check("no cluster was named" in text and "130" in text, text)
    found, text = bench(world, "deliba2-fig6", "--size", "32M")
    stages(found, ["own-nbd"])
    check("no kernel NBD client" in text, text)
    found, _ = bench(world, "deliba2-fig7", "--size", "32M", "--cores", "2")
    cores(found, {"own-nbd": None})
    only = ["--only", "rep-512k-read-qd4/own-nbd", "--depth", "4", "--size", "32M"]
    found, _ = bench(world, "deliba2-fig4", *only)
    row = found[("rep-512k-read-qd4/own-nbd", "MB/s", None)]
    check(len(found) == 3 and row["paper"] == 750 and row["ours"] > 1, f"one case: {found}")


def refusals(world):
    need_fio("nbd")
    for words, says in [
        (["--ec", "rs:6+3"], ["rs:6+3", "9 shards"]),
        (["--ec", "zigzag:4+2"], ["zigzag:4+2", "rs:K+M"]),
        (["--only", "rep-4k-read-qd7"], ["rep-4k-read-qd7", "librbd"]),
        (["--data-pool", "ec"], ["--data-pool", "--conf"]),
        (["--size", "3M"], ["--size"]),
        (["--conf", world.file("no.conf")], ["no.conf"]),
        (["--conf", world.file("no.conf"), "--image", "disk"], ["--image"]),
    ]:
        refused("bench", "deliba2-fig4", *words, says=says, seconds=30)
    refused("bench", "deliba2-fig8", says=["deliba2-fig8", "LIST"], seconds=30)
    listed = fieldstone("bench", "LIST").stdout
    for name in ("deliba2 ", "deliba2-fig4", "deliba2-fig13", "deliba2-table5"):
        check(name in listed, f"{name} is not listed: {listed}")


def null(world):
    need_fio("nbd", "rbd")
    found, text = bench(world, "deliba2-fig13", "--null", "--only", "rep-4k-*,rep-16k-*")
    row = found[("rep-4k-write-qd1/ceph-embed", "times the throughput of librbd", None)]
    check(row["ours"] > 0 and row["paper"] == 2.81, f"a gain: {row}")
    row = found[("rep-16k-read-qd1/ceph-nbd", "times the throughput of librbd", None)]
    check(row["paper_derived"] and abs(row["paper"] - 121 / 68) < 1e-6, f"derived: {row}")
    check(not any("/own-" in case for case, _, _ in found), "a gain over other storage")
    only = ["--only", "rep-4k-read-*/own-embed,rep-4k-read-*/librbd-cache"]
    found, _ = bench(world, "deliba2-fig11", "--null", *only)
    row = found[("rep-4k-read-qd1/own-embed", "IOPS", "librbd-cache")]
    check(row["theirs"] > 0, f"librbd with a cache: {row}")
    check("stores nothing" in text, text)


def ceph(world):
    need_ceph()
    need_fio("nbd", "rbd")
    cluster = Cluster(world)
    cluster.make_pool("rep")
    cluster.make_pool("ec", "jerasure")
    cluster.wait_until_clean()
    place = ["--conf", cluster.conf, "--pool", "rep", "--data-pool", "ec"]
    found, _ = bench(world, "deliba2-table3", *place)
    latencies(found, PEERS, ["rep", "ec"])
    found, _ = bench(world, "deliba2-fig6", *place)
    stages(found, ["own-nbd", "ceph-nbd"])
    found, _ = bench(world, "deliba2-fig7", *place, "--cores", "2")
    cores(found, {who: PEERS[who] for who in ("own-nbd", "ceph-nbd")})
    check(cluster.rbd("ls", "rep").stdout == "", "an image is left behind")


def scenario(world):
    steps = {"own": own, "refusals": refusals, "null": null, "ceph": ceph}
    steps[world.case.code](world)


main(
    scenario,
    [Case("own", "nodes"), Case("refusals", "none"), Case("null", "cluster"),
     Case("ceph", "memstore")],
)
