#!/usr/bin/python3
"""The pool's secret is replaced while fio verifies a volume: no request fails, whatever dies.

First one node is down, and learns of it when it comes back. Then the server and the command are
killed between and in the steps. At the end capabilities of each retired secret are refused, also by
nodes that were down, and an old copy of the file brings no secret back.
"""

import json
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from formats import READ, capability, reply, request
from ledger import BLOCK, Ledger
from scenario import main
from world import (
    COPIES_APART,
    ENVIRONMENT,
    FIELDSTONE,
    MIB,
    Case,
    Process,
    check,
    fieldstone,
    need,
    refused,
    wait_until,
)

SIZE = 32 * MIB
# Operations and replies of the wire, and why capabilities are refused.
STAT, STATE, REFUSED = 16, 2, 128
OK, FORGED, RETIRED, UNKNOWN = None, 0, 4, 5


def rotate(pool, *options):
    return json.loads(fieldstone("pool", "rotate-key", pool.path, *options, "--json").stdout)


def secrets(pool):
    """The secrets in pool.key, by their generation."""
    lines = (pool.path / "pool.key").read_text().splitlines()
    if len(lines) == 1:
        return {0: bytes.fromhex(lines[0])}
    entries = [line.split(" ") for line in lines[2:-1]]
    return {int(generation): bytes.fromhex(secret) for _, generation, secret in entries}


def expect(world, pool, node, generation, secret, answer):
    """How a node answers a request signed with the secret of a generation."""
    if pool.case.nodes != "processes":
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(world.folder / f"n{node}.sock"))
        connection.sendall(request(STAT, capability(secret, 0, 0, READ | generation << 16)))
        kind, body, _ = reply(connection)
    check(kind in (STATE, REFUSED), f"the answer is {kind}")
    found = body[0] if kind == REFUSED else OK
    check(found == answer, f"node.{node}, generation {generation}: {found}, not {answer}")


class Fio:
    """fio verifies what it writes, until it is told to end."""

    def __init__(self, world, uri):
        self.log = world.file("fio.log")
        command = [
            "fio", "--name=rotate", "--ioengine=nbd", f"--uri={uri}", "--rw=randrw",
            "--bsrange=4k-128k", "--size=30M", "--iodepth=8", "--verify=crc32c",
            "--verify_fatal=1", "--verify_backlog=64", "--time_based", "--runtime=600",
            "--verify_state_save=0", "--fsync=32",
        ]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT
            )
        world.closers.append(self.kill)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def check_runs(self):
        check(self.process.poll() is None, self.log.read_text(errors="replace"))

    def end(self):
        """Ends fio, which must have found nothing."""
        self.check_runs()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(120)
        text = self.log.read_text(errors="replace")
        check("err= 0" in text and "verify:" not in text and "bad magic" not in text, text)


def take_down(pool, node):
    if pool.case.nodes == "processes":
        pool.kill_nodes([node])
    else:
        pool.node_path(node).rename(pool.path / "away")


def bring_back(pool, node):
    if pool.case.nodes == "processes":
        pool.start_node(node)
    else:
        (pool.path / "away").rename(pool.node_path(node))


def under_load(world, pool):
    """Two rotations under fio, one of them while a node is down."""
    server = pool.serve("fio", "v")
    old = secrets(pool)[0]
    fio = Fio(world, server.uri("fio"))
    wait_until("fio has begun", lambda: pool.volume_status("fio")["user_written_bytes"] > MIB)
    take_down(pool, 1)
    wait_until(
        "the node is down",
        lambda: pool.volume_status("fio")["nodes"][1]["state"] != "up",
    )
    result = rotate(pool, "--keep-old")
    check((result["key_generation"], result["key_generations"]) == (1, [0, 1]), result)
    check([node["node"] for node in result["nodes_without"]] == [1], result)
    new = secrets(pool)[1]
    check(secrets(pool) == {0: old, 1: new} and new != old, "not two secrets")
    for generation, secret in ((0, old), (1, new)):
        expect(world, pool, 0, generation, secret, OK)
    expect(world, pool, 0, 2, new, UNKNOWN)
    expect(world, pool, 0, 1, old, FORGED)
    fio.check_runs()
    refused("pool", "rotate-key", pool.path, "--prepare", says=["not over", "--retire"])

    result = rotate(pool)
    check((result["key_generation"], result["key_generations"]) == (1, [1]), result)
    fio.check_runs()
    check(secrets(pool) == {1: new}, "the old secret is still in the file")
    expect(world, pool, 0, 0, old, RETIRED)
    expect(world, pool, 0, 1, new, OK)

    # The node that was down has only ever seen the old secret.
    bring_back(pool, 1)
    pool.wait_until_whole("fio", "v")
    expect(world, pool, 1, 0, old, RETIRED)
    expect(world, pool, 1, 1, new, OK)
    result = rotate(pool)
    check((result["key_generations"], result["nodes_without"]) == ([2], []), result)
    fio.check_runs()
    expect(world, pool, 1, 1, new, RETIRED)
    fio.end()
    check(all(node["state"] == "up" for node in pool.volume_status("fio")["nodes"]), "a node was given up")
    result = rotate(pool, "--retire")
    check((result["key_generations"], result["nodes_without"]) == ([2], []), result)
    return server


