"""Disks that can lose their power: file systems on loop devices, one for each node's folder.

A file system that is shut down (the GOINGDOWN ioctl, which ext4 and XFS share) drops what was not
synced, and answers EIO from then on. Unmounted and mounted again it holds what a disk holds after a
power loss: the loop device's image has no cache of its own.

All mounts are made in a mount namespace of this process, so they go with the last process in it,
whatever becomes of the script; a loop device goes with its mount.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time

from world import ENVIRONMENT, LIBC, MIB, Failure

CLONE_NEWNS = 0x20000
MS_PRIVATE_ALL = 0x40000 | 0x4000
MNT_DETACH = 2
GOINGDOWN = 0x8004587D
# Without writing the log: what is not on the disk is lost.
GOINGDOWN_NOLOGFLUSH = 2
UNMOUNT_SECONDS = 10
# XFS is not made smaller; ext4 takes the same room, and the images have holes.
DISK_BYTES_MIN = 320 * MIB
SYNC_FILE_RANGE_WRITE = 2

TOOLS = {"ext4": ["mkfs.ext4", "-q", "-F", "-m", "0"], "xfs": ["mkfs.xfs", "-q", "-f"]}


def _run(*command):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60, env=ENVIRONMENT
    )
    if done.returncode != 0:
        raise OSError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")


def own_mounts():
    """Gives this process mounts of its own. Called before any thread is started."""
    if LIBC.unshare(CLONE_NEWNS) != 0 or LIBC.mount(None, b"/", None, MS_PRIVATE_ALL, None) != 0:
        raise OSError("this process may not mount")


def why_not(folder, kinds):
    """None, or the reason why there can be no such disks here; tries it out in `folder`."""
    if os.geteuid() != 0:
        return "not root"
    try:
        own_mounts()
        for kind in kinds:
            if shutil.which(TOOLS[kind][0], path=ENVIRONMENT["PATH"]) is None:
                return f"{TOOLS[kind][0]} is not installed"
            disk = Disk(folder / f"try.{kind}", folder / f"try.{kind}.image", kind, DISK_BYTES_MIN)
            try:
                disk.make()
                disk.lose_power()
                disk.unmount()
            finally:
                disk.discard()
    except (OSError, Failure, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


class Disk:
    """One disk, mounted at a folder."""

    def __init__(self, folder, image, kind, size):
        self.folder, self.kind, self.size = folder, kind, size
        self.stem, self.image, self.number = image, None, 0
        self.mounted = self.powered = self.filled = False

    def make(self):
        """A new, empty disk, mounted at the folder."""
        self.number += 1
        self.image = self.stem.with_name(f"{self.stem.name}.{self.number}")
        self.folder.mkdir(exist_ok=True)
        with open(self.image, "wb") as file:
            file.truncate(max(self.size, DISK_BYTES_MIN))
        _run(*TOOLS[self.kind], self.image)
        self.mount()

    def mount(self):
        _run("mount", "-o", "loop", self.image, self.folder)
        self.mounted = self.powered = True

    def lose_power(self):
        """What is not synced is lost; the file system answers EIO until it is mounted anew."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, GOINGDOWN, struct.pack("I", GOINGDOWN_NOLOGFLUSH))
        finally:
            os.close(handle)
        self.powered = False

    def write_back_some(self, rng):
        """Some of what is not synced reaches the disk all the same, as it does on any machine."""
        files = sorted(entry for entry in self.folder.iterdir() if entry.is_file())
        for _ in range(rng.randrange(12)):
            path, part = rng.choice(files), rng.random()
            length = rng.choice([4096, 65536, MIB, 0])
            with contextlib.suppress(OSError), open(path, "rb") as file:
                start = int(path.stat().st_size * part) // 4096 * 4096
                LIBC.sync_file_range(
                    file.fileno(), ctypes.c_int64(start), ctypes.c_int64(length),
                    ctypes.c_uint(SYNC_FILE_RANGE_WRITE),
                )

    def fill(self):
        """Takes all that is free. A disk without power stays as it is."""
        if not self.powered:
            return
        self.filled = True
        with open(self.folder / "ballast", "wb") as file:
            for step in (16 * MIB, MIB, 4096):
                while True:
                    try:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
                    except OSError as error:
                        if error.errno not in (errno.ENOSPC, errno.EIO):
                            raise
                        break

    def empty(self):
        """Gives back what `fill` has taken."""
        self.filled = False
        with contextlib.suppress(OSError):
            (self.folder / "ballast").unlink()

    def unmount(self, seconds=UNMOUNT_SECONDS):
        """Unmounts the disk when no process uses it. False if one does for too long."""
        end = time.monotonic() + seconds
        while self.mounted:
            try:
                _run("umount", self.folder)
                self.mounted = False
            except OSError:
                if time.monotonic() > end:
                    return False
                time.sleep(0.02)
        return True

    def discard(self):
        """Pulls the disk, even if it is in use, and throws it away."""
        if self.mounted:
            LIBC.umount2(os.fsencode(self.folder), MNT_DETACH)
            self.mounted = False
        with contextlib.suppress(OSError, TypeError):
            self.image.unlink()
