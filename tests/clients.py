#!/usr/bin/python3
"""Clients open volumes without the pool's folder: with a credential, a metadata service, and the
nodes' sockets.

They are refused what they may not have. They work on while the service is away, through two
rotations of the pool's secret, and after a node has another address. A client that is evicted ends
at once. One whose capability has lapsed fails requests until it has the next. A thousand strangers
at the service keep no client out.
"""

import json
import pathlib
import random
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import connect
from formats import READ, capability, reply, request
from ledger import BLOCK, Ledger
from metadata_client import Denied, Session, put_root
from pool_clients import LOCALHOST, Client, Service, admit, free_port, load, works
from scenario import main
from world import (
    COPIES_INSIDE,
    FIELDSTONE,
    MIB,
    Process,
    check,
    fieldstone,
    refused,
    wait_until,
)

SIZE = 32 * MIB
# Kinds of replies of the wire.
DONE, STATE_OF_VOLUME, FENCED = 0, 4, 129


def clients(pool):
    listed = json.loads(fieldstone("pool", "clients", pool.path, "--json").stdout)
    return {client["name"]: client for client in listed}


def refused_credentials(world, credential):
    """Each is wrong in one thing only."""
    good = json.loads(credential.read_text())
    for field, value, says in [
        ("secret", "0" * 32, "does not admit"),
        ("client", "nobody", "does not admit"),
        ("pool", "1" * 32, "there is no pool"),
    ]:
        forged = world.file("forged.json")
        forged.write_text(json.dumps({**good, field: value}))
        client = Client(world, forged, "v", wait=False)
        client.wait_until_logged(says)
        client.kill()
    client = Client(world, credential, "other", wait=False)
    client.wait_until_logged("may open v, w only")
    check(client.process.wait(20) != 0, "a client without the right to a volume serves")
    nowhere = world.file("nowhere.json")
    nowhere.write_text(json.dumps({**good, "metadata": [f"{LOCALHOST}:{free_port()}"]}))
    client = Client(world, nowhere, "v", wait=False)
    client.wait_until_logged("no metadata service can be used")
    client.kill()
    address = "unix:" + str(world.file("x.sock"))
    target = f"client:{world.file('absent.json')}/v"
    refused("serve", target, "--nbd", address, says=["cannot read the client's credential"])


def service_away(pool, service, client, ledger):
    """kill -9 of the service, which starts again later."""
    service.process.kill()
    if pool.case.nodes == "processes":
        # Data does not pass through it.
        load(ledger, client, 1.5)
        service.start()
        load(ledger, client)
        return
    # Its nodes are gone, too. They come back at other ports.
    service.start()
    handle = connect(client.uri)
    wait_until("the client has found the nodes", lambda: works(handle))
    handle.shutdown()
    load(ledger, client)
    ledger.verify(client.uri)


def another_address(pool, client, ledger):
    """A node that starts again listens elsewhere, and the client learns of it."""
    if pool.case.nodes != "processes":
        return
    pool.kill_nodes([1])
    node = Process(
        pool.world,
        "node1",
        [FIELDSTONE, "node", pool.node_path(1), "--listen", "unix:elsewhere.sock"],
        folder=pool.world.folder,
    )
    node.wait_for_output("listens on")
    pool.nodes[1] = node
    log = node.err
    wait_until("the client has connected", lambda: any_connection("elsewhere.sock"))
    load(ledger, client)
    check("refused" not in log.read_text(), "the node refuses the client")


def any_connection(name):
    """Whether a process is connected to the unix socket of this name."""
    lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
    return any(line.endswith(name) and line.split()[5] == "03" for line in lines)


def rotations(world, pool, credential, client, ledger):
    """The pool's secret is replaced under load. A client that was killed does not say that it uses
    the old one no more: the command says which, and does not wait with --retire."""
    rotate = Process(world, "rotate", [FIELDSTONE, "pool", "rotate-key", pool.path])
    load(ledger, client, 4)
    wait_until("the rotation is over", lambda: not rotate.is_running())
    check(rotate.process.returncode == 0, rotate.errors())
    load(ledger, client)
    killed = Client(world, credential, "w")
    killed.kill()
    fieldstone("pool", "rotate-key", pool.path, "--keep-old")
    rotate = Process(world, "rotate", [FIELDSTONE, "pool", "rotate-key", pool.path])
    load(ledger, client, 3)
    check(rotate.is_running(), "the capability of the killed client is forgotten")
    wait_until("it says what it waits for", lambda: "waiting" in rotate.output())
    check("client web" in rotate.output(), rotate.output())
    rotate.kill()
    fieldstone("pool", "rotate-key", pool.path, "--retire")
    load(ledger, client)
    # A client that closes says so.
    Client(world, credential, "w").stop()
    fieldstone("pool", "rotate-key", pool.path)
    load(ledger, client)


