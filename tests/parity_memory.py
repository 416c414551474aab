#!/usr/bin/python3
"""A client with a capability to write makes a node multiply for parity nodes that take nothing. The
node's memory stays within its bound, and the node answers others."""

import pathlib
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from formats import capability, crc32c, reply, request, resealed
from ledger import BLOCK
from scenario import main
from world import MIB, Case, check

# Operations and replies of the wire.
FENCE, STAT, STREAMED_SHARD_WRITE = 2, 16, 137
STATE, VOLUME_STATE, OUTCOMES = 2, 4, 6
PRIMARY, STREAM_VERSION = 3, 4
VOLUMES, EPOCH, REQUESTS, PARITY_NODES = (7, 8, 9, 10, 11), 1, 40, 15
LENGTH = MIB
# Half of it is for products.
PARITY_MEMORY = 64 * MIB
# Payloads that the disk has not taken yet. How many there are depends on the disk, up to this bound.
PAYLOAD_MEMORY = 64 * MIB
# What the node takes beside both: buffers of connections, for example. Products without a bound
# would take 3,000 MiB.
SLACK = 64 * MIB
BOUND = PARITY_MEMORY // 2 + PAYLOAD_MEMORY + SLACK


def resident(pid, field):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {field}")


def text(data):
    return struct.pack("<I", len(data)) + data


def replica(node, shard, address):
    return struct.pack("<HQB", node, 0, shard) + text(address.encode())


def shard_write(secret, volume, segment, length, checksums, addresses):
    """A data shard, whose products go to nodes of the client's choice."""
    replicas = [replica(0, 0, "")]
    replicas += [replica(100 + at, 1 + at, address) for at, address in enumerate(addresses)]
    route = struct.pack("<BBII", PRIMARY, 0, 10_000, len(replicas)) + b"".join(replicas)
    column = struct.pack("<BB", 0, 4) + text(bytes(range(1, len(addresses) + 1)))
    write = struct.pack("<QBIB", segment, 0, 0, 0) + struct.pack("<I", length // BLOCK)
    body = route + column + write + checksums
    return capability(secret, volume, EPOCH) + body


def connection(world):
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(60)
    made.connect(str(world.folder / "n0.sock"))
    return made


def listen_in_silence(world):
    """Parity nodes of the client's. The kernel takes connections, and nothing is read."""
    listeners, addresses = [], []
    for at in range(PARITY_NODES):
        path = str(world.folder / f"silent.{at}.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(64)
        listeners.append(listener)
        addresses.append(f"unix:{path}")
    return listeners, addresses


def make_volume(world, secret, volume):
    client = connection(world)
    client.sendall(request(FENCE, capability(secret, volume, EPOCH) + b"\0"))
    kind = reply(client)[0]
    check(kind == VOLUME_STATE, f"the volume is not made: {kind}")
    return client


def flood(clients, secret, addresses):
    """Every client sends at the same time, and takes no answers."""
    payload = bytes(LENGTH)
    payload_crc = crc32c(payload)
    checksums = struct.pack("<I", crc32c(bytes(BLOCK))) * (LENGTH // BLOCK)

    def one(volume, client):
        for segment in range(REQUESTS):
            body = shard_write(secret, volume, segment, LENGTH, checksums, addresses)
            message = request(
                STREAMED_SHARD_WRITE, body, payload, segment + 1, STREAM_VERSION, payload_crc
            )
            client.sendall(message)

    threads = [threading.Thread(target=one, args=client) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def scenario(world):
    pool = world.pool(node_options=["--payload-memory", f"{PAYLOAD_MEMORY // MIB}M"])
    node = pool.nodes[0]
    superblock = (pool.node_path(0) / "superblock").read_bytes()
    check(resealed(superblock[:512]) == superblock[:512], "our own checksum is wrong")
    secret = superblock[40:56]
    listeners, addresses = listen_in_silence(world)
    before = resident(node.pid, "VmRSS")
    clients = [(volume, make_volume(world, secret, volume)) for volume in VOLUMES]
    flood(clients, secret, addresses)
    deadline = time.monotonic() + 4
    asked = 0
    while time.monotonic() < deadline:
        with connection(world) as other:
            other.sendall(request(STAT, capability(secret, 0, 0)))
            check(reply(other)[0] == STATE, "the node does not answer others")
        asked += 1
        time.sleep(0.05)
    grown = resident(node.pid, "VmHWM") - before
    print(f"{grown / MIB:.1f} MiB more memory, {asked} questions of others answered")
    check(grown < BOUND, f"the node has taken {grown / MIB:.1f} MiB")
    # Every write is answered when the waits are over, and the node's own part of it was done.
    for _, client in clients:
        for _ in range(REQUESTS):
            kind, body, _ = reply(client)
            check(kind == OUTCOMES, f"the answer is {kind}")
            count, own, result = struct.unpack_from("<IHB", body)
            check((own, result) == (0, 0), f"node {own} has {result}")
            check(count == 1 + PARITY_NODES, f"{count} outcomes")
        client.close()
    for listener in listeners:
        listener.close()
    check(node.is_running(), "the node has ended")
    pool.stop_nodes()


main(scenario, [Case("rs:4+2", "processes")], waits=True)
