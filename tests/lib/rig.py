"""The thrasher's rig: a pool with little room, several volumes, a server, clients, and disks that
can lose their power. Every wait here is bounded."""

import threading
import time

from disks import UNMOUNT_SECONDS, Disk
from device import BLOCK, connect, finish
from ledger import ANSWER_SECONDS, Ledger, Mix, make_block
from world import FIELDSTONE, MIB, START_SECONDS, Failure, check, run, wait_until

# All volumes open within this time, whatever happened before.
OPEN_SECONDS = 60
# A server ends by itself within this time.
END_SECONDS = 75
# Every shard is there again within this time.
WHOLE_SECONDS = 60
# What a damaged node gets of that, before the operator replaces it.
MEND_SECONDS = 30
# A volume that was full takes writes again within this time after a trim.
ROOM_SECONDS = 30
# Within this time its neighbours have given back what they can spare.
GRANT_SECONDS = 6
# A thin volume may be refused room when less than this is free on some node.
TIGHT_BYTES = 8 * MIB

THICK = Mix(flush=0.02, read=0.15, trim=0.03, zero=0.03, fua=0.05)
THIN = Mix(flush=0.02, read=0.10, trim=0.12, zero=0.04, fua=0.05)


class Shape:
    """What is drawn for a pool: sizes and options."""

    def __init__(self, case, rng, more_mib=None):
        copies = case.code.startswith("copies")
        # Barely enough, a little more, or plenty.
        least = 38 if copies else 32
        drawn = rng.choice([0, 1, 2, 4, 8, 12, 32, 48])
        self.node_mib = least + (drawn if more_mib is None else more_mib)
        thick, thin = (8, 12) if copies else (16, 24)
        self.volumes = [("a", thick, False), ("b", thick, False), ("thin", thin, True)]
        self.file_system = rng.choice(["ext4", "xfs"])
        self.options = ["--cores", str(rng.choice([1, 1, 2]))]
        self.seed = rng.randrange(1 << 24)

    def __str__(self):
        sizes = " + ".join(f"{size}M{' thin' if thin else ''}" for _, size, thin in self.volumes)
        return f"nodes of {self.node_mib}M on {self.file_system}, {sizes}, {' '.join(self.options)}"