def one_writer(world, app, client, ledger):
    """Another client opens the volume only if it takes it over, and then the first one ends."""
    second = Client(world, app, "v", wait=False)
    second.wait_until_logged("in use", "--takeover")
    second.kill()
    load(ledger, client)
    second = Client(world, app, "v", "--takeover")
    load(ledger, second)
    check(client.process.wait(60) != 0, "the first client goes on")
    check("took the volume over" in client.errors(), client.errors())
    ledger.verify(second.uri)
    return second


def eviction(world, pool, client, name):
    """The client ends, and its capability is refused by each node."""
    held, = clients(pool)[name]["has"]
    result = json.loads(fieldstone("pool", "evict", pool.path, name, "--json").stdout)
    check(result == {"fenced": ["v"], "unfenced": []}, result)
    check(client.process.wait(60) != 0, "an evicted client serves")
    # Its nodes have fenced it, as for another writer. It has asked the service for the reason.
    check("does not admit" in client.errors(), client.errors())
    check(name not in clients(pool), "it is still listed")
    refused("pool", "evict", pool.path, name, says=["admits no client"])
    if pool.case.nodes != "processes":
        return
    lines = (pool.path / "pool.key").read_text().splitlines()
    generation, secret = next(line.split()[1:] for line in lines if line.startswith("issue"))
    listed = fieldstone("volume", "ls", pool.path, "--json").stdout.splitlines()
    volumes = [json.loads(line) for line in listed]
    volume = next(int(found["id"], 16) for found in volumes if found["name"] == "v")
    rights = READ | int(generation) << 16
    # Of this operation the node looks at the epoch: an empty list of segments to delete.
    delete = 13
    for node in range(pool.count):
        path = "elsewhere.sock" if node == 1 else f"n{node}.sock"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(str(world.folder / path))
            of_client = capability(bytes.fromhex(secret), volume, held["epoch"], rights | 2)
            connection.sendall(request(delete, of_client + bytes(4)))
            kind, body, _ = reply(connection)
        check(kind == FENCED, f"node.{node} answers {kind} {body!r}")


def lapse(world, pool, credential, ledger):
    """The service stands still for longer than a capability is valid."""
    if pool.case.nodes != "processes":
        return
    service = Service(pool, "--capability-lifetime", "4s")
    changed = json.loads(credential.read_text())
    changed["metadata"] = [f"{LOCALHOST}:{service.port}"]
    short = world.file("short.json")
    short.write_text(json.dumps(changed))
    client = Client(world, short, "v")
    # Renewed again and again.
    load(ledger, client, 7)
    service.process.pause()
    handle = connect(client.uri)
    wait_until("requests fail", lambda: not works(handle))
    client.wait_until_logged("capability has lapsed")
    service.process.go_on()
    wait_until("requests succeed", lambda: works(handle))
    handle.shutdown()
    load(ledger, client)
    ledger.verify(client.uri)
    client.stop()
    service.process.stop()


def strangers(world, service, credential, rng):
    """They connect and are silent, or send nonsense. A client is served all the same."""
    lines = [
        b"", b"\n", b"{}\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 200_000,
        b'{"version":1,"pool":"x"}\n',
        b'{"version":9,"pool":"%s","client":"a","random":"%s"}\n' % (b"0" * 32, b"0" * 32),
        b'{"version":1,"pool":"%s","client":"a","random":"%s"}\n' % (b"0" * 32, b"0" * 32),
    ]
    before = resident(service.process)
    connections = []
    for _ in range(1000):
        connection = socket.create_connection((LOCALHOST, service.port))
        try:
            connection.sendall(rng.choice(lines))
        except OSError:
            pass  # the service has hung up already
        connections.append(connection)
    Client(world, credential, "w").stop()
    grown = resident(service.process) - before
    check(grown < 64 * MIB, f"{grown >> 20} MiB for strangers")
    for connection in connections:
        connection.close()