def killed_server(pool, server, ledger, rng):
    """kill -9 of the server after each step, and while the command runs."""
    for options in (["--prepare"], ["--keep-old"], []):
        rotate(pool, *options)
        check(not ledger.load(server.uri("v"), 8, stop=after(0.5)), "the connection died")
        server.kill()
        server = pool.serve("fio", "v")
        ledger.verify(server.uri("v"))
    for _ in range(3):
        command = Process(pool.world, "rotate", [FIELDSTONE, "pool", "rotate-key", pool.path])
        check(not ledger.load(server.uri("v"), 8, stop=after(rng.uniform(0.05, 1.5))), "the connection died")
        server.kill()
        # Without a server the command opens the pool itself now and then: the server waits for it.
        server = pool.serve("fio", "v")
        code = command.process.wait(60)
        check(code == 0, f"the command ended with {code}: {command.errors()}")
        ledger.verify(server.uri("v"))
        pool.wait_until_whole("fio", "v")
    return server


def killed_command(pool, server, ledger, rng):
    """kill -9 of the command anywhere: the next one goes on, and the volume does not notice."""
    for _ in range(6):
        command = Process(pool.world, "rotate", [FIELDSTONE, "pool", "rotate-key", pool.path])
        time.sleep(rng.uniform(0.02, 1.0))
        command.kill()
        check(not ledger.load(server.uri("v"), 8, stop=after(0.3)), "the connection died")
    result = rotate(pool)
    check(len(result["key_generations"]) == 1, result)
    ledger.verify(server.uri("v"))
    check(pool.volume_status("v")["protection"] == "healthy", "a node was given up")


def old_copies(world, pool, server, ledger):
    """An old copy of pool.key: running processes keep what they have. A node that starts with one
    is refused nothing, and gives nothing, until the copy is replaced."""
    before = (pool.path / "pool.key").read_bytes()
    (generation, secret), = secrets(pool).items()
    rotate(pool)
    now = (pool.path / "pool.key").read_bytes()
    (pool.path / "pool.key").write_bytes(before)
    server.wait_until_logged("older than those in force")
    expect(world, pool, 0, generation, secret, RETIRED)
    check(not ledger.load(server.uri("v"), 8, stop=after(0.5)), "the connection died")
    (pool.path / "pool.key").write_bytes(now[:70])
    server.wait_until_logged("it is damaged")
    (pool.path / "pool.key").write_bytes(now)
    if pool.case.nodes != "processes":
        return

    # A copy of the pool's folder, as on another machine.
    copy = world.file("copy")
    copy.mkdir()
    shutil.copy(pool.path / "pool.json", copy)
    (copy / "pool.key").write_bytes(before)
    (copy / "pool.key").chmod(0o600)
    pool.kill_nodes([2])
    (copy / "node.2").symlink_to(pool.node_path(2))
    command = [FIELDSTONE, "node", copy / "node.2", "--listen", f"unix:{world.folder / 'n2.sock'}"]
    pool.nodes[2] = Process(world, "node2", command)
    pool.nodes[2].wait_for_output("listens on")

    def node():
        return pool.volume_status("v")["nodes"][2]

    found = wait_until("status names the reason", lambda: node() if "pool.key" in json.dumps(node()) else None)
    check(found["state"] != "up", found)
    check(not ledger.load(server.uri("v"), 8, stop=after(0.5)), "the connection died")
    # No other rotation begins meanwhile: the node would lack one more secret.
    refused("pool", "rotate-key", pool.path, says=["node.2", "nothing has changed"])
    check((pool.path / "pool.key").read_bytes() == now, "a secret was stored")
    (copy / "pool.key").write_bytes(now)
    pool.wait_until_whole("fio", "v")
    ledger.verify(server.uri("v"))
    result = rotate(pool, "--retire")
    check((result["key_generations"], result["nodes_without"]) == ([generation + 1], []), result)


def after(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def scenario(world):
    need("fio")
    rng = random.Random(7)
    pool = world.pool("768M")
    pool.create_volume("v", SIZE)
    pool.create_volume("fio", SIZE)
    ledger = Ledger(SIZE // BLOCK, 7)
    refused("pool", "rotate-key", pool.path, "--retire", says=["no rotation is under way"])
    server = under_load(world, pool)
    server = killed_server(pool, server, ledger, rng)
    killed_command(pool, server, ledger, rng)
    old_copies(world, pool, server, ledger)
    server.stop()
    pool.stop_nodes()

    # Without a server, with the nodes that the command finds or starts itself.
    pool.start_missing_nodes()
    result = rotate(pool)
    check(result["nodes_without"] == [] and len(result["key_generations"]) == 1, result)
    server = pool.serve("fio", "v")
    ledger.verify(server.uri("v"))
    server.stop()


main(scenario, COPIES_APART, more=[Case("rs:4+2", "processes")])
