#!/usr/bin/python3
"""Servers and short commands beside each other, `status` while volumes open, and the end of both."""

import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, noise
from scenario import main
from world import EVERY_PLACE, FIELDSTONE, MIB, check, fieldstone, refused, wait_until

ROUNDS = 20
# What a server's end may take: requests in flight, the volumes' own patience, and some for the rest.
END_SECONDS = 60


def together(world, pool):
    """`status` and `serve` started at the same moment: the server lives, and `status` answers."""
    for turn in range(ROUNDS):
        server = pool.serve("v", wait=False)
        if turn % 2:
            time.sleep(0.02 * turn)
        looks = [
            subprocess.Popen(
                [FIELDSTONE, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )
            for words in (["status", pool.path], ["status", pool.path / "v"], ["volume", "ls", pool.path])
        ]
        for look in looks:
            out, err = look.communicate(timeout=60)
            check(look.returncode == 0, f"round {turn}: {look.args} ended with {look.returncode}:\n{err}")
            check("v" in out, f"round {turn}: {look.args} said {out}")
        server.wait_for_output("serving v")
        check(server.is_running(), f"round {turn}: the server ended:\n{server.errors()}")
        if turn % 4 == 0:
            server.kill()
        else:
            server.stop()


def take_away(world, pool, indices):
    aside = world.file("aside")
    aside.mkdir()
    pool.kill_nodes(indices)
    for index in indices:
        shutil.move(pool.node_path(index), aside / f"node.{index}")

    def bring_back():
        for index in indices:
            shutil.move(aside / f"node.{index}", pool.node_path(index))
        aside.rmdir()
        pool.start_missing_nodes()

    return bring_back


def while_opening(world, pool):
    """Three of six nodes are away: one volume opens all the same and is served, the other waits."""
    bring_back = take_away(world, pool, [0, 1, 2])
    server = pool.serve("v", "sturdy", wait=False)
    server.wait_for_output("serving sturdy")
    handle = connect(server.uri("sturdy"))
    check(handle.pread(MIB, 0) == noise(MIB, "sturdy"), "the volume that opens lost data")
    handle.shutdown()

    report = pool.status()
    volumes = {volume["name"]: volume for volume in report["volumes"]}
    check(volumes["sturdy"]["phase"] == "serving", f"{volumes['sturdy']['phase']}")
    check(volumes["v"]["phase"] in ("opening", "failed"), f"v is {volumes['v']['phase']}")
    reasons = " ".join(node.get("reason", "") for node in volumes["v"]["nodes"][:3])
    reasons += volumes["v"].get("reason", "")
    if pool.case.nodes == "inside":
        check("nothing lies at" in reasons, f"status does not say why v waits: {volumes['v']}")
    shown = fieldstone("status", pool.path / "v").stdout
    check("node.0" in shown and "node.2" in shown, f"status names no nodes:\n{shown}")
    for command in (
        ["rebuild", pool.path / "v", "--detach"],
        ["volume", "grow", pool.path / "v", "--size", "64M"],
        ["volume", "rm", pool.path / "v"],
    ):
        says = refused(*command, says=["v"])
        check("opening" in says or "could not be opened" in says, f"{command[0]} says {says}")
    # The default export is the first volume's, and that is not there yet.
    check(refuses_default(server), "another volume took the default export's place")

    bring_back()
    server.wait_for_output("serving v", seconds=90)
    handle = connect(server.uri("v"))
    check(handle.pread(MIB, 0) == noise(MIB, "v"), "the volume that waited lost data")
    handle.shutdown()
    pool.wait_until_whole("v", "sturdy")
    server.stop()


def refuses_default(server):
    try:
        connect(server.uri("")).shutdown()
    except Exception:
        return True
    return False


def ends(world, pool):
    """SIGTERM while opening, and with nodes away: bounded. A second one: at once, and it tells."""
    bring_back = take_away(world, pool, [0, 1, 2])
    server = pool.serve("v", wait=False)
    # From here on `status` asks the server, and no longer looks by itself.
    wait_until("the server answers", (pool.path / "control.sock").exists, 30, 0.01)
    check(pool.volume_status("v")["phase"] == "opening", f"{pool.volume_status('v')}")
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(END_SECONDS)
    print(f"ended {time.monotonic() - began:.1f} s after SIGTERM while opening")
    check("interrupted while opening v" in server.errors(), server.errors())
    check("node.0" in server.errors(), f"what it waited for is not told: {server.errors()}")
    bring_back()

    # Two volumes that cannot be closed for want of nodes take no longer than one.
    for second in (False, True):
        server = pool.serve("v", "w")
        for name in ("v", "w"):
            handle = connect(server.uri(name))
            handle.pwrite(noise(MIB, name), 0)
            handle.shutdown()
        bring_back = take_away(world, pool, [0, 1, 2])
        if pool.case.nodes == "inside":
            wait_until("the loss is noticed", lambda: server.errors().count("is down") >= 3, 30)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        if second:
            time.sleep(1)
            server.process.send_signal(signal.SIGTERM)
            code = server.process.wait(10)
            check(code == 130, f"after a second signal it ended with {code}")
            for words in ("v is not closed", "w is not closed", "ending at once"):
                check(words in server.errors(), f"it does not say {words!r}:\n{server.errors()}")
        else:
            server.process.wait(END_SECONDS)
            print(f"ended {time.monotonic() - began:.1f} s after SIGTERM with nodes away")
        bring_back()
        server = pool.serve("v", "w")
        for name in ("v", "w"):
            handle = connect(server.uri(name))
            check(handle.pread(MIB, 0) == noise(MIB, name), f"{name} lost an acknowledged write")
            handle.shutdown()
        server.stop()


def scenario(world):
    pool = world.pool()
    for name, code in (("v", "rs:4+2"), ("w", "rs:4+2"), ("sturdy", "copies:6")):
        pool.create_volume(name, "16M", ["--code", code])
    server = pool.serve("v", "w", "sturdy")
    for name in ("v", "w", "sturdy"):
        handle = connect(server.uri(name))
        handle.pwrite(noise(MIB, name), 0)
        handle.flush()
        handle.shutdown()
    server.stop()
    if world.case.nodes == "inside":
        together(world, pool)
        # A server takes a node whose folder is missing for one of its own, not for a process.
        while_opening(world, pool)
    ends(world, pool)


main(scenario, EVERY_PLACE, waits=True)
