"""Machines of their own for the processes of a case: network namespaces on one switch.

    network = Network(world, ["client", "node0", "node1"])
    Process(world, "node", network.command("node0", ...))
    network.unplug("node1")

Each machine has one address. Faults are those of a network: a cable that is pulled ends no
connection and sends no error; a machine that another one does not hear; a slow cable.
"""

import contextlib
import ctypes
import json
import pathlib
import socket
import subprocess
import tempfile
import threading

from world import ENVIRONMENT, Skip, need, run

# The machines' addresses are 10.77.0.1, 10.77.0.2, and so on, in namespaces only.
SUBNET = "10.77.0"
# No machine has it.
NOBODY = "02:00:00:00:77:ff"
COMMAND_SECONDS = 20
# setns(2).
LIBC, CLONE_NEWNET = ctypes.CDLL(None, use_errno=True), 0x40000000


# All that a network is made of, in a namespace that ends with the command.
PROBE = """
ip link add switch type bridge
ip link add left type veth peer name right
tc qdisc add dev left root tbf rate 4mbit burst 64k latency 200ms
"""


def why_no_networks():
    """Why this process or this kernel cannot make networks; nothing if it can."""
    tried = subprocess.run(
        ["unshare", "--net", "sh", "-ec", PROBE], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, env=ENVIRONMENT, timeout=COMMAND_SECONDS, check=False,
    )
    return "" if tried.returncode == 0 else tried.stderr.strip() or "unshare failed"


class Network:
    """A switch, and a machine for each name."""

    def __init__(self, world, names):
        need("ip", "tc", "unshare")
        reason = why_no_networks()
        if reason:
            raise Skip(f"no network namespaces: {reason}")
        # The folder's name is of this case alone.
        self.prefix = world.folder.name
        self.addresses = {name: f"{SUBNET}.{index}" for index, name in enumerate(names, 1)}
        self.namespaces = []
        self.log = world.folder / "log" / "network"
        remove_those_of_the_dead()
        world.closers.append(self.remove)
        self._add_namespace("switch")
        self._in("switch", "link", "add", "switch", "type", "bridge")
        self._in("switch", "link", "set", "switch", "up")
        for name, address in self.addresses.items():
            self._add_namespace(name)
            self._in(name, "link", "set", "lo", "up")
            # One end of the cable is the machine's, the other one is a port of the switch.
            self._in(
                "switch", "link", "add", name, "type", "veth",
                "peer", "name", "eth0", "netns", self._namespace(name),
            )
            self._in("switch", "link", "set", name, "master", "switch", "up")
            self._in(name, "address", "add", f"{address}/24", "dev", "eth0")
            self._in(name, "link", "set", "eth0", "up")

    def _namespace(self, name):
        return f"{self.prefix}-{name}"

    def _add_namespace(self, name):
        self.namespaces.append(name)
        run("ip", "netns", "add", self._namespace(name), seconds=COMMAND_SECONDS)

    def _do(self, *command):
        """Runs a command, and notes it for the evidence."""
        with open(self.log, "a") as log:
            log.write(" ".join(command) + "\n")
        return run(*command, seconds=COMMAND_SECONDS).stdout

    def _in(self, name, *arguments):
        return self._do("ip", "-n", self._namespace(name), *arguments)

    def command(self, name, *command):
        """The command on that machine. It keeps its process number."""
        return ["ip", "netns", "exec", self._namespace(name), *command]

    def socket(self, name):
        """A TCP socket on that machine. A socket stays on the machine where it was made, and a
        thread goes to another machine alone."""
        made = []

        def make():
            with open(f"/run/netns/{self._namespace(name)}") as namespace:
                if LIBC.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    made.append(OSError(ctypes.get_errno(), f"no socket on {name}"))
                else:
                    made.append(socket.socket())

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not made or isinstance(made[0], OSError):
            raise made[0] if made else OSError(f"no socket on {name}")
        return made[0]

    def unplug(self, name):
        """Pulls the machine's cable out of the switch."""
        self._in("switch", "link", "set", name, "down")

    def plug(self, name):
        self._in("switch", "link", "set", name, "up")

    def deafen(self, name, speaker):
        """What `speaker` sends to `name` is lost on the way. All else goes on."""
        self._in(
            speaker, "neighbour", "replace", self.addresses[name],
            "lladdr", NOBODY, "dev", "eth0", "nud", "permanent",
        )

    def hear(self, name, speaker):
        self._in(speaker, "neighbour", "delete", self.addresses[name], "dev", "eth0")

    def slow(self, name, rate):
        """What the machine sends and gets moves at this rate, for example `4mbit`."""
        for namespace, device in ((name, "eth0"), ("switch", name)):
            self._do(
                "tc", "-n", self._namespace(namespace), "qdisc", "replace", "dev", device, "root",
                "tbf", "rate", rate, "burst", "64k", "latency", "200ms",
            )

    def fast(self, name):
        for namespace, device in ((name, "eth0"), ("switch", name)):
            self._do(
                "tc", "-n", self._namespace(namespace), "qdisc", "delete", "dev", device, "root"
            )

    def sent_bytes(self, name):
        """Bytes that the machine has sent. Headers count once for up to 64 KiB, because the kernel
        passes such frames on undivided."""
        links = json.loads(self._in(name, "-s", "-j", "link", "show", "eth0"))
        return links[0]["stats64"]["tx"]["bytes"]

    def remove(self):
        for name in self.namespaces:
            remove_namespace(self._namespace(name))


def remove_namespace(name):
    with contextlib.suppress(subprocess.SubprocessError):
        subprocess.run(
            ["ip", "netns", "delete", name], env=ENVIRONMENT, timeout=COMMAND_SECONDS, check=False,
            stderr=subprocess.DEVNULL,
        )


def remove_those_of_the_dead():
    """Removes the namespaces of cases whose folders are gone."""
    for namespace in pathlib.Path("/run/netns").glob("fs.*-*"):
        folder = pathlib.Path(tempfile.gettempdir()) / namespace.name.rsplit("-", 1)[0]
        if not folder.exists():
            remove_namespace(namespace.name)