class Rig:
    """One pool and everything around it. `tell` prints a line."""

    def __init__(self, world, shape, with_disks, tell):
        self.world, self.case, self.shape, self.tell = world, world.case, shape, tell
        self.damaged, self.notes = set(), []
        self.disks, self.server = None, None
        self.power_lost = False
        self.slowest_opening = self.slowest_whole = 0.0
        self.renewed = 0
        path = world.file("pool")
        if with_disks:
            path.mkdir()
            size = (shape.node_mib + 96) * MIB
            self.disks = [
                Disk(path / f"node.{i}", world.file(f"disk.{i}"), shape.file_system, size)
                for i in range(self.case.node_count)
            ]
            world.closers.append(self._discard_disks)
            for disk in self.disks:
                disk.make()
        self.pool = world.pool(f"{shape.node_mib}M")
        self.ledgers = {}
        for number, (name, size, thin) in enumerate(shape.volumes):
            self.pool.create_volume(name, f"{size}M", ["--thin"] if thin else [])
            self.ledgers[name] = Ledger(size * MIB // BLOCK, shape.seed + number)
        self.thin = {name for name, _, thin in shape.volumes if thin}

    def _discard_disks(self):
        for disk in self.disks:
            disk.discard()

    def note(self, text):
        """Something about this cycle that its plan does not say."""
        self.notes.append(text)

    # The server.

    def _serve(self, wait):
        options = list(self.shape.options)
        if self.case.nodes == "processes":
            # Named, so that the server never opens the folder of a node that is down.
            for index in range(self.pool.count):
                options += ["--node", f"{index}=unix:{self.world.folder}/n{index}.sock"]
        self.server = self.pool.serve(*self.ledgers, options=options, wait=wait)

    def open(self):
        """Starts the server if none runs, and waits until all volumes are served."""
        if self.server is not None and self.server.is_running():
            return
        began = time.monotonic()
        self._serve(wait=False)
        try:
            self.server.wait_for_output("serving ", len(self.ledgers), OPEN_SECONDS)
        except Failure as failure:
            served = self.server.output().count("serving ")
            raise Failure(
                f"{served} of {len(self.ledgers)} volumes are open after {OPEN_SECONDS} s "
                f"({failure}):\n{self.server.errors()[-4000:]}"
            ) from failure
        self.slowest_opening = max(self.slowest_opening, time.monotonic() - began)

    def open_and_kill(self, seconds):
        """A server that is killed while it opens, perhaps."""
        self._serve(wait=False)
        time.sleep(seconds)
        check(self.server.is_running(), f"the server ended:\n{self.server.errors()[-4000:]}")
        self.kill_server()

    def kill_server(self):
        if self.server.is_running():
            self.server.kill()

    def end_server(self):
        if self.server.is_running():
            self.server.stop(END_SECONDS)

    # Nodes.

    def start_nodes(self, indices, damaged=False):
        """Starts the node processes that can run and do not."""
        for index in indices if self.case.nodes == "processes" else ():
            skipped = index in self.damaged and not damaged
            if self.disks is not None:
                skipped = skipped or not (self.disks[index].mounted and self.disks[index].powered)
            elif not self.pool.node_path(index).exists():
                skipped = True
            if index not in self.pool.nodes and not skipped:
                try:
                    self.pool.start_node(index)
                except Failure as failure:
                    self.pool.nodes.pop(index, None)
                    full = self.disks is not None and self.disks[index].filled
                    if not full or "No space left" not in str(failure):
                        raise
                    # It starts when there is room again.
                    self.note(f"node {index} does not start on a full disk")

    def kill_everything(self):
        """Nothing runs on while other processes die, so no node misses a write."""
        processes = [self.server, *self.pool.nodes.values()]
        for process in processes:
            if process.is_running():
                process.pause()
        for process in processes:
            process.kill()
        self.pool.nodes.clear()

    def stop_node_for_damage(self, index):
        if self.case.nodes == "processes":
            self.pool.kill_nodes([index])
        else:
            self.kill_server()

    def lose_power(self, indices, rng):
        """Nodes, or everything, stop at one moment; what was not synced is lost."""
        everything = len(indices) == self.pool.count
        processes = [self.pool.nodes[index] for index in indices if index in self.pool.nodes]
        if everything:
            processes.append(self.server)
        for process in processes:
            if process.is_running():
                process.pause()
        for index in indices:
            disk = self.disks[index]
            if disk.mounted and disk.powered:
                disk.write_back_some(rng)
                disk.lose_power()
        for process in processes:
            process.kill()
        for index in indices:
            self.pool.nodes.pop(index, None)
        self.power_lost = self.power_lost or everything

    def remount(self, indices):
        """Disks that have lost their power come back."""
        for index in indices:
            disk = self.disks[index]
            if not disk.mounted or disk.powered:
                continue
            if self.case.nodes == "inside" and not disk.unmount(0.5):
                # The server has files open there. A machine would be started again.
                self.kill_server()
            check(disk.unmount(), f"node.{index} is in use {UNMOUNT_SECONDS} s after its node died")
            disk.mount()

    def lose_nodes(self, indices):
        """Disks are gone, with all that was on them."""
        self.pool.kill_nodes(indices)
        for index in indices:
            if self.disks is not None:
                self.disks[index].discard()
            else:
                self.pool.delete_node(index)

    def replace_nodes(self, indices):
        """New, empty disks, and new nodes there."""
        if self.disks is not None:
            for index in indices:
                self.disks[index].make()
        self.damaged.difference_update(indices)
        self.pool.replace(*indices)
        self.start_nodes(indices)

    def renew_node(self, index):
        """What an operator does with a damaged node that does not recover."""
        self.renewed += 1
        self.lose_nodes([index])
        self.replace_nodes([index])

    # Volumes.

    def verify(self, part=1.0, flush=True):
        for name, ledger in self.ledgers.items():
            try:
                ledger.verify(self.server.uri(name), part, flush)
            except Failure as failure:
                raise Failure(f"volume {name}: {failure}") from failure

    def wait_until_whole(self, seconds=WHOLE_SECONDS):
        began = time.monotonic()
        self.pool.wait_until_whole(*self.ledgers, seconds=seconds)
        for volume in self.pool.status()["volumes"]:
            check(
                volume["journal_whole"] and volume["segments_lost"] == 0,
                f"{volume['name']} is said to be healthy, and lacks something: {volume}",
            )
        self.slowest_whole = max(self.slowest_whole, time.monotonic() - began)

    def mend(self):
        """After damage: scrub finds the rest; a node that does not recover is replaced."""
        run(FIELDSTONE, "scrub", self.pool.path, seconds=WHOLE_SECONDS, ok=(0, 1))
        try:
            self.wait_until_whole(MEND_SECONDS)
        except Failure as failure:
            for index in sorted(self.damaged):
                self.note(f"node {index} is replaced: {failure}")
                self.renew_node(index)
            self.open()
            self.wait_until_whole()
        self.damaged.clear()

    def room(self):
        """Per volume the bytes that it has room for, and what is free on the fullest node."""
        status = self.pool.status()
        rooms = {volume["name"]: volume["capacity_bytes"] for volume in status["volumes"]}
        return rooms, min(node.get("free_bytes", 0) for node in status["nodes"])

    def make_room(self, name):
        """Trims a half of a volume, and of what is left, until it takes writes again: at the latest
        when all is trimmed, or `status` says that there is room. A thin volume may hold more than
        the room that is left beside thick ones, if it was filled while these lacked theirs."""
        ledger = self.ledgers[name]
        handle = connect(self.server.uri(name), seconds=ANSWER_SECONDS)
        end = ledger.blocks
        while True:
            part = range(end // 2 if end > 8 else 0, end)
            version = ledger.begin(part, zeroes=True)
            cookie = handle.aio_trim(len(part) * BLOCK, part[0] * BLOCK)
            finish(handle, cookie, ANSWER_SECONDS, f"a trim of {len(part)} blocks of {name}")
            ledger.done(part, version)
            if self._room_came(handle, name, part[0]):
                break
            end = part[0]
        handle.shutdown()

    def _room_came(self, handle, name, block):
        """Waits until `block`, behind which all is trimmed, can be written: True. Or `status` shows
        for long that the volume has no room, and there is more to trim: False."""
        began = time.monotonic()

        def look():
            if self._takes_a_write(handle, name, block):
                return "taken"
            waited = time.monotonic() - began > GRANT_SECONDS
            return "full" if block > 0 and waited and not self._has_room(name) else None

        what = f"{name} takes a write after a trim"
        return wait_until(what, look, ROOM_SECONDS, 0.5) == "taken"

    def _has_room(self, name):
        volume = self.pool.volume_status(name)
        return volume["live_bytes"] + BLOCK <= volume["capacity_bytes"]

    def _takes_a_write(self, handle, name, block):
        """Writes a block. False if there is no space."""
        ledger, spot = self.ledgers[name], range(block, block + 1)
        version = ledger.begin(spot)
        data = bytearray(make_block(block, version, ledger.seed))
        cookie = handle.aio_pwrite(data, block * BLOCK)
        try:
            finish(handle, cookie, ANSWER_SECONDS, f"a write to {name}")
        except Failure as failure:
            if "No space" not in str(failure):
                raise
            return False
        ledger.done(spot, version)
        return True


class Clients:
    """A client on each volume, until they are stopped or the server dies."""

    def __init__(self, rig, depth, thick_may_be_full):
        self.rig, self.stopped = rig, threading.Event()
        self.outcomes = {}
        self.threads = []
        for name, ledger in rig.ledgers.items():
            full = thick_may_be_full or name in rig.thin
            work = (name, ledger, rig.server.uri(name), depth, full)
            self.threads.append(threading.Thread(target=self._work, args=work, daemon=True))
        for thread in self.threads:
            thread.start()

    def _work(self, name, ledger, uri, depth, full):
        mix = THIN if name in self.rig.thin else THICK
        try:
            self.outcomes[name] = ledger.load(uri, depth, self.stopped.is_set, mix, full)
        except BaseException as error:
            self.outcomes[name] = error

    def failure(self):
        """What a client has found so far."""
        found = [out for out in self.outcomes.items() if isinstance(out[1], BaseException)]
        return found[0] if found else None

    def finish(self):
        """Waits for all answers. Tells whether the server died under the clients."""
        self.stopped.set()
        for thread in self.threads:
            thread.join(ANSWER_SECONDS + START_SECONDS)
        check(len(self.outcomes) == len(self.threads), "a client hangs")
        if found := self.failure():
            raise Failure(f"volume {found[0]}: {found[1]}") from found[1]
        return any(self.outcomes.values())
