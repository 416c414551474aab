#!/usr/bin/python3
"""What cannot be done is refused, with exit code 1 and a message that names the thing."""

import pathlib
import shutil
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect, error_of, noise
from scenario import main
from world import (
    COPIES_APART,
    EVERY_CASE,
    FIELDSTONE,
    MIB,
    Case,
    check,
    fieldstone,
    need,
    refused,
    run,
    wait_until,
)


def command_line(world, pool):
    path, sock = pool.path, f"unix:{world.file('x.sock')}"
    refused("serve", path / "nothere", "--nbd", sock, says=["nothere", str(path)])
    refused("serve", world.file("nopool") / "v", "--nbd", sock, says=["nopool", "not a pool"])
    refused("volume", "create", path / "v", "--size", "1M", says=["already", "v"])
    refused("volume", "create", path / "w", "--size", "1000", says=["1000", "4096"])
    refused("volume", "create", path / "w", "--size", "1M", "--code", "rs:40+2", says=["42"])
    refused("pool", "create", path, says=[str(path), "already"])
    refused("pool", "create", world.file("p2"), "--nodes", "3", says=["6", "3"])
    wide = ["--nodes", "20", "--code", "clay:16+4", "--node-size", "16M"]
    refused("pool", "create", world.file("p4"), *wide, says=["clay:16+4", "1024", "4 MiB", "1 MiB"])
    check(not world.file("p4").exists(), "a pool create that was refused left a folder")
    refused("status", world.file("nopool"), says=["nopool", "not a pool"])
    refused("volume", "grow", path / "v", "--size", "1M", says=["shrink"])
    refused("node", path, "--listen", sock, says=["node.0"])
    refused("node", path / "node.77", "--listen", sock, says=["node.77"])
    fieldstone("volume", "create", path / "w", "--size", "lots", ok=(2,))
    fieldstone("serve", path / "v", ok=(2,))
    fieldstone("pool", "create", world.file("p3"), "--code", "rs:0+9", ok=(2,))


def occupied_addresses(world, pool):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused("serve", pool.path / "v", "--nbd", f"tcp:127.0.0.1:{port}", says=[port, "in use"])
        refused("node", pool.node_path(0), "--listen", f"tcp:127.0.0.1:{port}", says=[port])
        sock = world.file("m.sock")
        refused(
            "serve", pool.path / "v", "--nbd", f"unix:{sock}", "--metrics", f"127.0.0.1:{port}",
            says=[port],
        )
    path = world.file("taken.sock")
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        refused("serve", pool.path / "v", "--nbd", f"unix:{path}", says=[path])
    check(path.exists(), "somebody else's socket was removed")
    # A socket that a killed server left behind belongs to no process.
    server = pool.serve("v")
    server.kill()
    again = run(
        "sh", "-c",
        f"timeout -s TERM 3 {FIELDSTONE} serve {pool.path}/v --nbd unix:{server.socket}; true",
    )
    check("serving v" in again.stdout, f"a leftover socket is in the way: {again.stderr}")


def second_server(world, pool):
    server = pool.serve("v")
    handle = connect(server.uri("v"))
    handle.pwrite(noise(MIB, 1), 0)
    text = refused("serve", pool.path / "v", "--nbd", f"unix:{world.file('b.sock')}", says=["v"])
    check(str(server.pid) in text or "use" in text or "writer" in text, f"no reason: {text}")
    handle.pwrite(noise(MIB, 2), MIB)
    check(handle.pread(MIB, 0) == noise(MIB, 1), "the first server suffers")
    refused("volume", "rm", pool.path / "v", says=["v"])

    if pool.case.nodes == "processes":
        # Taken over on purpose: the old server is fenced, its clients get errors, not silence.
        taker = pool.serve("v", options=["--takeover"], name="takeover")
        got = error_of(handle.pwrite, noise(MIB, 3), 2 * MIB)
        check(got is not None, "a fenced server acknowledges a write")
        fresh = connect(taker.uri("v"))
        check(fresh.pread(MIB, 0) == noise(MIB, 1), "the new server lacks data")
        check(fresh.pread(MIB, MIB) == noise(MIB, 2), "the new server lacks data")
        check(fresh.pread(MIB, 2 * MIB) != noise(MIB, 3), "a fenced write arrived")
        wait_until("the fenced server ends", lambda: not server.is_running(), 30)
        check(server.process.returncode == 1, f"it ended with {server.process.returncode}")
        fresh.shutdown()
        taker.stop()
    else:
        handle.shutdown()
        server.stop()


def permissions(world):
    """As a user who may not: named, and nothing is changed."""
    need("setpriv")
    pool = world.pool(name="private", case=Case(world.case.code, "inside"))
    pool.create_volume("v", "16M")
    world.folder.chmod(0o755)
    # The command itself must be reachable for that user.
    binary = world.file("fieldstone")
    shutil.copy(FIELDSTONE, binary)
    binary.chmod(0o755)
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if run(*become, binary, "--version", ok=None).returncode != 0:
        print("not root: the permission checks were left out")
        return
    denied = run(*become, binary, "serve", pool.path / "v", "--nbd", "tcp:127.0.0.1:0", ok=(1,))
    check("pool.key" in denied.stderr, f"the file is not named: {denied.stderr}")
    denied = run(*become, binary, "pool", "create", world.file("mine"), ok=(1,))
    check("mine" in denied.stderr and "ermission denied" in denied.stderr, denied.stderr)
    pool.path.chmod(0o700)
    for command in (["status", pool.path], ["serve", pool.path / "v", "--nbd", "tcp:127.0.0.1:0"]):
        denied = run(*become, binary, *command, ok=(1,))
        check(str(pool.path) in denied.stderr and "ermission denied" in denied.stderr, denied.stderr)
    pool.path.chmod(0o755)
    node = pool.node_path(0)
    denied = run(*become, binary, "node", node, "--listen", "tcp:127.0.0.1:0", ok=(1,))
    check("ermission denied" in denied.stderr, f"no reason: {denied.stderr}")
    server = pool.serve("v")
    status = run(*become, binary, "status", pool.path, ok=(1,))
    check("ermission denied" in status.stderr or "pool.key" in status.stderr, status.stderr)
    server.stop()


def scenario(world):
    pool = world.pool()
    pool.create_volume("v", "64M")
    command_line(world, pool)
    second_server(world, pool)
    if pool.case.nodes == "inside":
        occupied_addresses(world, pool)
        permissions(world)


main(scenario, COPIES_APART, waits=True, more=EVERY_CASE)
