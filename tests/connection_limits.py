#!/usr/bin/python3
"""Connection limits: connections that send nothing, announce long payloads, take no answers, or
send bytes that are no message.

Servers and nodes run with 1,024 descriptors and not one more. Whatever the clients of these
connections do, other clients are served in time, memory and logs stay bounded, and nothing has to
be restarted.
"""

import argparse
import contextlib
import os
import pathlib
import resource
import signal
import socket
import struct
import sys
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import noise
from formats import HEADER, crc32c, reply, request
from raw_nbd import BLOCK_STATUS, FLUSH, READ, WRITE, Client, dial
from scenario import main
from world import EVERY_PLACE, MIB, Skip, check

OPEN_FILES = 1024
SILENT = 1200
# Longer than a connection may stay pending (docs/threat-model.md), and than a client may hold
# memory for which other clients wait.
PATIENCE_SECONDS = 14
# How long a client may wait while other connections use the memory that the client needs too.
SERVED_SECONDS = 40
# The budget for payloads, what connections have for themselves, and what allocators keep.
GROWTH_MAX = (256 + 200) * MIB
LOG_LINES_MAX = 120

IDENTIFY, SHARD_WRITE = 0, 9


def rss(process):
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return 0


def descriptors(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


@contextlib.contextmanager
def many(count, make):
    """So many connections, as far as they can be made."""
    made = []
    try:
        for _ in range(count):
            with contextlib.suppress(OSError, EOFError):
                made.append(make())
        yield made
    finally:
        for one in made:
            one.close()


def still_open(connections):
    """How many of these the other side has not closed."""
    count = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            while connection.recv(1 << 16):
                pass
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def in_time(what, seconds, act):
    begun = time.monotonic()
    found = act()
    took = time.monotonic() - begun
    print(f"{what}: {took:.2f} s", flush=True)
    check(took < seconds, f"{what} took {took:.1f} s, more than {seconds} s")
    return found


def bounded(process, before, what):
    grown = rss(process) - before
    print(f"{what}: memory +{grown // MIB} MiB", flush=True)
    check(grown < GROWTH_MAX, f"{what}: memory grew by {grown // MIB} MiB")


def use(path, length=4096):
    """A client that comes, writes, reads it back and goes."""
    client = Client(path, "v", SERVED_SECONDS)
    data = noise(length, 3)
    client.call(WRITE, 0, length, data)
    check(client.call(READ, 0, length) == data, "the data is not what was written")
    client.close()


def write(client):
    client.call(WRITE, 0, 4096, bytes(4096))


def survives_sighup(process):
    process.process.send_signal(signal.SIGHUP)
    process.wait_until_logged("SIGHUP")
    time.sleep(0.2)
    check(process.is_running(), f"{process.name} was ended by SIGHUP")


def log_is_short(process):
    lines = process.errors().count("\n")
    print(f"{process.name}: {lines} lines of log", flush=True)
    check(lines < LOG_LINES_MAX, f"{process.name} wrote {lines} lines:\n{process.errors()[-2000:]}")


def silent_clients(server, old):
    """More connections than descriptors, which never say a word."""
    path = server.socket
    with many(SILENT, lambda: dial(path, 2)) as silent:
        in_time("an old client beside silent ones", 5, lambda: write(old))
        in_time("a new client beside silent ones", 10, lambda: use(path))
        in_time("status beside silent ones", 30, lambda: server.pool.status())
        check(descriptors(server) < OPEN_FILES, "every descriptor is in use")
        time.sleep(PATIENCE_SECONDS)
        left = still_open(silent)
        check(left == 0, f"{left} silent connections of {len(silent)} are still open")
    old.call(FLUSH, 0, 0)


def stalled_writes(server, old, sent):
    """Writes of 32 MiB of which `sent` bytes come."""
    before = rss(server)

    def stall():
        client = Client(server.socket, "v", 3)
        with contextlib.suppress(TimeoutError):
            client.send(WRITE, 0, 32 * MIB, bytes(sent))
        return client

    with many(60, stall):
        in_time("an old client beside stalled writes", 5, lambda: write(old))
        in_time("a new client beside stalled writes", 10, lambda: use(server.socket))
        bounded(server, before, f"60 writes stalled after {sent} bytes")
        in_time("a large write beside them", SERVED_SECONDS, lambda: use(server.socket, 8 * MIB))
        bounded(server, before, f"60 writes stalled after {sent} bytes, later")


def deaf_readers(server, old):
    """Reads whose answers the client does not take."""
    for at in range(0, 32, 4):
        old.call(WRITE, at * MIB, 4 * MIB, noise(4 * MIB, at))
    before = rss(server)

    def ask():
        client = Client(server.socket, "v", 1)
        with contextlib.suppress(TimeoutError):
            for _ in range(200):
                client.send(READ, 0, 32 * MIB)
        return client

    with many(12, ask):
        time.sleep(2)
        bounded(server, before, "12 clients that read 200 times 32 MiB and take nothing")
        in_time("an old client beside deaf ones", 5, lambda: write(old))
        in_time("a new client beside deaf ones", 10, lambda: use(server.socket))
        in_time("a large write beside them", SERVED_SECONDS, lambda: use(server.socket, 8 * MIB))
        bounded(server, before, "12 deaf clients, later")


@contextlib.contextmanager
def dripping(clients):
    """Each of the clients sends one byte a second."""
    over = threading.Event()

    def drip():
        while not over.wait(1):
            for client in clients:
                with contextlib.suppress(OSError):
                    client.socket.send(b"d")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def drippers(server, old):
    """Writes of 32 MiB of which one byte comes each second."""
    before = rss(server)

    def begin():
        client = Client(server.socket, "v", 3)
        with contextlib.suppress(TimeoutError):
            client.send(WRITE, 0, 32 * MIB, bytes(100_000))
        return client

    with many(60, begin) as clients, dripping(clients):
        in_time("an old client beside dripping ones", 5, lambda: write(old))
        in_time("a large write beside them", SERVED_SECONDS, lambda: use(server.socket, 8 * MIB))
        bounded(server, before, "60 dripping writes")


def returning_writers(server, old):
    """Clients that send a whole write and are gone before it is answered."""
    before = rss(server)
    data = bytes(4 * MIB)
    for _ in range(200):
        client = Client(server.socket, "v", 10)
        with contextlib.suppress(OSError):
            client.send(WRITE, 0, len(data), data)
        client.close()
        grown = rss(server) - before
        check(grown < GROWTH_MAX, f"memory grew by {grown // MIB} MiB")
    in_time("an old client after those that went", 10, lambda: write(old))


def deaf_askers(server, old):
    """Questions about extents, on a map of many, whose answers the client does not take."""
    for at in range(0, 4 * MIB, 2 * 4096):
        old.call(WRITE, at, 4096, bytes(4096))
    before = rss(server)

    def ask():
        client = Client(server.socket, "v", 1, context=True)
        with contextlib.suppress(TimeoutError):
            for _ in range(100_000):
                client.send(BLOCK_STATUS, 0, 4 * MIB)
        return client

    with many(12, ask):
        in_time("an old client beside those who ask", 5, lambda: write(old))
        in_time("a new client beside those who ask", 10, lambda: use(server.socket))
        bounded(server, before, "12 clients that ask for extents and take nothing")


def scrape(address):
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=20) as answer:
        check(b"fieldstone_uptime_seconds" in answer.read(), "no metrics")


