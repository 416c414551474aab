#!/usr/bin/python3
"""`fieldstone rados` and Ceph's own `rados`: each reads what the other wrote.

In a replicated pool: data, sizes, times, attributes, maps, namespaces, watches and notifications.
In an erasure-coded pool: data, sizes and attributes; maps are refused there.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from ceph import Cluster, need_ceph, rados, run_steps
from device import noise
from scenario import main
from world import FIELDSTONE, MIB, Case, Process, check, fieldstone, refused, wait_until

# Empty, not a multiple of anything, many stripes of an erasure code.
SIZES = [0, 70_001, 3 * MIB + 5]


class Both:
    """The two clients on one pool."""

    def __init__(self, world, cluster, pool):
        self.world, self.cluster, self.pool = world, cluster, pool

    def ours(self, verb, *words, **options):
        place = ["--conf", self.cluster.conf, "--pool", self.pool]
        return fieldstone("rados", verb, *place, *words, **options)

    def theirs(self, *words, **options):
        return self.cluster.rados("-p", self.pool, *words, **options)

    def refused(self, verb, *words, says):
        place = ["--conf", self.cluster.conf, "--pool", self.pool]
        return refused("rados", verb, *place, *words, says=says, seconds=30)


def data(both):
    """Written by one client, read by the other."""
    file, back = both.world.file("in"), both.world.file("out")
    for size in SIZES:
        for turn, (write, read) in enumerate(
            [(both.ours, both.theirs), (both.theirs, both.ours)]
        ):
            content, name = noise(size, size + turn), f"data.{size}.{turn}"
            file.write_bytes(content)
            write("put", name, file)
            read("get", name, back)
            check(back.read_bytes() == content, f"{name} in {both.pool} differs")
            # Both tell the size; the words differ.
            for tool in (both.ours, both.theirs):
                text = tool("stat", name).stdout
                check(str(size) in text, f"stat of {name} lacks its size: {text}")
    # A shorter object replaces a longer one.
    file.write_bytes(b"short")
    both.ours("put", f"data.{SIZES[-1]}.0", file)
    both.theirs("get", f"data.{SIZES[-1]}.0", back)
    check(back.read_bytes() == b"short", "put leaves a rest of the longer object")


def listing(both):
    """Both list the same objects; namespaces are apart."""
    names = set(both.theirs("ls").stdout.split())
    check(len(names) == 2 * len(SIZES), f"{len(names)} objects instead of {2 * len(SIZES)}")
    check(set(both.ours("ls").stdout.split()) == names, "ls differs")
    file = both.world.file("in")
    both.ours("put", "-N", "apart", "inside", file)
    check(both.theirs("-N", "apart", "ls").stdout.split() == ["inside"], "namespace: ls differs")
    check("inside" not in both.theirs("ls").stdout.split(), "an object is in the wrong namespace")
    check(both.ours("ls", "-N", "apart").stdout.split() == ["inside"], "ls of a namespace")
    check("inside" in both.ours("ls", "--all").stdout, "ls --all lacks a namespace")
    both.theirs("-N", "apart", "rm", "inside")
    check(both.ours("ls", "-N", "apart").stdout == "", "a removed object is listed")


def attributes(both):
    name = f"data.{SIZES[1]}.0"
    both.ours("setxattr", name, "colour", "blue")
    check(both.theirs("getxattr", name, "colour").stdout.strip() == "blue", "getxattr differs")
    both.theirs("setxattr", name, "shape", "round")
    check(both.ours("getxattr", name, "shape").stdout.strip() == "round", "getxattr differs")
    for tool in (both.ours, both.theirs):
        found = tool("listxattr", name).stdout.split()
        check(found == ["colour", "shape"], f"listxattr gives {found}")
    both.ours("rmxattr", name, "colour")
    check(both.theirs("listxattr", name).stdout.split() == ["shape"], "rmxattr has no effect")
    both.refused("getxattr", name, "colour", says=[name, "attribute"])


def maps(both):
    """Keys and values of an object's map, more than one answer has room for."""
    name = "mapped"
    both.ours("create", name)
    both.ours("setomapval", name, "first", "one")
    both.theirs("setomapval", name, "second", "two")
    check("one" in both.theirs("getomapval", name, "first").stdout, "getomapval differs")
    check(both.ours("getomapval", name, "second").stdout.strip() == "two", "getomapval differs")
    for tool in (both.ours, both.theirs):
        keys = tool("listomapkeys", name).stdout.split()
        check(keys == ["first", "second"], f"listomapkeys gives {keys}")
        check("two" in tool("listomapvals", name).stdout, "listomapvals lacks a value")
    both.theirs("rmomapkey", name, "first")
    check(both.ours("listomapkeys", name).stdout.split() == ["second"], "rmomapkey has no effect")
    both.ours("rmomapkey", name, "second")
    check(both.theirs("listomapkeys", name).stdout == "", "rmomapkey has no effect")
    # More keys than an OSD gives at once.
    with both.cluster.handle.open_ioctx(both.pool) as pool:
        keys = [f"key.{number:05}" for number in range(2500)]
        with rados.WriteOpCtx() as change:
            pool.set_omap(change, tuple(keys), tuple(b"v" for _ in keys))
            pool.operate_write_op(change, name)
    check(both.ours("listomapkeys", name).stdout.split() == keys, "2,500 keys: the list differs")


