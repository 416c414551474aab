"""A Ceph cluster of the scenario's own: monitors, one manager, some OSDs, all on 127.0.0.1.

    cluster = Cluster(world, osds=4)
    cluster.make_pool("rep")
    cluster.make_pool("ec", "jerasure")
    cluster.wait_until_clean()
    cluster.rbd("create", "rep/image", "--size", "32M")
    server = cluster.serve("rep/image")

It is made from nothing in some seconds: all keys are in one keyring that the monitor reads when its
store is made, and the OSDs keep their data in memory. An OSD that is killed therefore comes back
empty. `store="bluestore"` keeps the data in files: a killed OSD comes back with it. All daemons are
processes of the scenario, log into the world's log folder, and end with it. They speak only msgr2,
with cephx. The monitors have free ports, the OSDs take free ports from PORTS.

Ceph 16 or newer, root, and Debian's python3-rados and python3-rbd are needed. `tests/ceph-chroot`
runs scenarios with another Ceph than the machine's.
"""

import glob
import json
import os
import pathlib
import random
import socket
import subprocess
import threading
import time
import traceback
import uuid

from device import nbd
from ledger import ANSWER_SECONDS
from world import (
    ENVIRONMENT, FIELDSTONE, START_SECONDS, Failure, Process, Skip, check, need, run,
    wait_until,
)

try:
    import rados
except ImportError:
    rados = None

# Ports of monitors and of the other daemons: below those that the kernel gives to clients.
MONITOR_PORTS = range(31000, 32700)
PORTS = (20000, 30900)
# A cluster is healthy within this time, also after a fault.
HEALTHY_SECONDS = 180
# A command to the cluster is answered within this time.
ANSWERED_SECONDS = 60
DAEMON_ADDRESS_SPACE_MAX = 8 << 30
OSD_BYTES = 2 << 30

ERASURE_PROFILES = {
    "jerasure": ["plugin=jerasure", "technique=reed_sol_van", "k=2", "m=2"],
    "isa": ["plugin=isa", "k=2", "m=2"],
    "clay": ["plugin=clay", "scalar_mds=jerasure", "k=2", "m=2", "d=3"],
}

# Commands of `rbd` that change nothing, and the result of one that a signal of its own has ended.
READING = ("du ", "export ", "info ", "lock ls ", "ls ", "object-map check ", "snap ls ")
ABORTED = "exit code -6"

# What ends a step of a scenario.
FAILURES = (Failure, *(module.Error for module in (nbd, rados) if module is not None))

# The classes of the OSDs. Debian's Ceph 20 would look for them below the current folder.
CLASSES = next(iter(glob.glob("/usr/lib/*/rados-classes")), "")

# A manager loads all modules in its folder, each in an interpreter of its own: 7 s of CPU time with
# Debian's. With Ceph 16 it sees these only. That others are missing makes the cluster's health an
# error, and nothing else.
MODULES = pathlib.Path("/usr/share/ceph/mgr")
MODULES_WANTED = ("mgr_module.py", "mgr_util.py", "balancer", "rbd_support")

CONF = """[global]
fsid = {fsid}
mon_host = {monitors}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
ms_bind_msgr2 = true
ms_bind_port_min = {ports[0]}
ms_bind_port_max = {ports[1]}
auth_allow_insecure_global_id_reclaim = false
keyring = {folder}/keyring
run_dir = {folder}/run
crash_dir = {folder}/run
admin_socket = {folder}/run/$name.asok
log_file = {logs}/$name.log
osd_pool_default_size = 3
osd_pool_default_min_size = 2
osd_pool_default_pg_autoscale_mode = off
{more}
[mon]
mon_data = {folder}/mon.$id
osd_crush_chooseleaf_type = 0
paxos_propose_interval = 0.1
mon_tick_interval = 1
mon_allow_pool_delete = true
mon_max_pg_per_osd = 2000
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 2
mon_data_avail_crit = 1
mon_debug_no_require_bluestore_for_ec_overwrites = true
[mgr]
mgr_data = {folder}/mgr
mgr_module_path = {modules}
mgr_initial_modules =
mgr_tick_period = 1
mgr_stats_period = 1
[osd]
osd_class_dir = """ + CLASSES + """
osd_data = {folder}/osd$id
osd_objectstore = {store}
osd_crush_initial_weight = 1
osd_fast_shutdown = false
osd_recovery_sleep = 0
osd_max_backfills = 8
osd_recovery_max_active = 8
osd_backfill_retry_interval = 1
osd_recovery_retry_interval = 1
memstore_device_bytes = {osd_bytes}
memstore_page_set = true
{threads}
bluestore_block_create = true
bluestore_block_size = {osd_bytes}
bluestore_fsck_on_mount = false
[client]
admin_socket =
log_file =
"""
# The threads of an OSD add to memstore's count of bytes without a lock. The count may fall below
# zero when images are removed: the OSD then has 16 EiB, is full, and takes no write any more.
ONE_THREAD = """osd_op_num_shards = 1
osd_op_num_threads_per_shard = 1"""


