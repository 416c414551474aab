"""How long the machine itself stood still.

A shared machine may answer no sync of its disk for many seconds, and then nothing that runs on it
keeps a bound. A pulse writes and syncs one block again and again, in the folder where a campaign
runs. A sync that takes longer than LATE_SECONDS is a stall of the machine. `Deadline` adds stalls
to its seconds. Without a pulse no stall is measured.
"""

import os
import threading
import time

EVERY_SECONDS = 0.25
# What a sync may take on a busy machine that does not stand still.
LATE_SECONDS = 2.0
BLOCK = b"\0" * 4096

_pulses = []


class Pulse:
    """Measures stalls of the file system at `folder` until it is ended."""

    def __init__(self, folder):
        self.path = folder / "pulse"
        self.past_seconds, self.began, self.ended = 0.0, None, False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        _pulses.append(self)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended = True

    def _run(self):
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        while not self.ended:
            self.began = time.monotonic()
            os.pwrite(file, BLOCK, 0)
            os.fsync(file)
            late = self._late()
            self.began = None
            self.past_seconds += late
            time.sleep(EVERY_SECONDS)
        os.close(file)

    def _late(self):
        began = self.began
        return 0.0 if began is None else max(0.0, time.monotonic() - began - LATE_SECONDS)

    def stalled_seconds(self):
        """The stalls so far, with the one that lasts."""
        return self.past_seconds + self._late()


def stalled_seconds():
    """The stalls of the machine so far, as far as they are measured."""
    return sum(pulse.stalled_seconds() for pulse in _pulses)


class Deadline:
    """A moment in so many seconds, not counting stalls of the machine."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.stalled = stalled_seconds()

    def has_passed(self):
        return time.monotonic() >= self.end + stalled_seconds() - self.stalled
