#!/usr/bin/python3
"""A client of an image through librbd, for scenarios where it and our server share the image.

    librbd_peer.py CONF POOL/IMAGE FIRST COUNT SEED

Writes blocks of `ledger.make_block` into COUNT blocks from block FIRST on, as long as it lives, and
prints `begin NUMBER VERSION` and `done NUMBER VERSION` around each write. `opened` is its first
line. SIGTERM ends it properly.
"""

import pathlib
import random
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import rados
import rbd

from device import BLOCK
from ledger import make_block


def main():
    conf, path, first, count, seed = sys.argv[1:]
    first, count, seed = int(first), int(count), int(seed)
    pool, name = path.split("/")
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    rng, version = random.Random(seed), 1
    with rados.Rados(conffile=conf, name="client.admin") as cluster:
        with cluster.open_ioctx(pool) as io, rbd.Image(io, name) as image:
            print("opened", flush=True)
            while not ended:
                number = first + rng.randrange(count)
                print(f"begin {number} {version}", flush=True)
                image.write(make_block(number, version, seed), number * BLOCK)
                image.flush()
                print(f"done {number} {version}", flush=True)
                version += 1
    print("closed", flush=True)


main()
