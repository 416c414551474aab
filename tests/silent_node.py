#!/usr/bin/python3
"""A node process is stopped: scrapes and `status` are quick, name the node, and tell the rest."""

import concurrent.futures
import json
import pathlib
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from scenario import main
from world import FIELDSTONE, Case, Process, check, fieldstone

SILENT = 1
# Prometheus gives up after 10 s.
SCRAPE_SECONDS = 5
# The patience of `status` itself, and some for a busy machine.
STATUS_SECONDS = 8
SCRAPES = 4


def scrape(url):
    """The samples of a scrape, and the seconds that it took."""
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as page:
        text = page.read().decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}, time.monotonic() - began


def check_samples(samples, pools):
    """The silent nodes are down. All other nodes and all volumes are told."""
    for pool in pools:
        label = f'pool="{json.loads((pool.path / "pool.json").read_text())["pool"]}"'
        for index in range(pool.count):
            up = samples.get(f'fieldstone_node_up{{{label},node="{index}"}}')
            wanted = 0 if index == SILENT and index in pool.nodes else 1
            check(up == wanted, f"{pool.path.name}: node {index} has {up}, expected {wanted}")
        size = samples.get(f'fieldstone_volume_size_bytes{{{label},volume="v"}}')
        check(size == 64 << 20, f"{pool.path.name}: the volume's size is {size}")


def nodes_up(samples):
    return sum(up for name, up in samples.items() if name.startswith("fieldstone_node_up"))


def timed_status(*target):
    began = time.monotonic()
    report = json.loads(fieldstone("status", *target, "--json").stdout)
    return report, time.monotonic() - began


def scenario(world):
    silent = world.pool("256M", case=Case("copies:3", "processes"))
    healthy = world.pool("256M", name="healthy", case=Case("copies:3", "inside"))
    pools = [silent, healthy]
    for pool in pools:
        pool.create_volume("v", "64M")
    socket = world.folder / "nbd.sock"
    targets = [silent.path / "v", f"healthy={healthy.path}/v"]
    server = Process(
        world, "serve",
        [FIELDSTONE, "serve", *targets, "--nbd", f"unix:{socket}", "--metrics", "127.0.0.1:0"],
    )
    server.wait_for_output("serving ", times=len(targets))
    server.wait_for_output("metrics on ")
    url = next(word for word in server.output().split() if word.startswith("http://"))
    samples, seconds = scrape(url)
    print(f"all nodes answer: a scrape takes {seconds:.2f} s")
    check(nodes_up(samples) == silent.count + healthy.count, "a node is down")

    silent.nodes[SILENT].pause()
    samples, seconds = scrape(url)
    print(f"a node is silent: a scrape takes {seconds:.2f} s")
    check(seconds < SCRAPE_SECONDS, f"a scrape takes {seconds:.1f} s")
    check_samples(samples, pools)

    # Scrapes at the same time share one report.
    with concurrent.futures.ThreadPoolExecutor(SCRAPES) as threads:
        results = list(threads.map(scrape, [url] * SCRAPES))
    slowest = max(seconds for _, seconds in results)
    print(f"{SCRAPES} scrapes at the same time take {slowest:.2f} s")
    check(slowest < SCRAPE_SECONDS, f"scrapes at the same time take {slowest:.1f} s")
    for samples, _ in results:
        check_samples(samples, pools)

    for target in (silent.path, silent.path / "v"):
        report, seconds = timed_status(target)
        print(f"status {target.relative_to(world.folder)} takes {seconds:.2f} s")
        check(seconds < STATUS_SECONDS, f"status takes {seconds:.1f} s")
        states = [node["state"] for node in report["nodes"]]
        wanted = ["down" if index == SILENT else "up" for index in range(silent.count)]
        check(states == wanted, f"the nodes are {states}")
        check(report["nodes"][SILENT]["reason"], "the reason is not told")
        check(report["volumes"][0]["size_bytes"] == 64 << 20, f"{report['volumes']}")
    report, seconds = timed_status(healthy.path)
    check(seconds < 2, f"status of the healthy pool takes {seconds:.1f} s")
    check(all(node["state"] == "up" for node in report["nodes"]), "a healthy node is called down")

    silent.nodes[SILENT].go_on()
    silent.wait_until_whole("v")
    samples, _ = scrape(url)
    check(nodes_up(samples) == silent.count + healthy.count, "a node stays down")
    server.stop()


if __name__ == "__main__":
    main(scenario, [Case("copies:3", "processes")], waits=True)
