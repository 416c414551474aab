#!/usr/bin/python3
"""The metadata service at its bounds, and two of them.

Clients fill all sessions of the service: another one is refused until a session ends. The file system of the pool's folder is full: the service issues nothing that it cannot note
down, so a client's capability lapses; when there is room again, requests succeed by themselves. Of
two services of a pool, each is killed in turn: a client goes on with the other one, and its volume
is in the reports of the one that it speaks to.
"""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect
from ledger import BLOCK, Ledger
from metadata_client import Denied, Session
from pool_clients import LOCALHOST, Client, Service, admit, load, works
from scenario import main
from world import Case, MIB, Skip, check, fieldstone, wait_until

SIZE = 16 * MIB
POOL_DISK = 16 * MIB
# Of the service, and of one client of it.
SESSIONS_MAX, SESSIONS_PER_CLIENT_MAX = 512, 64


def crowd(world, pool, service):
    """All sessions are taken by clients that have shown their secrets. Another client waits."""
    sessions = []
    for number in range(SESSIONS_MAX // SESSIONS_PER_CLIENT_MAX):
        who = json.loads(admit(world, pool, service, f"crowd{number}").read_text())
        for _ in range(SESSIONS_PER_CLIENT_MAX):
            session = Session(who)
            session.ask("watch", oldest=None)
            sessions.append(session)
    late = json.loads(admit(world, pool, service, "late").read_text())
    try:
        Session(late).ask("watch", oldest=None)
        check(False, "there is a session too many")
    except (Denied, OSError, ValueError):
        pass
    credential = world.file("late.json")
    refused = Client(world, credential, "v", wait=False)
    refused.wait_until_logged("no metadata service can be used")
    check(refused.process.wait(20) != 0, "it serves without a session")
    # Those that have a session keep it.
    sessions[0].ask("watch", oldest=None)
    sessions[1].end()
    Client(world, credential, "v").stop()
    for session in sessions:
        session.end()


def full(world, pool, service, ledger):
    """The capability of a client lapses, because the service cannot note the next one."""
    client = Client(world, world.file("web.json"), "v")
    load(ledger, client)
    ballast = fill(pool.path)
    handle = connect(client.uri)
    wait_until("requests fail", lambda: not works(handle))
    client.wait_until_logged("capability has lapsed")
    service.process.wait_until_logged("waits:", "No space left")
    check(json.loads((pool.path / "clients.json").read_text())["clients"], "the file is damaged")
    ballast.unlink()
    wait_until("requests succeed", lambda: works(handle))
    handle.shutdown()
    load(ledger, client)
    ledger.verify(client.uri)
    client.stop()


def fill(folder):
    """Fills the file system of the folder. Returns the file that does it."""
    ballast = folder / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return ballast


def two(world, pool, first, ledger):
    """A client knows two services."""
    second = Service(pool, "--capability-lifetime", "4s")
    credential = json.loads(world.file("web.json").read_text())
    credential["metadata"].append(f"{LOCALHOST}:{second.port}")
    both = world.file("both.json")
    both.write_text(json.dumps(credential))
    client = Client(world, both, "v")
    for service in (first, second):
        service.process.kill()
        # For longer than a capability is valid.
        load(ledger, client, 6)
        wait_until("the other service reports", lambda: reported(pool))
        fieldstone("scrub", pool.path / "v")
        service.start()
    ledger.verify(client.uri)
    client.stop()
    second.process.stop()


def reported(pool):
    volumes = json.loads(fieldstone("status", pool.path, "--json").stdout)["volumes"]
    return [volume for volume in volumes if volume.get("client") == "web"]


def scenario(world):
    folder = world.file("pool")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={POOL_DISK}", "none", folder]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode != 0:
        raise Skip("no file system can be mounted here")
    # Each node on a file system of its own.
    for node in range(6):
        place = world.file(f"disk{node}")
        place.mkdir()
        (folder / f"node.{node}").symlink_to(place)
    try:
        world.open_files = 4096
        pool = world.pool("300M")
        pool.create_volume("v", SIZE)
        ledger = Ledger(SIZE // BLOCK, 31)
        service = Service(pool, "--capability-lifetime", "4s")
        admit(world, pool, service, "web", "v")
        crowd(world, pool, service)
        full(world, pool, service, ledger)
        two(world, pool, service, ledger)
        service.process.stop()
        pool.stop_nodes()
    finally:
        for process in world.processes:
            if process.is_running():
                process.kill()
        subprocess.run(["umount", "-l", folder], check=False)


main(scenario, [Case("rs:4+2", "processes")])
