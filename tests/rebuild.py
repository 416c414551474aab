#!/usr/bin/python3
"""Node folders are deleted while serving and while stopped; their shards are rebuilt."""

import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import check_fill, fill
from scenario import main
from world import COPIES_INSIDE, EVERY_CASE, MIB, check, fieldstone, wait_until

SIZE = 96 * MIB


def lose(pool, *lost):
    """Deletes folders under a server; nodes that are processes are replaced by empty ones."""
    for index in lost:
        pool.delete_node(index)
    pool.start_missing_nodes()


def scenario(world):
    pool = world.pool()
    pool.create_volume("v", SIZE)

    # While serving: noticed, shown, rebuilt without being asked.
    server = pool.serve("v", options=["--rebuild-limit", "64M"])
    fill(server.uri("v"), SIZE, 1)
    lose(pool, 1, 3)
    degraded = wait_until(
        "status shows missing shards",
        lambda: (v := pool.volume_status("v"))["shards_missing"] and v, 30, 0.02,
    )
    check(degraded["protection"] == "degraded", f"protection is {degraded['protection']}")
    check(degraded["segments_degraded"] > 0, "no segment is degraded")
    check_fill(server.uri("v"), SIZE, 1)
    pool.wait_until_whole("v")
    whole = pool.volume_status("v")
    check(whole["segments_degraded"] == 0 and whole["shards_missing"] == 0, f"{whole}")
    rebuilt = whole["rebuild"]
    check(rebuilt["shards_failed"] == 0, f"shards failed: {rebuilt}")
    check(rebuilt["read_bytes"] > 0 and rebuilt["written_bytes"] > 0, f"no bytes told: {rebuilt}")
    check_fill(server.uri("v"), SIZE, 1)

    # The others may go now, with the server and all.
    server.kill()
    for index in (0, 2):
        pool.delete_node(index)
    pool.start_missing_nodes()
    server = pool.serve("v")
    check_fill(server.uri("v"), SIZE, 1)
    pool.wait_until_whole("v")
    fill(server.uri("v"), SIZE, 2)
    server.stop()

    # While stopped, with automatic rebuild off: the command does it, offline and online.
    for index in (1, 2):
        pool.delete_node(index)
    pool.start_missing_nodes()
    done = fieldstone("rebuild", pool.path, "--json").stdout
    report = json.loads(done)
    check(report["volume"] == "v" and report["shards_missing"] == 0, f"rebuild told {report}")
    check(report["shards_done"] > 0 and report["read_bytes"] > 0, f"rebuild told {report}")
    # What two shards of a segment are made of is read once: K shards give both.
    ratio = report["read_bytes"] / report["written_bytes"]
    most = 2.1 if world.case.code.startswith("rs") else 1.1
    check(ratio < most, f"rebuild read {ratio:.1f} bytes for each one that it restored")

    pool.delete_node(0)
    pool.start_missing_nodes()
    server = pool.serve("v", options=["--no-auto-rebuild"])
    time.sleep(1)
    check(pool.volume_status("v")["shards_missing"] > 0, "it rebuilt without being asked")
    check_fill(server.uri("v"), SIZE, 2)
    online = json.loads(fieldstone("rebuild", pool.path / "v", "--limit", "200M", "--json").stdout)
    check(online["shards_missing"] == 0 and online["shards_done"] > 0, f"rebuild told {online}")
    check(pool.volume_status("v")["shards_missing"] == 0, "shards are still missing")
    # Nothing to do is done at once.
    fieldstone("rebuild", pool.path)
    check_fill(server.uri("v"), SIZE, 2)
    shown = fieldstone("status", pool.path).stdout
    check("v" in shown and "node" in shown, f"status for people: {shown}")
    server.stop()


main(scenario, COPIES_INSIDE, more=EVERY_CASE)
