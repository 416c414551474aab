#!/usr/bin/python3
"""libec_fieldstone.so inside unmodified daemons of Ceph.

interface: the library beside Ceph's own plug-ins, called as an OSD calls them, without a cluster.
pools, all: pools of our techniques lose an OSD for good, recover, and then lose another one.
mixed: the same for pools of jerasure, isa and clay, while every other OSD has our library in the
place of Ceph's: what one half writes, the other half reads, scrubs and repairs.

`make ceph-plugin-harness` builds what the cases need.
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import ceph
from ceph import HEALTHY_SECONDS, Cluster, need_ceph
from device import noise
from scenario import main
from world import MIB, TARGET, Case, Failure, Skip, check, wait_until

BUILT = TARGET / "ceph-plugin"
OSDS = 5
IMAGE_MIB = 4
OBJECTS = 12
COMPARE_SECONDS = 400

# The monitor tests a new rule in another process, for 5 seconds at most, too few on a busy machine.
QUIET_MONITOR = "mon_osd_crush_smoke_test = false"

OWN = {
    "reed-sol": ["plugin=fieldstone", "technique=reed_sol_van", "k=2", "m=2"],
    "zigzag": ["plugin=fieldstone", "technique=zigzag", "k=2", "m=2"],
    "cauchy": ["plugin=fieldstone", "technique=cauchy", "k=2", "m=2"],
    "clay4": ["plugin=fieldstone", "technique=clay", "k=2", "m=2"],
}
# What the monitor answers to a profile that is none.
REFUSED = {
    "technique=raid5": "technique=raid5 is none of",
    "elemnts=8": "has no key elemnts",
    "k=30": "this release of Ceph can place at most",
    "stripe_unit=5000": "stripe_unit",
}


def plugins_of_ceph():
    """The folder of Ceph's own plug-ins."""
    found = sorted(pathlib.Path("/usr").glob("lib*/**/ceph/erasure-code/libec_jerasure.so"))
    if not found:
        raise Skip("Ceph has no plug-ins here")
    return found[0].parent


def need_plugin():
    need_ceph()
    for name in ("libec_fieldstone.so", "compare"):
        if not (BUILT / name).exists():
            raise Skip(f"{BUILT / name} is missing: run `make ceph-plugin-harness`")


def folders(world, in_place):
    """A folder of plug-ins for each daemon: `erasure_code_dir` with Ceph's $name in it. Ours is in
    all of them; where `in_place` says so, also under the names of Ceph's."""
    ours = BUILT / "libec_fieldstone.so"
    for daemon in ("mon.a", "mgr.x", "client.admin", *(f"osd.{osd}" for osd in range(OSDS))):
        folder = world.file(f"plugins.{daemon}")
        folder.mkdir()
        for plugin in plugins_of_ceph().glob("libec_*.so"):
            (folder / plugin.name).symlink_to(plugin)
        (folder / ours.name).symlink_to(ours)
        if in_place(daemon):
            for name in ("jerasure", "isa", "clay"):
                path = folder / f"libec_{name}.so"
                path.unlink()
                # A file of its own: the loader knows a file by its number.
                path.write_bytes(ours.read_bytes())
    return f"erasure_code_dir = {world.file('plugins')}.$name"


def loaded(cluster, osd):
    """The plug-ins in the memory of an OSD."""
    maps = pathlib.Path(f"/proc/{cluster.osds[osd].pid}/maps").read_text().split()
    return {pathlib.Path(word) for word in maps if "libec_" in word}


class Pool:
    """A pool with an image and objects, and what they must hold."""

    def __init__(self, cluster, name, profile):
        self.cluster, self.name = cluster, name
        ceph.ERASURE_PROFILES[name] = profile
        cluster.make_pool(name, name, 4)
        # Without overwrites, the OSD keeps a checksum of each chunk, and scrubs compare it.
        self.objects = f"{name}-objects"
        cluster.command(
            "osd pool create", pool=self.objects, pg_num=4, pgp_num=4, pool_type="erasure",
            erasure_code_profile=name,
        )
        cluster.command("osd pool application enable", pool=self.objects, app="test")
        self.image = f"rep/{name}"

    def write(self):
        source = self.cluster.world.file("source")
        data = noise(IMAGE_MIB * MIB - 4096, 7) + bytes(4096)
        source.write_bytes(data)
        self.cluster.rbd("import", "--no-progress", "--data-pool", self.name, source, self.image)
        check(self.cluster.export(self.image) == data, f"{self.image}: other bytes than imported")
        self.cluster.rbd(
            "bench", "--io-type", "write", "--io-pattern", "rand", "--io-size", "4K",
            "--io-threads", "4", "--io-total", "1M", self.image,
        )
        self.data = self.cluster.export(self.image)
        check(self.data != data, f"{self.image}: nothing was overwritten")
        # Lengths around those of chunks and stripes.
        self.content = {
            f"object{at}": noise(1 + at * 4096 * 7 + (at % 3 - 1) * at, at) for at in range(OBJECTS)
        }
        with self.cluster.handle.open_ioctx(self.objects) as pool:
            for name, content in self.content.items():
                pool.write_full(name, content)

    def check(self, when):
        check(self.cluster.export(self.image) == self.data, f"{self.image} {when}: other bytes")
        with self.cluster.handle.open_ioctx(self.objects) as pool:
            for name, content in self.content.items():
                found = pool.read(name, len(content) + 1)
                check(found == content, f"{self.objects}/{name} {when}: other bytes")


