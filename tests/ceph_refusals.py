#!/usr/bin/python3
"""What cannot be done with a Ceph cluster is refused in time, with exit code 1 and one line at the
end that names the thing; and the secure mode hides the bytes.

Wrong key, unknown client, missing rights, no keyring, no monitor, no pool, no image, journaling.
For the secure mode, all packets of the loopback device are captured while bytes are written: they
are found in the mode with checksums only, and not in the secure mode.
"""

import concurrent.futures
import pathlib
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import MONITOR_PORTS, Cluster, free_port, need_ceph, new_key, run_steps
from device import connect, need_libnbd, noise
from scenario import main
from world import MIB, Case, check, fieldstone, refused

# A refusal takes no longer than the time for the first connection (30 s), and a little.
REFUSED_SECONDS = 45
# A monitor that answers refuses at once.
AT_ONCE_SECONDS = 10
ETH_P_ALL = 3
PACKET_BYTES = 1 << 16
# A buffer above the system's limit; Python has no name for it.
SO_RCVBUFFORCE = 33


class Refusals:
    """Our commands with a configuration that cannot work, each of them refused in time."""

    def __init__(self, world, conf, *more, seconds=AT_ONCE_SECONDS):
        self.world, self.conf, self.more, self.seconds = world, conf, more, seconds

    def check(self, *command, says):
        began = time.monotonic()
        text = refused(*command, *self.more, says=says, seconds=REFUSED_SECONDS)
        took = time.monotonic() - began
        check(took < self.seconds, f"{command[0]}: refused after {took:.1f} s: {text}")
        last = text.splitlines()[-1]
        check(
            last.startswith("fieldstone: ") and all(str(word) in last for word in says),
            f"the last line of {command[0]} does not say all:\n{text}",
        )

    def serve(self, image, *says):
        target = f"ceph:{image}:conf={self.conf}"
        self.check("serve", target, "--nbd", "tcp:127.0.0.1:0", says=says)

    def objects(self, pool, *says):
        self.check("rados", "ls", "-p", pool, "--conf", self.conf, says=says)

    def both(self, *says):
        """Neither images nor objects of the cluster can be reached."""
        self.serve("rep/image", *says)
        self.objects("rep", *says)


def keyring(world, cluster, name, entity, key):
    """A configuration file whose keyring has this one key."""
    path = world.file(f"{name}.keyring")
    path.write_text(f"[{entity}]\n\tkey = {key}\n")
    return cluster.conf_with(f"{name}.conf", f"keyring = {path}", without=["keyring"])


def monitor_at(cluster, port):
    """A configuration file with this monitor."""
    line = f"mon_host = [v2:127.0.0.1:{port}/0]"
    return cluster.conf_with(f"{port}.conf", f"[global]\n{line}", without=["mon_host"])


def wrong_key(world, cluster):
    conf = keyring(world, cluster, "wrong", "client.admin", new_key())
    Refusals(world, conf).both("client.admin")


def unknown_client(world, cluster):
    conf = keyring(world, cluster, "nobody", "client.nobody", new_key())
    Refusals(world, f"{conf}:id=nobody").serve("rep/image", "client.nobody")
    Refusals(world, conf, "--id", "nobody").objects("rep", "client.nobody")


def missing_rights(world, cluster):
    """A client that may only read, and one without any right to the pool."""
    confs = {}
    for name, right in (("reader", "profile rbd-read-only"), ("stranger", "allow r pool=other")):
        rights = ["mon", "profile rbd", "osd", right]
        cluster.command("auth get-or-create", entity=f"client.{name}", caps=rights)
        (found,) = cluster.command("auth get", entity=f"client.{name}")
        confs[name] = keyring(world, cluster, name, f"client.{name}", found["key"])
    server = cluster.serve("rep/image:id=reader", conf=confs["reader"], options=["--read-only"])
    handle = connect(server.uri())
    check(handle.pread(MIB, 0) == noise(MIB, 1), "a client with the right to read: other bytes")
    handle.shutdown()
    server.stop()
    Refusals(world, f"{confs['stranger']}:id=stranger").serve("rep/image", "rep/image", "EPERM")
    put = ["rados", "put", "-p", "rep", "x", __file__, "--conf", confs["stranger"]]
    Refusals(world, None, "--id", "stranger").check(*put, says=["rep/x", "EPERM"])


def no_keyring(world, cluster):
    conf = cluster.conf_with("none.conf", f"keyring = {world.file('gone')}", without=["keyring"])
    Refusals(world, conf).both("client.admin", "keyring", "gone")