def need_ceph():
    """Skips the case unless a cluster can be made here."""
    need("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-authtool", "monmaptool", "rbd", "rados")
    if rados is None:
        raise Skip("this Python has no module rados (package python3-rados)")
    if os.geteuid() != 0:
        raise Skip("the daemons of Ceph want root")


def new_key():
    """A random key, as a keyring has it, of the kind that this Ceph makes: for AES-128, or for
    AES-256 since Ceph 20.2.4."""
    return run("ceph-authtool", "--gen-print-key").stdout.strip()


def free_port(ports):
    """A port of 127.0.0.1 that nobody has at the moment."""
    for port in random.sample(ports, len(ports)):
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Failure("no port is free")


class Daemon(Process):
    """A daemon of Ceph in the foreground. `before`: words in front of the command."""

    def __init__(self, cluster, kind, name, before=()):
        command = [*before, f"ceph-{kind}", "-f", "-i", name, "-c", cluster.conf]
        world = cluster.world
        was = world.die_with_parent
        world.die_with_parent = True
        super().__init__(world, f"{kind}.{name}", command, DAEMON_ADDRESS_SPACE_MAX)
        world.die_with_parent = was


class ImageServer(Process):
    """`fieldstone serve` for images of the cluster. `conf`: another configuration file. `before`:
    words in front of the command."""

    def __init__(
        self, cluster, images, options=(), conf=None, wait=True, name="serve", before=()
    ):
        world = cluster.world
        world.sockets += 1
        self.socket = world.folder / f"nbd{world.sockets}.sock"
        targets = [f"ceph:{image}:conf={conf or cluster.conf}" for image in images]
        command = [*before, FIELDSTONE, "serve", *targets, "--nbd", f"unix:{self.socket}", *options]
        super().__init__(world, name, command)
        if wait:
            self.wait_for_output("serving ", times=len(images))

    def uri(self, image=""):
        return f"nbd+unix:///{image}?socket={self.socket}"


