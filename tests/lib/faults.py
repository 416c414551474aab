"""The misfortunes of the thrasher: what each does to a rig, and how it ends.

A fault is drawn with all that it needs (`Plan`), begins while clients are at work, and ends later
in the cycle. `hurts` says whether its nodes may lack data afterwards: at most M nodes may, at a time.
"""

import os
import random
import shutil
import time

from world import Failure

# How often a file is damaged in each of these ways.
HARM = ["flip", "flip", "cut", "stale"]
# Part of the flips that hit the first bytes of a file, where its headers are.
HEAD_BYTES = 128 << 10


class Plan:
    """One fault: its kind, its nodes, when it begins and, if it stalls something, how long."""

    def __init__(self, kind, nodes, at, seconds, seed):
        self.kind, self.nodes, self.at, self.seconds, self.seed = kind, nodes, at, seconds, seed

    def __str__(self):
        nodes = f" {','.join(map(str, self.nodes))}" if self.nodes else ""
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.kind}{nodes}{lasts} at {self.at:.2f}"


class Fault:
    """What all faults have. `rig` is the pool with its disks, server and clients."""

    # Whether its nodes may lack data afterwards.
    hurts = True
    # Whether the server dies.
    ends_server = False
    # Whether the nodes have to be processes; whether there have to be disks of their own.
    needs_processes = needs_disks = False
    # How many nodes it takes: none, one, or up to as many as may be lost.
    takes = "some"
    # Whether it stalls what it takes for a while.
    stalls = False
    # Faults end in this order: what runs again, the disks that are mounted again, what needs both.
    rank = 1

    def __init__(self, plan):
        self.plan, self.nodes = plan, plan.nodes
        self.rng = random.Random(plan.seed)
        self.began = None

    def prepare(self, rig):
        """Before the clients start."""

    def begin(self, rig):
        """While they work."""

    def end(self, rig):
        """After they are done. A server that runs may go on running."""


class KillServer(Fault):
    """kill -9 of the server."""

    hurts, ends_server, takes = False, True, "none"

    def begin(self, rig):
        rig.kill_server()


class EndServer(Fault):
    """SIGTERM while clients are at work."""

    hurts, ends_server, takes = False, True, "none"

    def begin(self, rig):
        rig.end_server()


class KillNodes(Fault):
    """kill -9 of node processes; they come back with their folders."""

    needs_processes = True

    def begin(self, rig):
        rig.pool.kill_nodes(self.nodes)

    def end(self, rig):
        rig.start_nodes(self.nodes)


class KillAll(Fault):
    """kill -9 of every process, at one moment."""

    hurts, ends_server, needs_processes, takes = False, True, True, "none"

    def begin(self, rig):
        rig.kill_everything()

    def end(self, rig):
        rig.start_nodes(range(rig.pool.count))


class StallNodes(Fault):
    """SIGSTOP of node processes for some time."""

    needs_processes = stalls = True
    rank = 0

    def begin(self, rig):
        self.began = time.monotonic()
        for index in self.nodes:
            if index in rig.pool.nodes:
                rig.pool.nodes[index].pause()

    def end(self, rig):
        time.sleep(max(0, self.began + self.plan.seconds - time.monotonic()))
        for index in self.nodes:
            if index in rig.pool.nodes:
                rig.pool.nodes[index].go_on()


class StallServer(Fault):
    """SIGSTOP of the server for some time, under its clients."""

    hurts, takes, stalls = False, "none", True

    def begin(self, rig):
        if rig.server.is_running():
            rig.server.pause()
            time.sleep(self.plan.seconds)
            rig.server.go_on()


class FailNodes(Fault):
    """Machines of some nodes lose their power."""

    needs_processes = needs_disks = True

    def begin(self, rig):
        rig.lose_power(self.nodes, self.rng)

    def end(self, rig):
        rig.remount(self.nodes)
        rig.start_nodes(self.nodes)


class FailAll(Fault):
    """Everything loses its power at one moment: what no flush has covered may be gone."""

    hurts, ends_server, needs_disks, takes = False, True, True, "none"

    def begin(self, rig):
        rig.lose_power(range(rig.pool.count), self.rng)

    def end(self, rig):
        rig.remount(range(rig.pool.count))
        rig.start_nodes(range(rig.pool.count))


