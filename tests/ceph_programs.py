#!/usr/bin/python3
"""Programs with librbd and we, on the same images: qemu-img and fio's rbd engine read what we
wrote, and we read what they wrote.

fio writes blocks with checksums of their own, in one run through us or librbd, and verifies them in
another run through the other client. qemu-img copies whole images.

    tests/ceph_programs.py --case long,memstore    # more pools and layouts
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, need_ceph, run_steps
from device import connect, need_libnbd, noise
from model import Model, read_all
from scenario import main
from world import MIB, Case, Skip, check, need, run

SIZE_MIB = 24

QUICK = [
    ("rep/default", ["--object-size", "1M"]),
    ("rep/coded", ["--data-pool", "jerasure", "--object-size", "1M"]),
]
LONG = [
    *QUICK,
    ("rep/layering", ["--image-feature", "layering"]),
    ("rep/striped", ["--object-size", "1M", "--stripe-unit", "64K", "--stripe-count", "4"]),
    ("rep/isa", ["--data-pool", "isa"]),
    ("rep/clay", ["--data-pool", "clay"]),
]
FIO = [
    "--name=t", "--size=8M", "--bs=4k", "--iodepth=16", "--randseed=11",
    "--verify=crc32c", "--verify_fatal=1",
]


def need_programs():
    need("fio", "qemu-img")
    engines = subprocess.run(["fio", "--enghelp"], capture_output=True, text=True, timeout=30)
    formats = subprocess.run(["qemu-img", "--help"], capture_output=True, text=True, timeout=30)
    missing = [name for name in ("rbd", "nbd") if name not in engines.stdout.split()]
    if missing:
        raise Skip(f"fio has no engine {missing[0]}")
    if "rbd" not in formats.stdout.split("Supported formats:")[-1].split():
        raise Skip("qemu-img does not know rbd")
    # The list has it without the package that brings it.
    probe = run("qemu-img", "info", "rbd:no/image:conf=/nowhere", ok=(1,))
    if "nknown protocol" in probe.stderr:
        raise Skip("qemu-img has no driver for rbd (package qemu-block-extra)")


def fio(cluster, *words):
    result = run(
        "fio", *FIO, *words, f"--aux-path={cluster.world.folder}", env=cluster.environment,
        seconds=300,
    )
    text = result.stdout + result.stderr
    check("err= 0" in text and "verify:" not in text, text)


def through_librbd(image):
    pool, name = image.split("/")
    return ["--ioengine=rbd", "--clientname=admin", f"--pool={pool}", f"--rbdname={name}"]


def qemu_name(cluster, image):
    return f"rbd:{image}:id=admin:conf={cluster.conf}"


def checksums(cluster, image, options):
    """Each client verifies the blocks that the other one wrote."""
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", *options)
    write, verify = ["--rw=randwrite", "--do_verify=0"], ["--rw=randwrite", "--verify_only=1"]
    server = cluster.serve(image)
    through_us = ["--ioengine=nbd", f"--uri={server.uri(image.split('/')[1])}"]
    fio(cluster, *through_us, *write)
    # librbd reads without the lock, which the server keeps.
    fio(cluster, *through_librbd(image), *verify)
    # Other bytes at the same places, now by librbd, while the server has the image open.
    again = ["--verify=md5", "--bs=8k"]
    fio(cluster, *through_librbd(image), *write, *again)
    fio(cluster, *through_us, *verify, *again)
    server.stop()
    if "layering" not in options:
        cluster.check_object_map(image)


def copies(cluster, image, options):
    """qemu-img reads what we wrote, and we read what qemu-img wrote."""
    world, image = cluster.world, f"{image}-copy"
    name = image.split("/")[1]
    cluster.rbd("create", image, "--size", f"{SIZE_MIB}M", *options)
    server = cluster.serve(image)
    model = Model(SIZE_MIB * MIB, seed=name)
    model.work(server.uri(name), 80)
    server.stop()
    file = world.file("copy.raw")
    qemu_img = ("qemu-img", "convert", "-f", "raw", "-O", "raw")
    run(*qemu_img, qemu_name(cluster, image), file, env=cluster.environment, seconds=120)
    check(file.read_bytes() == bytes(model.data), f"{image}: what qemu-img reads")

    # With a hole, and with bytes over the old ones.
    data = noise(9 * MIB, 6) + bytes(6 * MIB) + noise(9 * MIB, 7)
    file.write_bytes(data)
    words = ["-n", file, qemu_name(cluster, image)]
    run(*qemu_img, *words, env=cluster.environment, seconds=120)
    server = cluster.serve(image)
    handle = connect(server.uri(name))
    check(read_all(handle) == data, f"{image}: what qemu-img wrote")
    handle.shutdown()
    server.stop()
    if "layering" not in options:
        cluster.check_object_map(image)


def scenario(world):
    need_ceph()
    need_libnbd()
    need_programs()
    long = world.case.code == "long"
    cluster = Cluster(world)
    cluster.make_pool("rep")
    for code in ("jerasure", "isa", "clay") if long else ("jerasure",):
        cluster.make_pool(code, code, 8)
    images = LONG if long else QUICK
    run_steps(
        *((step, cluster, *image) for step in (checksums, copies) for image in images)
    )


main(scenario, [Case("ceph", "memstore")], long=[Case("long", "memstore")])