def metrics_clients(server):
    server.wait_for_output("metrics on ")
    url = next(word for word in server.output().split() if word.startswith("http://"))
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    address = (host, int(port))

    def slow():
        connection = socket.create_connection(address, 3)
        connection.sendall(b"GET /metr")
        return connection

    def deaf():
        connection = socket.create_connection(address, 1)
        with contextlib.suppress(OSError):
            for _ in range(200):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        return connection

    with many(300, slow):
        in_time("metrics beside 300 slow clients", 10, lambda: scrape(address))
        threads = len(os.listdir(f"/proc/{server.pid}/task"))
        check(threads < 120, f"{threads} threads")
    with many(1, deaf):
        in_time("metrics beside one who reads nothing", 10, lambda: scrape(address))
    in_time("metrics afterwards", 10, lambda: scrape(address))


def control_clients(server):
    path = server.pool.path / "control.sock"

    def half():
        connection = dial(path, 3)
        connection.sendall(b'{"op":')
        return connection

    def deaf():
        connection = dial(path, 1)
        with contextlib.suppress(OSError):
            for _ in range(300):
                connection.sendall(b'{"op":"status"}\n' * 20)
        return connection

    with many(200, lambda: dial(path, 3)), many(200, half), many(4, deaf):
        in_time("status beside stalled control clients", 15, lambda: server.pool.status())