class FailDisk(Fault):
    """Disks answer EIO under the nodes that use them; what was not synced is lost."""

    needs_disks = True

    def begin(self, rig):
        for index in self.nodes:
            if rig.disks[index].powered:
                rig.disks[index].lose_power()

    def end(self, rig):
        rig.pool.kill_nodes(self.nodes)
        rig.remount(self.nodes)
        rig.start_nodes(self.nodes)


class LoseDisk(Fault):
    """Disks die; empty nodes are made in their place with `pool replace`."""

    rank = 3

    def begin(self, rig):
        rig.lose_nodes(self.nodes)

    def end(self, rig):
        rig.replace_nodes(self.nodes)


class FillDisk(Fault):
    """Other files take all of a disk's room."""

    needs_disks, takes, rank = True, "one", 2

    def begin(self, rig):
        rig.disks[self.nodes[0]].fill()

    def end(self, rig):
        rig.disks[self.nodes[0]].empty()
        rig.start_nodes(self.nodes)


class DamageFile(Fault):
    """One file of one node is damaged while the node does not run: some bits flip, it is cut, or a
    copy from before the cycle takes its place."""

    takes, rank = "one", 2

    def __init__(self, plan):
        super().__init__(plan)
        self.how = self.rng.choice(HARM)
        self.copy, self.path = None, None

    def _choose(self, rig):
        """A file: each kind of file is as likely as the others."""
        kinds = {}
        for entry in sorted(rig.pool.node_path(self.nodes[0]).iterdir()):
            if entry.is_file() and entry.name not in ("lock", "ballast"):
                kinds.setdefault(entry.name.split(".")[0], []).append(entry)
        return self.rng.choice(kinds[self.rng.choice(sorted(kinds))]) if kinds else None

    def prepare(self, rig):
        if self.how == "stale" and (path := self._choose(rig)):
            self.path, self.copy = path, rig.world.file("stale")
            shutil.copyfile(path, self.copy)

    def begin(self, rig):
        rig.stop_node_for_damage(self.nodes[0])
        rig.damaged.add(self.nodes[0])
        try:
            self._damage(rig)
        except OSError as error:
            # The disk has lost its power in this cycle, too.
            rig.note(f"not damaged: {error}")

    def _damage(self, rig):
        if self.how != "stale":
            self.path = self._choose(rig)
        if self.path is None or not self.path.exists():
            return
        if self.how == "stale":
            shutil.copyfile(self.copy, self.path)
        elif self.how == "cut":
            os.truncate(self.path, int(self.path.stat().st_size * self.rng.random()))
        else:
            self._flip()
        rig.note(f"{self.how} {self.path.parent.name}/{self.path.name}")

    def _flip(self):
        """Flips some bits of one place that holds data."""
        with open(self.path, "r+b") as file:
            size = self.path.stat().st_size
            reach = min(size, HEAD_BYTES) if self.rng.random() < 0.5 else size
            if reach == 0:
                return
            at = self.rng.randrange(reach)
            try:
                at = min(os.lseek(file.fileno(), at, os.SEEK_DATA), size - 1)
            except OSError:
                at = self.rng.randrange(min(size, HEAD_BYTES))
            length = self.rng.choice([1, 1, 8, 512])
            file.seek(at)
            old = file.read(length)
            mask = 1 << self.rng.randrange(8)
            file.seek(at)
            file.write(bytes(byte ^ mask for byte in old))

    def end(self, rig):
        try:
            rig.start_nodes(self.nodes, damaged=True)
        except Failure as failure:
            # A node may refuse its folder, if it says so. Then it is replaced.
            rig.note(f"node {self.nodes[0]} does not start: {str(failure).splitlines()[-1]}")
            rig.renew_node(self.nodes[0])


KINDS = {
    "kill_server": (KillServer, 4),
    "end_server": (EndServer, 1),
    "kill_nodes": (KillNodes, 3),
    "kill_all": (KillAll, 2),
    "stall_nodes": (StallNodes, 2),
    "stall_server": (StallServer, 1),
    "power_nodes": (FailNodes, 2),
    "power_all": (FailAll, 2),
    "eio_disk": (FailDisk, 1.5),
    "dead_disk": (LoseDisk, 2),
    "full_disk": (FillDisk, 1.5),
    "damage": (DamageFile, 2),
}
