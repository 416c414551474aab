#!/usr/bin/python3
"""Encrypted images of a Ceph cluster, used by us and by librbd in turn: both read the same bytes.

Images that `rbd encryption format` made, LUKS1 and LUKS2, and images that our command made: librbd
(python3-rbd, `encryption_load`) writes and we read, and the reverse; sectors that nobody wrote are
zeroes; trims and zeroes are read as such by both; a clone of an encrypted image. Wrong passphrases,
images without a header, headers of formatted clones: one line that names the thing.
"""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, need_ceph, run_steps
from device import connect, error_of, need_libnbd, noise
from model import Model, read_all
from scenario import main
from world import MIB, Case, Failure, check, fieldstone, refused

try:
    import rbd
except ImportError:
    rbd = None

DATA = 24 * MIB
# Where the data begins, with objects of 4 MiB.
OFFSETS = {"luks1": 4 * MIB, "luks2": 16 * MIB}
SECTORS = {"luks1": 512, "luks2": 4096}
PASSPHRASE = "open sesame"


class Librbd:
    """An encrypted image, opened by librbd."""

    def __init__(self, cluster, image, version, passphrase=PASSPHRASE):
        pool, name = image.split("/")
        self.io = cluster.handle.open_ioctx(pool)
        self.image = rbd.Image(self.io, name)
        formats = {
            "luks1": rbd.RBD_ENCRYPTION_FORMAT_LUKS1, "luks2": rbd.RBD_ENCRYPTION_FORMAT_LUKS2,
        }
        self.image.encryption_load(formats[version], passphrase)

    def __enter__(self):
        return self.image

    def __exit__(self, *_):
        self.image.flush()
        self.image.close()
        self.io.close()


def librbd_reads(cluster, image, version):
    with Librbd(cluster, image, version) as opened:
        size = opened.size()
        return b"".join(opened.read(at, min(MIB, size - at)) for at in range(0, size, MIB))


def same(expected, found, what):
    """Fails with the place of the first difference."""
    if expected == found:
        return
    check(len(expected) == len(found), f"{what}: {len(found)} bytes instead of {len(expected)}")
    at = next(at for at in range(len(expected)) if expected[at] != found[at])
    raise Failure(
        f"{what}: first difference at {at}: {found[at : at + 16].hex()} instead of "
        f"{expected[at : at + 16].hex()}"
    )


def passphrase_file(world, text=PASSPHRASE, name="passphrase"):
    path = world.file(name)
    path.write_text(text + "\n")
    return path


def create(cluster, image, version):
    cluster.rbd("create", image, "--size", f"{(DATA + OFFSETS[version]) // MIB}M")


def serve(cluster, image, file, **options):
    return cluster.serve(f"{image}:luks={file}", **options)


def exchange(cluster, image, version):
    """Both sides write and read an image that has a header already."""
    name, file = image.split("/")[1], passphrase_file(cluster.world)
    # librbd writes some parts of a new image.
    expected, rng = bytearray(DATA), random.Random(image)
    with Librbd(cluster, image, version) as opened:
        check(opened.size() == DATA, f"{image}: librbd sees {opened.size()} bytes")
        for _ in range(30):
            at, length = rng.randrange(DATA - MIB), rng.choice([1, 100, 512, 4096, 70000, MIB])
            # A part of a sector beside a hole of the object: librbd would keep noise around it.
            at -= at % SECTORS[version]
            length += -length % SECTORS[version]
            expected[at : at + length] = data = rng.randbytes(length)
            opened.write(data, at)
    server = serve(cluster, image, file)
    handle = connect(server.uri(name))
    same(bytes(expected), read_all(handle), f"{image}: what librbd wrote")
    for _ in range(100):
        at, length = rng.randrange(DATA - MIB), rng.choice([1, 511, 4097, 66000, MIB])
        found = bytes(handle.pread(length, at))
        same(bytes(expected[at : at + length]), found, f"{image}: {length} bytes at {at}")
    # We fill the image: from now on librbd has no holes to read noise from.
    model = Model(DATA, seed=image, grain=SECTORS[version])
    for at in range(0, DATA, MIB):
        model.data[at : at + MIB] = noise(MIB, at + 1)
        handle.pwrite(bytes(model.data[at : at + MIB]), at)
    handle.shutdown()
    model.work(server.uri(name), 80)
    server.stop()
    same(bytes(model.data), librbd_reads(cluster, image, version), f"{image}: what we wrote")
    # And librbd changes it once more, in parts of sectors too.
    with Librbd(cluster, image, version) as opened:
        for _ in range(30):
            at, length = rng.randrange(DATA - MIB), rng.choice([1, 100, 4096, 70000])
            model.data[at : at + length] = data = rng.randbytes(length)
            opened.write(data, at)
        model.data[5 * MIB : 9 * MIB] = bytes(4 * MIB)
        opened.discard(5 * MIB, 4 * MIB)
        model.data[MIB + 77 : MIB + 99] = bytes(22)
        opened.write_zeroes(MIB + 77, 22)
    server = serve(cluster, image, file)
    handle = connect(server.uri(name))
    same(bytes(model.data), read_all(handle), f"{image}: what librbd changed")
    secret = noise(4096, 99)
    handle.pwrite(secret, 20 * MIB)
    handle.shutdown()
    server.stop()
    # Nothing of it is readable in the pool.
    stored = cluster.export(image)
    check(secret[:64] not in stored, f"{image}: plain text")
    cluster.check_object_map(image)