def inside(world, only):
    pool = world.pool("256M")
    pool.create_volume("v", 128 * MIB)
    server = pool.serve("v", options=["--metrics", "127.0.0.1:0"])
    old = Client(server.socket, "v")
    old.call(WRITE, 64 * MIB, MIB, noise(MIB, 1))
    attacks = {
        "silent": lambda: silent_clients(server, old),
        "headers": lambda: stalled_writes(server, old, 4096),
        "stalled": lambda: stalled_writes(server, old, 300_000),
        "deaf": lambda: deaf_readers(server, old),
        "drip": lambda: drippers(server, old),
        "return": lambda: returning_writers(server, old),
        "extents": lambda: deaf_askers(server, old),
        "metrics": lambda: metrics_clients(server),
        "control": lambda: control_clients(server),
        "sighup": lambda: survives_sighup(server),
    }
    for attack in chosen(attacks, only):
        attack()
    check(old.call(READ, 64 * MIB, MIB) == noise(MIB, 1), "data was lost")
    log_is_short(server)
    old.close()
    server.stop()


def chosen(attacks, only):
    """All of them, or the one that is asked for."""
    return [attack for name, attack in attacks.items() if only in (None, name)]


def announced(length):
    """The beginning of a request with a payload of this length, which does not come."""
    body = bytes(68)
    head = HEADER.pack(b"FSTW", 1, 0, SHARD_WRITE, 1, 0, len(body), length, crc32c(body), 0)
    return head + struct.pack("<I", crc32c(head)) + body + b"q" * 10


def says(path, data):
    connection = dial(path, 1)
    with contextlib.suppress(OSError):
        connection.sendall(data)
    return connection


def answers(path):
    with dial(path) as connection:
        connection.sendall(request(IDENTIFY, bytes(68)))
        reply(connection)


def silent_peers(world, pool, server):
    """More connections than descriptors, which never say a word. Gives the server that is left."""
    node, path = pool.nodes[0], world.folder / "n0.sock"
    with many(SILENT, lambda: dial(path, 2)) as silent:
        in_time("a write beside silent connections to a node", 10, lambda: use(server.socket, MIB))
        in_time("a question to the node", 10, lambda: answers(path))
        # A server that starts now must find its way to the node as well.
        server.stop()
        server = in_time("a server starts", 30, lambda: pool.serve("v"))
        in_time("the node is taken in", 30, lambda: pool.wait_until_whole("v", seconds=30))
        check(descriptors(node) < OPEN_FILES, "every descriptor is in use")
        time.sleep(PATIENCE_SECONDS)
        left = still_open(silent)
        check(left == 0, f"{left} silent connections of {len(silent)} are still open")
    return server


def stalled_payloads(world, pool, server):
    node, path = pool.nodes[0], world.folder / "n0.sock"
    before = rss(node)
    start = announced(4 * MIB)
    with many(300, lambda: says(path, start)):
        in_time("writes beside 300 stalled payloads", 10, lambda: use(server.socket, 8 * MIB))
        in_time("a question to the node", 10, lambda: answers(path))
        bounded(node, before, "300 stalled payloads of 4 MiB")
        check(pool.volume_status("v")["protection"] == "healthy", "a node was given up")


def deaf_peers(world, pool, server):
    node, path = pool.nodes[0], world.folder / "n0.sock"
    before = rss(node)
    flood = request(IDENTIFY, bytes(68)) * 200_000
    with many(20, lambda: says(path, flood)):
        in_time("writes beside 20 who only ask", 10, lambda: use(server.socket, 8 * MIB))
        bounded(node, before, "20 floods of questions")


def nonsense(world, pool, server):
    node, path = pool.nodes[0], world.folder / "n0.sock"
    with many(2000, lambda: says(path, b"GET / HTTP/1.1\r\n\r\n" * 4)):
        in_time("writes after 2,000 who talk nonsense", 10, lambda: use(server.socket, MIB))
    log_is_short(node)


def processes(world, only):
    pool = world.pool("256M")
    pool.create_volume("v", 128 * MIB)
    server = pool.serve("v")
    use(server.socket)
    if only in (None, "silent"):
        server = silent_peers(world, pool, server)
    attacks = {
        "stalled": lambda: stalled_payloads(world, pool, server),
        "deaf": lambda: deaf_peers(world, pool, server),
        "nonsense": lambda: nonsense(world, pool, server),
        "sighup": lambda: survives_sighup(pool.nodes[0]),
    }
    for attack in chosen(attacks, only):
        attack()
    pool.wait_until_whole("v")
    log_is_short(pool.nodes[0])
    server.stop()
    pool.stop_nodes()


def scenario(world, options):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * OPEN_FILES:
        raise Skip(f"this needs {3 * OPEN_FILES} descriptors, and may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    world.open_files = OPEN_FILES
    {"inside": inside, "processes": processes}[world.case.nodes](world, options.only)


PARSER = argparse.ArgumentParser()
PARSER.add_argument("--only", help="one of the attacks, for example stalled")
main(scenario, EVERY_PLACE, PARSER, waits=True)
