#!/usr/bin/python3
"""A file system: built with mke2fs, copied in, read back through NBD, checked and compared."""

import filecmp
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from device import noise
from scenario import main
from world import COPIES_INSIDE, EVERY_CASE, MIB, check, need, run


def make_tree(folder):
    """Small and large files, deep folders, an empty file, a link, a sparse file."""
    for index in range(300):
        path = folder / f"d{index % 7}" / f"e{index % 11}" / f"file{index}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise(index * 37 % 20_000, index))
    (folder / "large").write_bytes(noise(24 * MIB, 1))
    (folder / "empty").touch()
    (folder / "link").symlink_to("large")
    with open(folder / "sparse", "wb") as file:
        file.seek(5 * MIB)
        file.write(noise(100_000, 2))
        file.truncate(9 * MIB)


def files_of(folder):
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def scenario(world):
    need("mke2fs", "e2fsck", "debugfs", "nbdcopy")
    tree, image = world.file("tree"), world.file("image")
    tree.mkdir()
    make_tree(tree)
    run("mke2fs", "-q", "-t", "ext4", "-d", tree, image, "96M")

    pool = world.pool()
    pool.create_volume("fs", "96M")
    server = pool.serve("fs")
    run("nbdcopy", "--connections=4", "--flush", image, server.uri("fs"))
    server.stop()

    # With a node lost, at that.
    pool.delete_node(1)
    pool.start_missing_nodes()
    server = pool.serve("fs", options=["--no-auto-rebuild"])
    back = world.file("back")
    run("nbdcopy", "--connections=4", server.uri("fs"), back)
    server.stop()
    shown = run("e2fsck", "-fn", back).stdout
    check("WARNING" not in shown, shown)

    out = world.file("out")
    out.mkdir()
    run("debugfs", "-R", f"rdump / {out}", back, ok=None)
    for path in files_of(tree):
        check((out / path).exists(), f"{path} is not in the file system")
        check(filecmp.cmp(tree / path, out / path, shallow=False), f"{path} differs")
    check(os.readlink(out / "link") == "large", "the link differs")
    extra = set(files_of(out)) - set(files_of(tree))
    check(not extra, f"files that were not put there: {extra}")


main(scenario, COPIES_INSIDE, more=EVERY_CASE)
