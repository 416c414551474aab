#!/usr/bin/python3
"""Two node processes are killed under load: writes and reads go on, and the nodes catch up."""

import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ledger import BLOCK, WRITES, Ledger
from scenario import main
from world import MIB, Case, check, wait_until

SIZE = 48 * MIB


def load(ledger, uri, seconds, mix=WRITES, over=lambda: False):
    """Runs the client in a thread, for some seconds or until `over()` says so; returns a function
    that waits for it."""
    end = time.monotonic() + seconds
    outcome = []

    def work():
        try:
            outcome.append(ledger.load(uri, 16, lambda: over() or time.monotonic() > end, mix))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()

    def finish():
        thread.join(seconds + 60)
        check(outcome, "the client hangs")
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        check(not outcome[0], "the connection died")

    return finish


def scenario(world):
    rng = random.Random(5)
    pool = world.pool("768M")
    pool.create_volume("v", SIZE)
    server = pool.serve("v")
    ledger = Ledger(SIZE // BLOCK, 5)
    for turn in range(3):
        lost = rng.sample(range(pool.count), 2)
        finish = load(ledger, server.uri("v"), 4)
        time.sleep(rng.uniform(0.3, 1.0))
        pool.kill_nodes(lost[:1])
        time.sleep(rng.uniform(0.0, 0.5))
        pool.kill_nodes(lost[1:])
        finish()
        written = ledger.writes
        check(written > 0, "nothing was written while nodes were down")
        ledger.verify(server.uri("v"))
        down = {n["node"] for n in pool.volume_status("v")["nodes"] if n["state"] != "up"}
        check(down == set(lost), f"killed {sorted(lost)}, status shows {sorted(down)}")

        # They come back under load: with their folders, or empty.
        finish = load(ledger, server.uri("v"), 2)
        if turn == 1:
            for index in lost:
                pool.delete_node(index)
        pool.start_missing_nodes()
        finish()
        pool.wait_until_whole("v")
        ledger.verify(server.uri("v"))
    nodes = wait_until("all nodes are up", lambda: pool.volume_status("v")["nodes"])
    check(all(node["shards"] > 0 for node in nodes), f"a node without shards: {nodes}")
    # Nothing is missing: any other two may go now.
    server.kill()
    pool.kill_nodes([0, 1])
    server = pool.serve("v", options=["--no-auto-rebuild", "--node", "0=unix:/nowhere", "--node", "1=unix:/nowhere"])
    ledger.verify(server.uri("v"))
    server.stop()


if __name__ == "__main__":
    main(scenario, [Case("copies:3", "processes"), Case("rs:4+2", "processes")])