def of_rbd(cluster, version):
    """Headers that the real tool writes."""
    image = f"rep/{version}"
    create(cluster, image, version)
    file = passphrase_file(cluster.world)
    cluster.rbd("encryption", "format", image, version, file, "--cipher-alg", "aes-256")
    exchange(cluster, image, version)
    clone(cluster, image, version)


def of_ours(cluster, version):
    """Headers that our command writes."""
    image = f"rep/own-{version}"
    create(cluster, image, version)
    file = passphrase_file(cluster.world)
    cipher = {"luks1": "aes-128", "luks2": "aes-256"}[version]
    words = ["encryption", "format", image, version, file, "--cipher-alg", cipher]
    fieldstone("rbd", "--conf", cluster.conf, *words)
    exchange(cluster, image, version)


def clone(cluster, image, version):
    """A clone of an encrypted image has its key: both sides read and write it."""
    file, child = passphrase_file(cluster.world), f"{image}-clone"
    before = librbd_reads(cluster, image, version)
    cluster.rbd("snap", "create", "--no-progress", f"{image}@base")
    cluster.rbd("snap", "protect", f"{image}@base")
    cluster.rbd("clone", f"{image}@base", child)
    server = serve(cluster, child, file)
    model = Model(DATA, seed=child, grain=SECTORS[version])
    model.data[:] = before
    handle = connect(server.uri())
    same(before, read_all(handle), f"{child}: the parent's bytes")
    handle.shutdown()
    model.work(server.uri(), 60)
    server.stop()
    same(bytes(model.data), librbd_reads(cluster, child, version), f"{child}: what we wrote")
    same(before, librbd_reads(cluster, image, version), f"{image}: the parent of a clone")
    refused(
        "rbd", "--conf", cluster.conf, "encryption", "format", child, version, file,
        says=[child, "clone", "flatten"],
    )


def refusals(cluster):
    """What does not open names the image and the reason."""
    world, image = cluster.world, "rep/refused"
    right, wrong = passphrase_file(world), passphrase_file(world, "open", "wrong")
    create(cluster, image, "luks1")

    def check_refused(passphrase, *says):
        target = f"ceph:{image}:luks={passphrase}:conf={cluster.conf}"
        text = refused("serve", target, "--nbd", f"unix:{world.file('x.sock')}", says=says)
        check(PASSPHRASE not in text, "a passphrase is printed")

    check_refused(right, "refused", "there is no LUKS header")
    fieldstone("rbd", "--conf", cluster.conf, "encryption", "format", image, "luks1", right)
    check_refused(wrong, "refused", "no key slot opens with this passphrase", wrong)
    check_refused(world.file("missing"), "refused", "passphrase file", "No such file")
    # Without the option, the stored bytes are served, and the log says so.
    server = cluster.serve(image)
    handle = connect(server.uri())
    check(handle.get_size() == DATA + OFFSETS["luks1"], "the size of the stored bytes")
    check(bytes(handle.pread(6, 0)) == b"LUKS\xba\xbe", "the stored bytes")
    server.wait_until_logged("rep/refused", "LUKS header", "luks=")
    # The header of a clone that Ceph 17 formatted.
    handle.pwrite(b"RBDL", 0)
    handle.shutdown()
    server.stop()
    check_refused(right, "refused", "RBDL", "flatten")
    # Too small.
    cluster.rbd("create", "rep/small", "--size", "16M")
    refused(
        "rbd", "--conf", cluster.conf, "encryption", "format", "rep/small", "luks2", right,
        says=["rep/small", "16 MiB", "resize"],
    )
    # As a layer, of any store.
    header = world.file("header.img")
    header.write_bytes(b"x" * MIB)
    refused(
        "serve", f"file:{header}", "--nbd", f"unix:{world.file('x.sock')}", "--layer",
        f"luks:passphrase-file={right}", says=["header.img", "there is no LUKS header"],
    )


def resize(cluster):
    """The device grows with its image."""
    image, file = "rep/grown", passphrase_file(cluster.world)
    create(cluster, image, "luks1")
    fieldstone("rbd", "--conf", cluster.conf, "encryption", "format", image, "luks1", file)
    server = serve(cluster, image, file)
    handle = connect(server.uri())
    check(handle.get_size() == DATA, f"a size of {handle.get_size()}")
    check(error_of(handle.pread, 4096, DATA), "a read behind the end")
    handle.shutdown()
    server.stop()
    size = DATA + OFFSETS["luks1"] + 8 * MIB
    cluster.rbd("resize", "--no-progress", "--size", f"{size // MIB}M", image)
    server = serve(cluster, image, file)
    handle = connect(server.uri())
    check(handle.get_size() == DATA + 8 * MIB, f"a size of {handle.get_size()} after a resize")
    handle.pwrite(noise(MIB, 3), DATA + 7 * MIB)
    handle.shutdown()
    server.stop()
    found = librbd_reads(cluster, image, "luks1")
    same(noise(MIB, 3), found[DATA + 7 * MIB :], "the new space")


def scenario(world):
    need_ceph()
    need_libnbd()
    check(rbd is not None, "this Python has no module rbd (package python3-rbd)")
    cluster = Cluster(world)
    cluster.make_pool("rep")
    # librbd takes some seconds for each image that it formats or opens.
    steps = [(of_rbd, cluster, "luks1"), (of_ours, cluster, "luks2"), (refusals, cluster)]
    if world.case.code == "long":
        steps += [(of_rbd, cluster, "luks2"), (of_ours, cluster, "luks1"), (resize, cluster)]
    run_steps(*steps)


main(scenario, [Case("ceph", "memstore")], long=[Case("long", "memstore")])