class Cluster:
    """The cluster. `more` are lines for the configuration of all daemons and clients."""

    def __init__(self, world, osds=4, store="memstore", more=(), monitors=1):
        need_ceph()
        self.world, self.count = world, osds
        self.folder = world.file("ceph")
        self.conf = self.folder / "ceph.conf"
        self.environment = dict(ENVIRONMENT, CEPH_CONF=str(self.conf))
        self.environment.pop("CEPH_ARGS", None)
        (self.folder / "run").mkdir(parents=True)
        (self.folder / "mgr").mkdir()
        self.fsid, self.addresses = str(uuid.uuid4()), {}
        for name in "abcdefg"[:monitors]:
            self.addresses[name] = f"[v2:127.0.0.1:{self._monitor_port()}/0]"
        self.text = CONF.format(
            fsid=self.fsid, monitors=",".join(self.addresses.values()), ports=PORTS,
            folder=self.folder,
            modules=self._modules(), logs=world.folder / "log", store=store, osd_bytes=OSD_BYTES,
            threads=ONE_THREAD if store == "memstore" else "",
            more="\n".join(more),
        )
        self.conf.write_text(self.text)
        self._write_keyring()
        self._make_monitors()
        self.monitors = {}
        for name in self.addresses:
            self.start_monitor(name)
        self.start_manager()
        self.handle = rados.Rados(
            conffile=str(self.conf), name="client.admin",
            conf={
                "rados_mon_op_timeout": str(ANSWERED_SECONDS),
                "rados_osd_op_timeout": str(ANSWERED_SECONDS),
                "client_mount_timeout": str(ANSWERED_SECONDS),
            },
        )
        self.handle.connect()
        world.closers.append(self.handle.shutdown)
        self.osds = {}
        self._make_osds()
        wait_until("all OSDs are up", lambda: len(self.osds_up()) == osds, HEALTHY_SECONDS)

    def _modules(self):
        """The folder from which the manager loads its modules."""
        if " version 16." not in run("ceph-mgr", "--version").stdout:
            return MODULES
        folder = self.folder / "modules"
        folder.mkdir()
        for name in MODULES_WANTED:
            (folder / name).symlink_to(MODULES / name)
        return folder

    def _write_keyring(self):
        everything = {kind: "allow *" for kind in ("mon", "osd", "mgr")}
        entities = {"mon.": {"mon": "allow *"}, "client.admin": everything}
        entities["mgr.x"] = {"mon": "allow profile mgr", "osd": "allow *"}
        for index in range(self.count):
            profile = {kind: "allow profile osd" for kind in ("mon", "mgr")}
            entities[f"osd.{index}"] = {**profile, "osd": "allow *"}
        self.keys = {name: new_key() for name in entities}
        with open(self.folder / "keyring", "w") as file:
            for name, rights in entities.items():
                file.write(f"[{name}]\n\tkey = {self.keys[name]}\n")
                for kind, right in rights.items():
                    file.write(f'\tcaps {kind} = "{right}"\n')

    def _monitor_port(self):
        taken = "".join(self.addresses.values())
        while True:
            port = free_port(MONITOR_PORTS)
            if f":{port}/" not in taken:
                return port

    def _make_monitors(self):
        monmap = self.folder / "monmap"
        words = [word for name, at in self.addresses.items() for word in ("--addv", name, at)]
        run("monmaptool", "--create", "--fsid", self.fsid, *words, monmap)
        for name in self.addresses:
            run(
                "ceph-mon", "-c", self.conf, "-i", name, "--mkfs", "--monmap", monmap,
                "--keyring", self.folder / "keyring",
            )

    def _make_osds(self):
        making = []
        for index in range(self.count):
            identity = str(uuid.uuid4())
            self.command("osd new", uuid=identity, id=index)
            (self.folder / f"osd{index}").mkdir()
            command = [
                "ceph-osd", "-c", str(self.conf), "-i", str(index), "--mkfs",
                "--osd-uuid", identity, "--no-mon-config",
            ]
            making.append(
                subprocess.Popen(
                    command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        for index, process in enumerate(making):
            code = process.wait(HEALTHY_SECONDS)
            check(code == 0, f"the store of osd.{index} cannot be made: exit code {code}")
        for index in range(self.count):
            self.start_osd(index)

    # Daemons.

    def start_monitor(self, name="a"):
        self.monitors[name] = Daemon(self, "mon", name)

    @property
    def monitor(self):
        """The first monitor."""
        return self.monitors["a"]

    def quorum(self):
        """The names of the monitors that agree with each other."""
        return self.command("quorum_status")["quorum_names"]

    def start_manager(self):
        self.manager = Daemon(self, "mgr", "x")

    def start_osd(self, index, before=()):
        self.osds[index] = Daemon(self, "osd", str(index), before)

    def kill_osd(self, index):
        """kill -9, and waits until the monitors know."""
        self.osds[index].kill()
        wait_until(f"osd.{index} is down", lambda: index not in self.osds_up(), HEALTHY_SECONDS)

    def daemons(self):
        return [*self.monitors.values(), self.manager, *self.osds.values()]

    # Commands.

    def command(self, prefix, manager=False, **arguments):
        """A command to the monitors, or to the manager; gives its answer."""
        words = json.dumps({"prefix": prefix, "format": "json", **arguments})
        call = self.handle.mgr_command if manager else self.handle.mon_command
        code, answer, text = call(words, b"", timeout=ANSWERED_SECONDS)
        check(code == 0, f"{prefix} {arguments}: error {code}, {text}")
        return json.loads(answer) if answer.strip() else None

    def osds_up(self):
        """The OSDs that are up, and the epoch since which each of them is."""
        found = self.command("osd dump")["osds"]
        return {osd["osd"]: osd["up_from"] for osd in found if osd["up"]}

    def wait_until_clean(self, seconds=HEALTHY_SECONDS):
        """Waits until all OSDs are up, and all placement groups complete, as the OSDs that are up
        now report."""

        def look():
            up = self.osds_up()
            if len(up) < self.count:
                return False
            try:
                groups = self.command("pg dump", True, dumpcontents=["pgs"])["pg_stats"]
            except Failure:
                # On a busy machine, a manager needs a minute until it answers.
                return False
            pools = self.command("osd dump").get("pools")
            if pools is None:
                return False
            wanted = sum(pool["pg_num"] for pool in pools)
            return len(groups) == wanted and all(
                group["state"].split("+")[:2] == ["active", "clean"]
                and all(up.get(osd, 1 << 32) <= group["reported_epoch"] for osd in group["acting"])
                for group in groups
            )

        try:
            wait_until("all placement groups are clean", look, seconds, 0.3)
        except Failure as failure:
            status = json.dumps(self.command("status")["pgmap"])
            raise Failure(f"{failure}: {status}") from failure

    def make_pool(self, name, code=None, groups=16):
        """Makes a pool for images: replicated, or of an erasure code of ERASURE_PROFILES."""
        sizes = {"pool": name, "pg_num": groups, "pgp_num": groups}
        if code is None:
            self.command("osd pool create", **sizes, pool_type="replicated")
        else:
            profile = [*ERASURE_PROFILES[code], "crush-failure-domain=osd"]
            self.command("osd erasure-code-profile set", name=name, profile=profile)
            self.command(
                "osd pool create", **sizes, pool_type="erasure", erasure_code_profile=name
            )
            self.command("osd pool set", pool=name, var="allow_ec_overwrites", val="true")
        self.command("osd pool application enable", pool=name, app="rbd")

    def conf_with(self, name, *lines, without=()):
        """Another configuration file for clients: with these lines for [client], and without the
        lines that begin with certain words."""
        kept = [
            line for line in self.text.splitlines() if not line.startswith(tuple(without) or "\0")
        ]
        path = self.world.file(name)
        path.write_text("\n".join([*kept, *lines]) + "\n")
        return path

    # Ceph's own clients, and ours.

    def rbd(self, *words, **options):
        try:
            return run("rbd", *words, env=self.environment, **options)
        except Failure as failure:
            # On a busy machine, the command's own threads may end it (`std::system_error`).
            if ABORTED not in str(failure) or not " ".join(map(str, words)).startswith(READING):
                raise
        if words[0] == "export":  # it does not write to a file that exists
            pathlib.Path(words[-1]).unlink(missing_ok=True)
        return run("rbd", *words, env=self.environment, **options)

    def rados(self, *words, **options):
        return run("rados", *words, env=self.environment, **options)

    def export(self, image, seconds=120):
        """The bytes of an image or snapshot, as `rbd export` reads them."""
        path = self.world.file("export.raw")
        self.rbd("export", "--no-progress", image, path, seconds=seconds)
        data = path.read_bytes()
        path.unlink()
        return data

    def check_object_map(self, image):
        """Ceph must find no fault in the object map of an image with one."""
        result = self.rbd("object-map", "check", "--no-progress", image)
        flags = json.loads(self.rbd("info", "--format", "json", image).stdout)["flags"]
        text = result.stdout + result.stderr
        check(not flags and "error" not in text.lower(), f"object map of {image}: {flags} {text}")

    def serve(self, *images, **options):
        return ImageServer(self, images, **options)


class Load:
    """A ledger's client in a thread of its own, until it is finished."""

    def __init__(self, ledger, uri, depth=8, late=ANSWER_SECONDS, **options):
        self.ledger, self.late, self.outcome = ledger, late, None
        self.stopped = threading.Event()
        self.arguments = (uri, depth, self.stopped.is_set)
        self.options = dict(options, late=late)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self):
        try:
            self.outcome = self.ledger.load(*self.arguments, **self.options)
        except BaseException as error:
            self.outcome = error

    def check(self):
        """Fails if the client has."""
        if isinstance(self.outcome, BaseException):
            raise Failure(str(self.outcome)) from self.outcome

    def wait_for_writes(self, count, seconds=ANSWER_SECONDS):
        """Waits for so many more writes."""
        wanted = self.ledger.writes + count

        def look():
            self.check()
            return self.ledger.writes >= wanted

        wait_until(f"{count} more writes are done", look, seconds, 0.02)

    def finish(self):
        """Waits for all answers. True if the server died."""
        self.stopped.set()
        self.thread.join(self.late + START_SECONDS)
        check(not self.thread.is_alive(), "the client hangs")
        self.check()
        return self.outcome


def run_steps(*steps):
    """Runs steps, each a function and its arguments, that do not build on each other. A step that
    fails does not keep the others from running: a cluster is not made for one of them."""
    failures = []
    for step, *arguments in steps:
        names = [text for text in arguments if isinstance(text, str)]
        label = " ".join([step.__name__, *names])
        began = time.monotonic()
        try:
            step(*arguments)
            print(f"{label}: {time.monotonic() - began:.1f} s", flush=True)
        except FAILURES as failure:
            place = traceback.extract_tb(failure.__traceback__)[1]
            print(f"{label}, line {place.lineno}: FAILED: {failure}", flush=True)
            failures.append(f"{label} (line {place.lineno}): {failure}")
    check(not failures, "\n".join(failures))


def settle(seconds):
    """Lets time pass, for what has to happen by itself."""
    time.sleep(seconds)