def broken_files(world, cluster):
    conf = keyring(world, cluster, "broken", "client.admin", "AQAnonsense")
    Refusals(world, conf).both("broken.keyring")
    Refusals(world, world.file("not.there")).both("not.there")
    conf = world.file("nonsense.conf")
    conf.write_bytes(noise(5000, 1))
    Refusals(world, conf).both("nonsense.conf")


def no_monitor(world, cluster):
    """Nobody listens, or one who says nothing, or an NBD server. All at the same time: each takes
    until the client gives up."""
    closed, served = free_port(MONITOR_PORTS), free_port(MONITOR_PORTS)
    server = cluster.serve("rep/image", options=["--nbd", f"tcp:127.0.0.1:{served}"])
    with socket.socket() as silent, concurrent.futures.ThreadPoolExecutor(4) as threads:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        # Each file is there before the first program starts: a thread that wrote a file again would
        # show an empty one to a program that reads it.
        heard = silent.getsockname()[1]
        confs = {port: monitor_at(cluster, port) for port in (closed, served, heard)}
        work = []
        for port, conf in confs.items():
            refusals = Refusals(world, conf, seconds=REFUSED_SECONDS)
            work.append(threads.submit(refusals.serve, "rep/image", f"127.0.0.1:{port}"))
        refusals = Refusals(world, confs[closed], seconds=REFUSED_SECONDS)
        work.append(threads.submit(refusals.objects, "rep", f"127.0.0.1:{closed}"))
        for future in work:
            future.result()
    server.stop()


def nothing_there(world, cluster):
    refusals = Refusals(world, cluster.conf)
    refusals.serve("rep/nothere", "rep/nothere")
    refusals.serve("nopool/image", "nopool")
    refusals.serve("rep/image@monday", "rep/image", "monday")
    refusals.objects("nopool", "nopool")
    for text in ("rep", "rep/", "/image", "rep/image@", "rep/image:colour=blue", "a/b/c/d"):
        words = ["serve", f"ceph:{text}", "--nbd", "tcp:127.0.0.1:0"]
        result = fieldstone(*words, ok=(1, 2), seconds=20)
        check("ceph:" in result.stderr, f"{text} is not named: {result.stderr}")


def journaling(world, cluster):
    features = "exclusive-lock,journaling"
    cluster.rbd("create", "rep/journal", "--size", "8M", "--image-feature", features)
    Refusals(world, cluster.conf).serve("rep/journal", "rep/journal", "journaling", "disable")
    server = cluster.serve("rep/journal", options=["--read-only"])
    server.stop()


class Capture:
    """The packets of the loopback device in which certain bytes stand."""

    def __init__(self, marker):
        self.marker, self.found, self.packets, self.ended = marker, 0, 0, False
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 * MIB)
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.2)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        while not self.ended:
            try:
                packet = self.socket.recv(PACKET_BYTES)
            except TimeoutError:
                continue
            self.packets += 1
            self.found += self.marker in packet

    def end(self):
        time.sleep(0.5)
        self.ended = True
        self.thread.join(10)
        self.socket.close()


def secure_mode(world, cluster):
    """The OSDs among themselves use the secure mode in this cluster: what is seen is ours."""
    cluster.rbd("create", "rep/secret", "--size", "8M")
    seen = {}
    for mode in ("crc", "secure"):
        lines = [f"ms_client_mode = {mode}", f"ms_mon_client_mode = {mode}"]
        conf = cluster.conf_with(f"{mode}.conf", *lines)
        marker = f"FIELDSTONE IN MODE {mode.upper()} ".encode()
        data = (marker * 4096)[: 64 << 10]
        capture = Capture(marker * 4)
        server = cluster.serve("rep/secret", conf=conf, name=mode)
        handle = connect(server.uri())
        handle.pwrite(data, MIB)
        handle.flush()
        check(handle.pread(len(data), MIB) == data, f"{mode}: other bytes are read")
        handle.shutdown()
        server.stop()
        capture.end()
        check(capture.packets > 20, f"only {capture.packets} packets were captured")
        seen[mode] = capture.found
    check(seen["crc"] > 0, "the capture sees no bytes at all")
    check(seen["secure"] == 0, f"{seen['secure']} packets of the secure mode show the bytes")


def scenario(world):
    need_ceph()
    need_libnbd()
    cluster = Cluster(world, osds=3, more=["ms_cluster_mode = secure"])
    cluster.make_pool("rep")
    source = world.file("source")
    source.write_bytes(noise(MIB, 1) + bytes(MIB))
    cluster.rbd("import", "--no-progress", source, "rep/image")
    steps = [
        wrong_key, unknown_client, missing_rights, no_keyring, broken_files, no_monitor,
        nothing_there, journaling, secure_mode,
    ]
    run_steps(*((step, world, cluster) for step in steps))


main(scenario, [Case("ceph", "memstore")], waits=True)