def listed(pool):
    """The pool's volumes, by name."""
    lines = fieldstone("volume", "ls", pool.path, "--json").stdout.splitlines()
    volumes = [json.loads(line) for line in lines]
    check(len({volume["name"] for volume in volumes}) == len(volumes), f"a name twice: {volumes}")
    return {volume["name"]: volume for volume in volumes}


def hostile(world, pool, service, credential, app):
    """A client opens as many sessions as it can, and another one is served all the same. It writes
    roots with the name of another volume, and with sizes of nothing: names stay, and nothing of the
    pool ends."""
    who = json.loads(credential.read_text())
    sessions = [Session(who) for _ in range(80)]
    denied = 0
    for session in sessions:
        try:
            session.open("w")
        except Denied:
            denied += 1
    # It has 64, and one of them is that of its process that has "v".
    check(denied == 17, f"{denied} of 80 sessions are denied")
    Client(world, app, "other").stop()
    before = listed(pool)
    epoch = before["w"]["epoch"]
    session = sessions[0]
    for name, sizes in [(b"other", None), (b"w", (0, 0))]:
        epoch += 1
        entitled = session.issue(epoch)
        for node in session.nodes():
            kinds = put_root(node, entitled, epoch, name, sizes)
            check(kinds == (STATE_OF_VOLUME, DONE), f"the answers are {kinds}")
        if sizes is None:
            check({name: volume["id"] for name, volume in listed(pool).items()}
                  == {name: volume["id"] for name, volume in before.items()}, "names have changed")
    fieldstone("status", pool.path)
    Client(world, app, "other").stop()
    try:
        session.issue(epoch + 100)
        check(False, "an epoch far ahead is issued")
    except Denied:
        pass
    for session in sessions:
        session.end()
    # The volume with the root of nothing is of no use, but it is in nobody's way, and can go.
    pool.create_volume("new", SIZE)
    refused("volume", "create", pool.path / "w", "--size", SIZE, says=["already", "cannot be read"])
    fieldstone("volume", "rm", pool.path / "w")
    check(sorted(listed(pool)) == ["new", "other", "v"], "not the volumes that are left")
    check(service.process.is_running(), service.process.errors())


def resident(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def scenario(world):
    rng = random.Random(17)
    world.open_files = 4096
    pool = world.pool("768M")
    for name in ("v", "w", "other"):
        pool.create_volume(name, SIZE)
    ledger = Ledger(SIZE // BLOCK, 17)
    refused("serve", pool.path, "--nbd", "unix:x.sock", says=["is a pool, not a volume"])
    service = Service(pool)
    web = admit(world, pool, service, "web", "v", "w")
    app = admit(world, pool, service, "app")
    refused(
        "pool", "admit", pool.path, "web", "--metadata", "x:1", says=["web", "already", "evict"]
    )
    refused("pool", "admit", pool.path, "b", "--metadata", "nowhere", says=["HOST:PORT"])
    refused_credentials(world, web)

    client = Client(world, web, "v")
    load(ledger, client)
    ours = [path for path in client.opened() if path.startswith(str(pool.path))]
    check(not ours, f"the client has files of the pool open: {ours}")
    has, = clients(pool)["web"]["has"]
    check(has["volume"] == "v", has)
    service_away(pool, service, client, ledger)
    another_address(pool, client, ledger)
    rotations(world, pool, web, client, ledger)
    strangers(world, service, web, rng)
    load(ledger, client)
    second = one_writer(world, app, client, ledger)
    eviction(world, pool, second, "app")
    # The next writer finds all that was acknowledged.
    client = Client(world, web, "v")
    ledger.verify(client.uri)
    load(ledger, client)
    hostile(world, pool, service, web, admit(world, pool, service, "other"))
    load(ledger, client)
    client.stop()
    service.process.stop()
    lapse(world, pool, web, ledger)
    server = pool.serve("v")
    ledger.verify(server.uri("v"))
    server.stop()


main(scenario, COPIES_INSIDE)