def scrub(cluster):
    """Deep scrubs of all placement groups, which must find nothing."""
    groups = cluster.command("pg dump", True, dumpcontents=["pgs"])["pg_stats"]
    before = {group["pgid"]: group["last_deep_scrub_stamp"] for group in groups}
    for group in before:
        cluster.command("pg deep-scrub", True, pgid=group)

    def look():
        groups = cluster.command("pg dump", True, dumpcontents=["pgs"])["pg_stats"]
        bad = [group["pgid"] for group in groups if "inconsistent" in group["state"]]
        check(not bad, f"a deep scrub finds damage in {bad}")
        late = [
            group["pgid"] for group in groups
            if group["last_deep_scrub_stamp"] == before[group["pgid"]]
        ]
        # A group that is busy drops the request.
        for group in late:
            cluster.command("pg deep-scrub", True, pgid=group)
        return not late

    wait_until("all placement groups are scrubbed", look, HEALTHY_SECONDS, 2)


def lose_osds(cluster, pools):
    """One OSD is lost for good and its chunks are restored elsewhere; then one more is lost."""
    for pool in pools:
        pool.write()
    scrub(cluster)
    cluster.kill_osd(0)
    for pool in pools:
        pool.check("while an OSD is down")
    cluster.command("osd out", ids=["0"])
    cluster.count -= 1
    cluster.wait_until_clean()
    for pool in pools:
        pool.check("after the recovery")
    scrub(cluster)
    # Now there are chunks that were restored, and reading needs them.
    cluster.kill_osd(1)
    for pool in pools:
        pool.check("after the loss of a second OSD")
        with cluster.handle.open_ioctx(pool.objects) as handle:
            handle.write_full("object0", b"written while two OSDs are lost")
            check(handle.read("object0") == b"written while two OSDs are lost", "a late write")


def interface(world):
    need_plugin()
    result = subprocess.run(
        [BUILT / "compare", plugins_of_ceph(), BUILT / "own"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=COMPARE_SECONDS,
    )
    last = result.stdout.splitlines()[-1:] or [""]
    check(
        result.returncode == 0 and last[0].endswith("no difference"),
        f"exit code {result.returncode}: {result.stdout[-500:]} {result.stderr[-1000:]}",
    )
    print(last[0])


def own_pools(world):
    need_plugin()
    more = [QUIET_MONITOR, folders(world, lambda daemon: False)]
    cluster = Cluster(world, osds=OSDS, more=more)
    cluster.make_pool("rep", groups=4)
    for wrong, says in REFUSED.items():
        profile = ["plugin=fieldstone", wrong]
        try:
            cluster.command("osd erasure-code-profile set", name="wrong", profile=profile)
        except Failure as failure:
            check(says in str(failure), f"{wrong}: {failure}")
        else:
            raise Failure(f"the monitor accepts {wrong}")
    # A rule must serve pools of all widths that the plug-in accepts.
    profile = ["plugin=fieldstone", "k=17", "m=3", "crush-failure-domain=osd"]
    cluster.command("osd erasure-code-profile set", name="wide", profile=profile)
    cluster.command("osd crush rule create-erasure", name="wide", profile="wide")
    most = cluster.command("osd crush rule dump", name="wide").get("max_size", 20)
    check(most >= 20, f"the rule serves pools of at most {most} chunks")
    names = list(OWN)[: None if world.case.code == "all" else 2]
    pools = [Pool(cluster, name, OWN[name]) for name in names]
    cluster.wait_until_clean()
    stored = cluster.command("osd erasure-code-profile get", name="zigzag")
    check(stored["elements"] == "2" and stored["k"] == "2", f"the stored profile: {stored}")
    for osd in range(OSDS):
        names = {path.name for path in loaded(cluster, osd)}
        check("libec_fieldstone.so" in names, f"osd.{osd} has {names}")
    lose_osds(cluster, pools)


def mixed(world):
    need_plugin()
    in_place = {f"osd.{osd}" for osd in range(0, OSDS, 2)}
    more = [QUIET_MONITOR, folders(world, lambda daemon: daemon in in_place)]
    cluster = Cluster(world, osds=OSDS, more=more)
    cluster.make_pool("rep", groups=4)
    pools = [Pool(cluster, name, ceph.ERASURE_PROFILES[name]) for name in ("jerasure", "isa", "clay")]
    cluster.wait_until_clean()
    for osd in range(OSDS):
        ours = f"osd.{osd}" in in_place
        for path in loaded(cluster, osd):
            if path.name in ("libec_jerasure.so", "libec_isa.so", "libec_clay.so"):
                own = str(world.folder) in str(path)
                check(own == ours, f"osd.{osd} has {path}")
    lose_osds(cluster, pools)


CASES = {"interface": interface, "pools": own_pools, "all": own_pools, "mixed": mixed}


def scenario(world):
    CASES[world.case.code](world)


main(
    scenario,
    [Case("interface", "process")],
    long=[Case("pools", "memstore"), Case("all", "memstore"), Case("mixed", "memstore")],
)
