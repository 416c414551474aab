"""The programs of a pool with clients: a server with the metadata service, and clients that open
volumes with a credential and without the pool's folder."""

import pathlib
import socket
import time

from device import error_of
from ledger import BLOCK
from world import FIELDSTONE, Process, check, fieldstone

LOCALHOST = "127.0.0.1"


def free_port():
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        return probe.getsockname()[1]


class Service:
    """A server that runs the pool's nodes, or finds them, and leaves the volumes to clients, except
    for those that it is given."""

    def __init__(self, pool, *options, volumes=()):
        self.pool, self.options, self.port = pool, options, free_port()
        self.targets = [pool.path / name for name in volumes] or [pool.path]
        self.start()

    def start(self):
        address = f"tcp:{LOCALHOST}:{self.port}"
        command = [FIELDSTONE, "serve", *self.targets, "--metadata", address, *self.options]
        self.process = Process(self.pool.world, "service", command)
        self.process.wait_for_output("metadata on")


class Client(Process):
    """`fieldstone serve client:FILE/VOLUME`. `through` are words before the command: those that
    run it on another machine."""

    def __init__(self, world, credential, volume, *options, wait=True, through=()):
        world.sockets += 1
        self.socket = world.folder / f"client{world.sockets}.sock"
        command = [
            *through, FIELDSTONE, "serve", f"client:{credential}/{volume}",
            "--nbd", f"unix:{self.socket}", *options,
        ]
        super().__init__(world, f"client-{volume}", command)
        if wait:
            self.wait_for_output("serving ")

    @property
    def uri(self):
        return f"nbd+unix:///?socket={self.socket}"

    def opened(self):
        """The files and folders that it has open."""
        links = pathlib.Path(f"/proc/{self.pid}/fd").iterdir()
        return [str(link.readlink()) for link in links if link.is_symlink()]


def admit(world, pool, service, name, *volumes):
    return admit_at(world, pool, f"{LOCALHOST}:{service.port}", name, *volumes)


def admit_at(world, pool, address, name, *volumes):
    """The credential of a client that finds the service at this address."""
    file = world.file(f"{name}.json")
    chosen = [word for volume in volumes for word in ("--volume", volume)]
    fieldstone("pool", "admit", pool.path, name, "--metadata", address, *chosen, "--output", file)
    check(file.stat().st_mode & 0o777 == 0o600, "others can read the credential")
    return file


def after(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def load(ledger, client, seconds=0.5):
    check(not ledger.load(client.uri, 8, stop=after(seconds)), "the connection died")


def works(handle):
    """Whether a write has no error. It writes what is there."""
    return error_of(handle.pwrite, handle.pread(BLOCK, 0), 0) is None if reads(handle) else False


def reads(handle):
    return error_of(handle.pread, BLOCK, 0) is None
