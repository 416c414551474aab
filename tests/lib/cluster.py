"""A pool whose nodes, and whose server, have a machine each: network namespaces.

    cluster = Cluster(world, "ring")
    cluster.network.unplug("node1")

The server runs on the machine `client`.
"""

from network import Network
from world import FIELDSTONE, MIB, Case, Process, run

SIZE = 48 * MIB
PORT = 7700
# The code, and the options of the pool.
WAYS = {
    "flat": ("copies:3", ["--replicate", "flat"]),
    "ring": ("copies:3", ["--replicate", "ring"]),
    "tree": ("copies:3", ["--replicate", "tree"]),
    "primary": ("copies:3", ["--replicate", "primary"]),
    # A tree of two levels: rank 1 is an inner node, and ranks 3 and 4 are behind it.
    "deep": ("copies:5", ["--replicate", "tree"]),
    "stream": ("rs:4+2", ["--replicate", "flat", "--encode", "stream"]),
    "zigzag": ("zigzag:4+2", ["--replicate", "flat", "--encode", "stream"]),
    "client": ("rs:4+2", ["--replicate", "flat", "--encode", "client"]),
    # Data nodes pass parity on that the server made.
    "parts": ("rs:4+2", ["--replicate", "primary", "--encode", "client"]),
    # Records are passed on, and nodes make parity.
    "both": ("rs:4+2", ["--replicate", "ring", "--encode", "stream"]),
}


class Cluster:
    """A pool whose nodes, and whose server, have a machine each."""

    def __init__(self, world, way, others=(), seen_at=None):
        """`others` are machines beside those of the pool. `seen_at` gives the addresses at which
        the server, and so all nodes, see some of the nodes, if these are not their own."""
        self.world, self.way = world, way
        code, options = WAYS[way]
        self.case = Case(code, "inside")
        self.count = self.case.node_count
        machines = ["client", *map(self.machine, range(self.count)), *others]
        self.network = Network(world, machines)
        # The nodes are started below, on their machines.
        self.pool = world.pool("768M", case=self.case, options=options)
        self.nodes = [self.start_node(index) for index in range(self.count)]
        self.see_at(seen_at(self) if seen_at else {})
        run(*self.command("volume", "create", self.pool.path / "v", "--size", SIZE), *self.at)
        self.socket = world.file("nbd.sock")
        self.uri = f"nbd+unix:///?socket={self.socket}"
        self.serve()

    def see_at(self, addresses):
        """The server, when it starts again, sees these nodes at these addresses, and all others at
        their own."""
        numbers = range(self.count)
        seen = [f"{index}={addresses.get(index, self.address(index))}" for index in numbers]
        self.at = [word for node in seen for word in ("--node", node)]

    def command(self, *words):
        """A command of ours on the client's machine."""
        return self.network.command("client", FIELDSTONE, *words)

    def serve(self):
        """Starts the server."""
        serve = self.command("serve", self.pool.path / "v", "--nbd", f"unix:{self.socket}")
        self.server = Process(self.world, "serve", [*serve, *self.at])
        self.server.wait_for_output("serving ")

    @property
    def passes_on(self):
        """Nodes send writes, or parity that they make, to other nodes."""
        return self.way not in ("flat", "client")

    @staticmethod
    def machine(index):
        return f"node{index}"

    def address(self, index):
        return f"tcp:{self.network.addresses[self.machine(index)]}:{PORT}"

    def start_node(self, index):
        command = [FIELDSTONE, "node", self.pool.node_path(index), "--listen", self.address(index)]
        name = self.machine(index)
        node = Process(self.world, name, self.network.command(name, *command))
        node.wait_for_output("listens on")
        return node

    def status(self):
        """What the server says of the volume."""
        return self.pool.volume_status("v")

    def wait_until_whole(self):
        self.pool.wait_until_whole("v")

    def cpu_seconds(self):
        return [process.cpu_seconds() for process in (self.server, *self.nodes)]

    def stop(self):
        """Stops the server and the nodes."""
        for process in (self.server, *self.nodes):
            process.stop()
