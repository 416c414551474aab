#!/usr/bin/python3
"""What operators see: status, metrics, idle CPU and the memory of the map."""

import json
import pathlib
import random
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from scenario import main
from world import EVERY_CODE, FIELDSTONE, MIB, ONE_CASE, check, fieldstone, run, wait_until

SIZE = 256 * MIB
MAP_BYTES_PER_GIB = 3 * MIB
IDLE_SHARE_MAX = 0.005


def scrape(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            samples[name] = float(value)
    return text, samples


def fill_randomly(uri):
    """Every 4 KiB block of the device once, in random order: the worst case for an extent map."""
    handle = connect(uri)
    order = list(range(SIZE // 4096))
    random.Random(3).shuffle(order)
    block = bytearray(noise(4096, 1))
    for at in order:
        handle.aio_pwrite(block, at * 4096, completion=lambda *_: 1)
        while handle.aio_in_flight() >= 64:
            handle.poll(-1)
    while handle.aio_in_flight() > 0:
        handle.poll(-1)
    handle.flush()
    handle.shutdown()


def scenario(world):
    pool = world.pool("1G")
    pool.create_volume("v", SIZE)
    server = pool.serve("v", options=["--metrics", "127.0.0.1:0"])
    server.wait_for_output("metrics on ")
    url = next(word for word in server.output().split() if word.startswith("http://"))

    fill_randomly(server.uri("v"))
    handle = connect(server.uri("v"))
    # Reads below 64 KiB are cached; longer ones are taken for a stream, and are not.
    for at in range(0, 16 * MIB, 32768):
        handle.pread(32768, at)
        handle.pread(32768, at)
    status = pool.volume_status("v")
    bound = MAP_BYTES_PER_GIB * SIZE // (1 << 30)
    check(status["map_bytes"] <= bound, f"the map takes {status['map_bytes']} bytes, bound {bound}")
    check(status["live_bytes"] == SIZE, f"{status['live_bytes']} bytes live, expected {SIZE}")
    print(f"map: {status['map_bytes'] / SIZE * 1024:.2f} MiB per GiB of random writes")

    # Status: requests counted, stages with percentiles, and the cache's hits.
    io = status["io"]
    ops = {op["op"]: op for op in io["requests"]}
    check(ops["write"]["bytes"] >= SIZE and ops["write"]["count"] > 0, f"writes: {ops['write']}")
    check(ops["read"]["bytes"] >= 32 * MIB, f"reads: {ops['read']}")
    check(ops["flush"]["count"] >= 1 and all(op["errors"] == 0 for op in ops.values()), f"{ops}")
    check(io["cache_hits"] > 0, "reading twice gives no cache hit")
    for op in ("read", "write"):
        stages = [stage for stage in io["stages"] if stage["op"] == op]
        check(stages and stages[-1]["stage"] == "total", f"no total of {op}: {stages}")
        for stage in stages:
            check(stage["p50_ns"] <= stage["p99_ns"] <= stage["p999_ns"], f"disorder: {stage}")
        check(stages[-1]["p50_ns"] > 0, f"no latency of {op}")
    shown = fieldstone("status", pool.path).stdout
    for word in ("node.0", "v", world.case.code, "p99"):
        check(word in shown, f"status for people lacks {word!r}:\n{shown}")
    looks = fieldstone("top", pool.path, "--count", "2", "--interval", "0.2", "--json").stdout
    check(len([json.loads(line) for line in looks.splitlines()]) == 2, f"top gave {looks}")

    # Metrics agree with status.
    text, samples = scrape(url)
    check("# TYPE fieldstone_node_up gauge" in text, text)
    for index in range(pool.count):
        check(samples[f'fieldstone_node_up{{node="{index}"}}'] == 1, f"node {index} is not up")
    check(samples['fieldstone_volume_size_bytes{volume="v"}'] == SIZE, "the size differs")
    check(samples['fieldstone_requests_total{volume="v",op="read"}'] >= 512, "too few reads")
    try:
        scrape(url.replace("/metrics", "/nothing"))
        check(False, "an unknown page is served")
    except urllib.error.HTTPError as error:
        check(error.code == 404, f"an unknown page gives {error.code}")

    check_turns(pool, url, server)

    # With a client connected and nothing to do, the server sleeps.
    wait_until("the log is at rest", lambda: at_rest(server), 60)
    before, began = server.cpu_seconds(), time.monotonic()
    time.sleep(10)
    share = (server.cpu_seconds() - before) / (time.monotonic() - began)
    check(share <= IDLE_SHARE_MAX, f"idle, the server uses {share:.2%} of a core")
    print(f"idle: {share:.2%} of a core")
    handle.shutdown()
    server.stop()

    # Without a server, status looks by itself and changes nothing.
    offline = pool.status()
    check(offline.get("server") is None, "a server is shown that is not there")
    check(offline["volumes"][0]["live_bytes"] == SIZE, "the offline look sees other data")
    run(FIELDSTONE, "--version")


def check_turns(pool, url, server):
    """The turns of every core: counted, and not longer than the time that has passed."""
    family = "fieldstone_core_turn"
    before, used = scrape(url)[1], server.cpu_seconds()
    handle = connect(server.uri("v"))
    for at in range(0, 4 * MIB, 4096):
        handle.pread(4096, at)
    handle.shutdown()
    text, after = scrape(url)
    for name, kind in [("s_total", "counter"), ("_seconds_total", "counter")]:
        check(f"# TYPE {family}{name} {kind}" in text and f"# HELP {family}{name} " in text, text)
    server_report = pool.status()["server"]
    cores, uptime = server_report["cores"], server_report["uptime_ns"] / 1e9
    check([core["core"] for core in cores] == list(range(len(cores))), f"{cores}")
    turns = 0
    for core in cores:
        label = f'{{core="{core["core"]}"}}'
        count, busy = (after[f"{family}{name}{label}"] for name in ("s_total", "_seconds_total"))
        longest, recent = (
            after[f"{family}_seconds_max{more}{label}"] for more in ("", "_recent")
        )
        turns += count - before[f"{family}s_total{label}"]
        check(0 < recent <= longest <= busy <= uptime, f"core {core}: {recent}, {longest}, {busy}")
        check(busy / count <= longest, f"a mean turn longer than the longest: {core}")
        # Status is a later look than the scrape.
        check(core["turns"] >= count and core["turns_busy_ns"] / 1e9 >= busy * 0.999, f"{core}")
        check(core["turn_max_ns"] / 1e9 >= longest * 0.999, f"{core}")
        check(0 < core["turn_max_recent_ns"] <= core["turn_max_ns"], f"{core}")
        print(f"core {core['core']}: longest turn {longest * 1e3:.2f} ms, {count:.0f} turns")
    # Each read comes in an event of its own.
    check(turns >= 1024, f"{turns} turns for 1024 reads, one at a time")
    busy = sum(core["turns_busy_ns"] for core in cores) / 1e9
    check(busy > 0.1 * used, f"{busy} s in turns, and {used} s of CPU time")


def at_rest(server):
    before = server.cpu_seconds()
    time.sleep(1)
    return server.cpu_seconds() - before <= 0.02


main(scenario, ONE_CASE, waits=True, more=EVERY_CODE)
