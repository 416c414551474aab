#!/usr/bin/python3
"""OSDMaps: every placement as osdmaptool computes it, what moves, and upmaps that osdmaptool keeps.

The maps are made by osdmaptool and crushtool: clusters of random shape, with random devices out, and
upmaps of osdmaptool's own making.
"""

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from scenario import main
from world import ONE_CASE, check, fieldstone, need, refused, run

CLUSTERS = 6
SEED = 4


def make_cluster(folder, rng):
    """An OSDMap of one pool on a tree of racks, hosts and OSDs, some with other weights."""
    osds, hosts, racks = rng.randint(40, 160), rng.randint(2, 5), rng.randint(2, 4)
    crush, osdmap = folder / "crush", folder / "osdmap"
    run("crushtool", "-o", crush, "--build", "--num_osds", osds,
        "host", "straw2", hosts, "rack", "straw2", racks, "root", "straw2", 0)
    for osd in rng.sample(range(osds), osds // 4):
        run("crushtool", "-i", crush, "--reweight-item", f"osd.{osd}",
            round(rng.uniform(0.3, 3.0), 2), "-o", crush)
    run("osdmaptool", "--createsimple", osds, osdmap, "--clobber",
        "--with-default-pool", "--pg-bits", rng.randint(2, 4))
    run("osdmaptool", osdmap, "--import-crush", crush)
    return osdmap, osds


def placements(osdmap, *options):
    """What osdmaptool says of every placement group."""
    output = run("osdmaptool", osdmap, *options, "--test-map-pgs-dump-all").stdout
    return [line for line in output.splitlines() if " raw (" in line]


def same_placements(osdmap, *options):
    theirs = placements(osdmap, *options)
    ours = fieldstone("crush", "place", osdmap, *options).stdout.splitlines()
    check(len(theirs) > 100, f"osdmaptool lists only {len(theirs)} groups")
    for our, their in zip(ours, theirs):
        check(our == their, f"{osdmap} {options}: we say {our}, osdmaptool {their}")
    check(len(ours) == len(theirs), f"{len(ours)} groups, not {len(theirs)}")


def same_objects(osdmap, rng):
    for _ in range(5):
        name = "".join(rng.choices("abcxyz0189._ -", k=rng.randint(1, 40))).strip() or "x"
        theirs = run("osdmaptool", osdmap, "--mark-up-in", "--test-map-object", name, "--pool", 1)
        line = fieldstone("crush", "place", osdmap, "--mark-up-in", "--pool", 1,
                          f"--object={name}", "--json").stdout
        ours = json.loads(line)
        members = ",".join(map(str, ours["acting"]))
        said = f" object '{name}' -> {ours['pgid']} -> [{members}]"
        check(said in theirs.stdout, f"{said!r} is not in {theirs.stdout!r}")


def balanced(osdmap, folder):
    """Our upmaps lower the spread to the limit, osdmaptool keeps them all, and finds no more."""
    saved, commands = folder / "balanced", folder / "commands"
    told = fieldstone("crush", "balance", osdmap, "--mark-up-in", "--deviation", 2, "--max", 100000,
                      "--out", commands, "--save", saved, "--json")
    plan = json.loads(told.stdout)
    pool = plan["pools"][0]
    check(plan["moves"] > 0, "nothing to balance")
    check(pool["after"]["max_deviation"] <= 2, f"{pool['after']} is above the limit")
    check(pool["after"]["standard_deviation"] < pool["before"]["standard_deviation"], str(pool))
    lines = commands.read_text().splitlines()
    check(len(lines) == len(plan["proposals"]), "commands and proposals differ in number")
    same_placements(saved, "--mark-up-in")
    removed = folder / "removed"
    run("osdmaptool", saved, "--mark-up-in", "--upmap-cleanup", removed)
    check(removed.read_text() == "", f"osdmaptool rejects:\n{removed.read_text()}")
    again = fieldstone("crush", "balance", saved, "--mark-up-in", "--deviation", 2, "--json")
    check(json.loads(again.stdout)["moves"] == 0, "there is still something to balance")
    counts = {}
    for line in placements(saved, "--mark-up-in"):
        for osd in line.split("up ([")[1].split("]")[0].split(","):
            counts[int(osd)] = counts.get(int(osd), 0) + 1
    for osd in pool["osds"]:
        check(counts.get(osd["osd"], 0) == osd["after"], f"osd.{osd['osd']}: {counts} {osd}")
    moved = json.loads(
        fieldstone("crush", "diff", osdmap, saved, "--mark-up-in", "--json").stdout
    )["total"]["moved"]
    check(moved == plan["moves"], f"diff sees {moved} moves, the plan has {plan['moves']}")


def differences(osdmap, osds, folder):
    """One OSD fewer: what it had moves, and little else."""
    crush, smaller = folder / "crush", folder / "smaller"
    lost = osds // 2
    run("crushtool", "-i", crush, "--remove-item", f"osd.{lost}", "-o", smaller)
    told = fieldstone("crush", "diff", osdmap, smaller, "--mark-up-in", "--bytes-per-pg", "1G",
                      "--json")
    diff = json.loads(told.stdout)
    gone = next(osd for osd in diff["osds"] if osd["osd"] == lost)
    check(gone["after"] == 0 and gone["sent"] == gone["before"] > 0, str(gone))
    total = diff["total"]
    check(gone["before"] <= total["moved"] < 4 * gone["before"] + 20, str(total))
    check(total["moved_bytes"] == total["moved"] << 30, str(total))
    out = fieldstone("crush", "diff", osdmap, osdmap, "--mark-up-in", "--mark-out", lost, "--json")
    left = next(osd for osd in json.loads(out.stdout)["osds"] if osd["osd"] == lost)
    check((left["after"], left["sent"]) == (0, gone["before"]), str(left))
    table = fieldstone("crush", "diff", osdmap, smaller, "--mark-up-in").stdout
    check(f"osd.{lost}" in table and "least" in table, table)


def refusals(osdmap, folder):
    cut = folder / "cut"
    data = osdmap.read_bytes()
    cut.write_bytes(data[: len(data) // 2])
    refused("crush", "place", cut, says=[cut, "needs"])
    damaged = bytearray(data)
    damaged[-1] ^= 1
    cut.write_bytes(damaged)
    refused("crush", "balance", cut, says=[cut, "checksum"])
    refused("crush", "balance", folder / "crush", says=["CRUSH map", "getmap"])
    refused("crush", "place", osdmap, "--pool", "nowhere", says=["nowhere", "rbd"])
    refused("crush", "diff", folder / "crush", folder / "crush", says=["--rule"])
    refused("crush", "diff", osdmap, osdmap, "--pgs", 5, says=["OSDMaps"])


def scenario(world):
    need("osdmaptool", "crushtool")
    rng = random.Random(SEED)
    for number in range(CLUSTERS):
        folder = world.folder / f"cluster.{number}"
        folder.mkdir()
        osdmap, osds = make_cluster(folder, rng)
        same_placements(osdmap, "--mark-up-in")
        same_placements(osdmap, "--mark-up-in", "--mark-out", rng.randrange(osds))
        same_objects(osdmap, rng)
        balanced(osdmap, folder)
        differences(osdmap, osds, folder)
        # From here on with upmaps by osdmaptool.
        run("osdmaptool", osdmap, "--mark-up-in", "--upmap", folder / "theirs", "--upmap-max", 30,
            "--upmap-deviation", 1, "--save")
        same_placements(osdmap, "--mark-up-in")
        same_placements(osdmap, "--mark-up-in", "--mark-out", rng.randrange(osds))
        balanced(osdmap, folder)
        refusals(osdmap, folder)


main(scenario, ONE_CASE)