def watches(both):
    """Notifications in both directions, and the list of watchers."""
    name = "watched"
    both.ours("create", name)
    place = ["--conf", both.cluster.conf, "--pool", both.pool]
    ours = Process(
        both.world, "watch", [FIELDSTONE, "rados", "watch", *place, "--count", "2", name]
    )
    wait_until(
        "the watch is there", lambda: "watcher" in both.theirs("listwatchers", name).stdout, 30
    )
    check("127.0.0.1" in both.ours("listwatchers", name).stdout, "listwatchers shows nobody")
    both.theirs("notify", name, "from theirs")
    both.ours("notify", name, "from ours")
    wait_until("the watch ends", lambda: not ours.is_running(), 30)
    check(ours.process.returncode == 0, f"watch ended with {ours.process.returncode}")
    for text in ("from theirs", "from ours"):
        check(text in ours.output(), f"watch has not shown {text!r}: {ours.output()}")
    wait_until(
        "the watch is gone", lambda: "watcher" not in both.theirs("listwatchers", name).stdout, 40
    )
    # librados watches, and acknowledges what we send.
    heard = []
    with both.cluster.handle.open_ioctx(both.pool) as pool:
        watch = pool.watch(name, lambda *words: heard.append(words))
        both.ours("notify", name, "to librados")
        watch.close()
    check(any(b"to librados" in words for words in heard), f"librados has heard {heard}")


def no_maps(both):
    both.refused("setomapval", "x", "key", "value", says=["x"])


def removal(both):
    names = both.theirs("ls").stdout.split()
    both.ours("rm", *names)
    check(both.theirs("ls").stdout == "", "rm leaves objects")
    both.refused("rm", "nothere", says=["nothere"])
    both.refused("stat", "nothere", says=["nothere"])
    both.refused("get", "nothere", both.world.file("out"), says=["nothere"])


def changes(both):
    """Append, truncate, create."""
    file, back = both.world.file("in"), both.world.file("out")
    file.write_bytes(b"abc")
    both.ours("put", "grown", file)
    both.ours("append", "grown", file)
    both.theirs("append", "grown", file)
    both.ours("get", "grown", back)
    check(back.read_bytes() == b"abcabcabc", f"append gives {back.read_bytes()}")
    both.ours("truncate", "grown", "4")
    both.theirs("get", "grown", back)
    check(back.read_bytes() == b"abca", f"truncate gives {back.read_bytes()}")
    both.ours("truncate", "grown", "8")
    both.theirs("get", "grown", back)
    check(back.read_bytes() == b"abca\0\0\0\0", f"truncate gives {back.read_bytes()}")
    both.ours("create", "empty")
    check("size 0" in both.theirs("stat", "empty").stdout, "create makes no empty object")
    both.refused("create", "empty", says=["empty"])
    both.theirs("rm", "grown", "empty")


def scenario(world):
    need_ceph()
    cluster = Cluster(world)
    cluster.make_pool("rep")
    cluster.make_pool("ec", "jerasure")
    pools = fieldstone("rados", "lspools", "--conf", cluster.conf).stdout.split()
    check({"rep", "ec"} <= set(pools), f"lspools gives {pools}")
    refused("rados", "ls", "--conf", cluster.conf, "-p", "none", says=["none", "rep"], seconds=30)
    for pool in ("rep", "ec"):
        both = Both(world, cluster, pool)
        steps = [data, listing, attributes]
        steps += [changes, maps, watches] if pool == "rep" else [no_maps]
        run_steps(*((step, both) for step in [*steps, removal]))


main(scenario, [Case("ceph", "memstore")])
