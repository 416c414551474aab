#!/usr/bin/python3
"""A node comes into being only by a command: what `pool replace` makes, and what it refuses."""

import json
import pathlib
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import check_fill, fill
from scenario import main
from world import COPIES_APART, EVERY_CASE, MIB, Case, check, fieldstone, refused, wait_until

SIZE = 32 * MIB
TWO_LOOKS_SECONDS = 5


def nobody_makes_a_node(world, pool, index):
    """The folder is gone: servers, node processes and commands leave it so, and say what to do."""
    path = pool.node_path(index)
    address = f"unix:{world.file('x.sock')}"
    says = [f"node.{index}", "--node", "pool replace"]
    refused("node", path, "--listen", address, says=says)
    path.mkdir()
    refused("node", path, "--listen", address, says=["is its disk mounted?", "pool replace"])
    check(not any(path.iterdir()), "a node process made files in an empty folder")
    path.rmdir()
    server = pool.serve("v", options=["--no-auto-rebuild"])
    server.wait_until_logged(*says)
    time.sleep(TWO_LOOKS_SECONDS)
    server.stop()
    told = fieldstone("volume", "create", pool.path / "w", "--size", "1M").stderr
    check("pool replace" in told and "--node" in told, f"volume create does not say:\n{told}")
    refused("volume", "rm", pool.path / "w", says=[f"node.{index}", "--force"])
    fieldstone("volume", "rm", pool.path / "w", "--force")
    fieldstone("status", pool.path)
    fieldstone("scrub", pool.path, ok=(0, 1))
    check(not path.exists(), "somebody made a node")


def what_is_in_the_way(world, pool, other):
    path = pool.node_path(1)

    def no(*says):
        before = sorted(found.name for found in path.iterdir()) if path.is_dir() else None
        refused("pool", "replace", pool.path, "node.1", "--force", says=[str(path), *says])
        after = sorted(found.name for found in path.iterdir()) if path.is_dir() else None
        check(before == after, f"a refusal changed {path}: {before} became {after}")

    no("holds node.1 of this pool")
    kept = world.file("kept")
    shutil.move(path, kept)
    path.symlink_to(world.file("nowhere"))
    no("is a link to", "nowhere")
    check(not world.file("nowhere").exists(), "a node was made behind a dangling link")
    path.unlink()
    path.write_text("a letter")
    no("not a folder")
    path.unlink()
    path.mkdir()
    (path / "photos").mkdir()
    no("photos", "move them away")
    shutil.rmtree(path)
    shutil.copytree(other.node_path(1), path)
    no("belongs elsewhere", "move away")
    shutil.rmtree(path)
    shutil.copytree(kept, path)
    superblock = bytearray((path / "superblock").read_bytes())
    superblock[40] ^= 1
    (path / "superblock").write_bytes(superblock)
    no("damaged", "move away")
    (path / "superblock").unlink()
    (path / "data").touch()
    no("without a superblock")
    shutil.rmtree(path)
    shutil.move(kept, path)
    refused("pool", "replace", pool.path, "node.77", says=["node.77", "0 to"])
    fieldstone("pool", "replace", pool.path, "nothing", ok=(2,))
    refused("pool", "replace", world.file("nopool"), "1", says=["not a pool"])


def while_serving(pool):
    """Two nodes are lost and replaced under a server."""
    server = pool.serve("v")
    for index in (0, 2):
        pool.delete_node(index)
    made = json.loads(pool.replace(0, 2, options=["--json"]).stdout)
    check([node["node"] for node in made["nodes"]] == [0, 2], f"it tells {made}")
    check(made["server"] == server.pid, f"the server is {server.pid}, and it tells {made}")
    pool.start_missing_nodes()
    pool.wait_until_whole("v")
    check_fill(server.uri("v"), SIZE)
    # They are known to be rebuilt now: two others may be replaced.
    for index in (1, 3):
        pool.delete_node(index)
    pool.start_missing_nodes()
    pool.wait_until_whole("v")
    check_fill(server.uri("v"), SIZE)
    server.stop()


def too_many(world, pool):
    """Beyond what the code makes up for: refused, with the reasons, and nothing is made."""
    pool.kill_nodes()
    aside = world.file("aside")
    aside.mkdir()
    lost = range(world.case.tolerance + 1)
    for index in lost:
        shutil.move(pool.node_path(index), aside / f"node.{index}")
    names = [f"node.{index}" for index in lost]
    refused("pool", "replace", pool.path, *names, says=["3 nodes", "only unmounted", "--force"])
    refused("pool", "replace", pool.path, names[0], says=["node.1: nothing lies", "node.2: nothing"])
    check(not any(pool.node_path(index).exists() for index in lost), "a refusal made a node")
    shutil.move(aside / "node.2", pool.node_path(2))
    pool.replace(0)
    # A node that was replaced and not rebuilt counts.
    shutil.move(pool.node_path(2), aside / "node.2")
    refused("pool", "replace", pool.path, "1", says=["node.0: was made empty", "node.2: nothing"])
    pool.replace(1, options=["--force"])
    # The old nodes come back: forced or not, nothing was lost that is moved aside.
    for index in (0, 1):
        shutil.rmtree(pool.node_path(index))
    for index in lost:
        shutil.move(aside / f"node.{index}", pool.node_path(index))
    aside.rmdir()
    pool.start_missing_nodes()
    fieldstone("rebuild", pool.path)
    server = pool.serve("v")
    check_fill(server.uri("v"), SIZE)
    pool.wait_until_whole("v")
    server.stop()


def by_itself(pool):
    """`serve --replace-missing`: only where nothing lies, and what the code makes up for."""
    server = pool.serve("v", options=["--replace-missing"])
    shutil.rmtree(pool.node_path(4))
    wait_until("node 4 is made anew", lambda: (pool.node_path(4) / "superblock").exists(), 30)
    pool.wait_until_whole("v")
    check_fill(server.uri("v"), SIZE)
    # An empty folder, and a link to nowhere, may be a disk that is away.
    kept = pool.path.parent / "kept"
    shutil.move(pool.node_path(4), kept)
    pool.node_path(4).mkdir()
    reason = lambda: pool.status()["nodes"][4].get("reason", "")
    wait_until("the empty folder is told", lambda: "is its disk mounted?" in reason(), 30)
    time.sleep(TWO_LOOKS_SECONDS)
    check(not any(pool.node_path(4).iterdir()), "a node was made in an empty folder")
    pool.node_path(4).rmdir()
    pool.node_path(4).symlink_to(pool.path.parent / "nowhere")
    wait_until("the link is told", lambda: "is a link to" in reason(), 30)
    pool.node_path(4).unlink()
    shutil.move(kept, pool.node_path(4))
    pool.wait_until_whole("v")
    server.stop()

    # Three at once.
    kept.mkdir()
    for index in (0, 1, 2):
        shutil.move(pool.node_path(index), kept / f"node.{index}")
    server = pool.serve("v", options=["--replace-missing"], wait=False)
    time.sleep(TWO_LOOKS_SECONDS)
    check(not any(pool.node_path(index).exists() for index in (0, 1, 2)), "it made three nodes")
    server.wait_until_logged("3 nodes would be absent or empty")
    server.kill()
    for index in (0, 1, 2):
        shutil.move(kept / f"node.{index}", pool.node_path(index))
    server = pool.serve("v")
    check_fill(server.uri("v"), SIZE)
    server.stop()


def scenario(world):
    pool = world.pool()
    other = world.pool(name="other", case=Case(world.case.code, "inside"))
    pool.create_volume("v", SIZE)
    server = pool.serve("v")
    fill(server.uri("v"), SIZE)
    server.stop()
    while_serving(pool)
    pool.delete_node(3)
    nobody_makes_a_node(world, pool, 3)
    pool.start_missing_nodes()
    fieldstone("rebuild", pool.path)
    pool.kill_nodes()
    what_is_in_the_way(world, pool, other)
    too_many(world, pool)
    if world.case.nodes == "inside" and world.case.node_count == 6:
        by_itself(pool)


main(scenario, COPIES_APART, waits=True, more=EVERY_CASE)
