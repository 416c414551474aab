"""The world of one scenario case: a temporary folder, a pool in it, and the processes on it.

    with World("rebuild", Case("rs:4+2", "inside")) as world:
        pool = world.pool()
        pool.create_volume("v", "64M")
        server = pool.serve("v")
        ... server.uri("v") ...

Rules that hold for every scenario:
- everything lives in a fresh temporary folder and is gone afterwards;
- every process started here is ended here, and every wait has a time limit;
- a process of ours that panics fails the case, whatever else happened;
- when a case fails, logs, the pool's status and a listing of its files are kept under
  target/evidence/SCENARIO/CASE.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from pulse import Deadline

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def newest_build():
    """The command as the tests or `make build` have built it, whichever was later."""
    builds = [TARGET / profile / "fieldstone" for profile in ("debug", "release")]
    return str(max(builds, key=lambda path: path.stat().st_mtime if path.exists() else 0))


FIELDSTONE = os.path.abspath(os.environ.get("FIELDSTONE") or newest_build())
EVIDENCE = ROOT / "target" / "evidence"

# Tools are Debian's: a python3 or nbdsh that some version manager put in front is another one.
ENVIRONMENT = dict(os.environ, LC_ALL="C", PATH="/usr/sbin:/usr/bin:/sbin:/bin:" + os.environ["PATH"])

START_SECONDS = 60
COMMAND_SECONDS = 120
# How long a log line may take from the core that logs to the file.
LOG_SECONDS = 10
MIB = 1 << 20
# A server of a few small volumes that wants more than this has a leak; it is told so by the kernel
# before the machine suffers.
ADDRESS_SPACE_MAX = 4 << 30
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class Skip(Exception):
    """The case cannot run here; the text says why."""


class Failure(Exception):
    """Something that must hold does not."""


def check(truth, what):
    """Fails the case with `what` unless `truth`."""
    if not truth:
        raise Failure(what)


def need(*tools):
    """Skips the case unless all `tools` are installed."""
    for tool in tools:
        if shutil.which(tool, path=ENVIRONMENT["PATH"]) is None:
            raise Skip(f"{tool} is not installed")


def wait_until(what, look, seconds=60, step=0.1):
    """Calls `look` until it gives something true, and returns that."""
    deadline = Deadline(seconds)
    while True:
        found = look()
        if found:
            return found
        check(not deadline.has_passed(), f"waited {seconds} s in vain until {what}")
        time.sleep(step)


def run(*command, seconds=COMMAND_SECONDS, ok=(0,), stdin=None, env=None):
    """Runs a command to its end; returns its result. An exit code outside `ok` is a failure."""
    command = [str(part) for part in command]
    try:
        result = subprocess.run(
            command,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=seconds,
            env=env or ENVIRONMENT,
        )
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{' '.join(command)}: no end after {seconds} s") from late
    if ok is not None and result.returncode not in ok:
        raise Failure(
            f"{' '.join(command)}: exit code {result.returncode}\n{result.stdout}{result.stderr}"
        )
    check("panicked at" not in result.stderr, f"{' '.join(command)} panicked:\n{result.stderr}")
    return result


def fieldstone(*arguments, **options):
    """Runs our command."""
    return run(FIELDSTONE, *arguments, **options)


def refused(*arguments, says, seconds=COMMAND_SECONDS):
    """Our command must end with exit code 1 and a message that names all of `says`."""
    result = fieldstone(*arguments, ok=(1,), seconds=seconds)
    for word in says:
        check(str(word) in result.stderr, f"the error does not name {word!r}:\n{result.stderr}")
    return result.stderr


def _limit(open_files, die_with_parent, address_space):
    if die_with_parent:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    if open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))


class Case:
    """A protection code, and where the nodes run: "inside" the server, or as "processes"."""

    def __init__(self, code, nodes):
        self.code, self.nodes = code, nodes

    @classmethod
    def parse(cls, text):
        return cls(*text.split(","))

    def __str__(self):
        return f"{self.code},{self.nodes}"

    @property
    def copies(self):
        """How many copies the code makes; 0 for a code with parity."""
        name, _, count = self.code.partition(":")
        return int(count) if name == "copies" else 0

    @property
    def tolerance(self):
        """How many nodes may be lost."""
        return self.copies - 1 if self.copies else 2

    @property
    def node_count(self):
        return self.copies + 1 if self.copies else 6

    @property
    def has_spare_nodes(self):
        """The pool has more nodes than a segment has shards."""
        return self.copies > 0

    @property
    def overhead(self):
        """Raw bytes per byte of data."""
        return float(self.copies or 1.5)


# Which cases of a script `make test` runs. `tests/run --all` also runs the others (`more`):
# - If neither the code nor the place of the nodes matters to what the script shows, one case.
# - If one of the two matters, a case for each code, or for each place.
# - If both matter, two cases, in which each code and each place occurs: COPIES_INSIDE, or
#   COPIES_APART in other scripts. So each pair of a code and a place occurs in several scripts.
# - If the script has steps for certain codes or places only, cases in which each step occurs.
ONE_CASE = [Case("rs:4+2", "inside")]
EVERY_CODE = [Case("copies:3", "inside"), Case("rs:4+2", "inside")]
EVERY_PLACE = [Case("rs:4+2", "inside"), Case("rs:4+2", "processes")]
COPIES_INSIDE = [Case("copies:3", "inside"), Case("rs:4+2", "processes")]
COPIES_APART = [Case("copies:3", "processes"), Case("rs:4+2", "inside")]
EVERY_CASE = COPIES_INSIDE + COPIES_APART


class Process:
    """A process of ours that runs beside the scenario; its output goes to files."""

    def __init__(self, world, name, command, address_space=ADDRESS_SPACE_MAX, folder=None):
        self.name = name
        self.command = [str(part) for part in command]
        world.starts += 1
        stem = f"{world.starts:03}.{name}"
        self.out, self.err = (world.folder / "log" / f"{stem}.{end}" for end in ("out", "err"))
        with open(self.out, "w") as out, open(self.err, "w") as err:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=ENVIRONMENT,
                cwd=folder,
                preexec_fn=lambda: _limit(world.open_files, world.die_with_parent, address_space),
            )
        world.processes.append(self)

    @property
    def pid(self):
        return self.process.pid

    def output(self):
        return self.out.read_text(errors="replace")

    def errors(self):
        return self.err.read_text(errors="replace")

    def wait_until_logged(self, *words, seconds=LOG_SECONDS):
        """Waits until each of the words stands in its log. A thread of its own writes the log, so a
        line may come some time after what it tells of."""
        deadline = Deadline(seconds)
        while True:
            ended = not self.is_running()
            log = self.errors()
            missing = [word for word in words if word not in log]
            if not missing:
                return
            late = ended or deadline.has_passed()
            check(not late, f"the log of {self.name} does not say {missing}:\n{log}")
            time.sleep(0.02)

    def is_running(self):
        return self.process.poll() is None

    def wait_for_output(self, text, times=1, seconds=START_SECONDS):
        """Waits until `text` stands in its output that many times."""

        def look():
            if self.output().count(text) >= times:
                return True
            check(
                self.is_running(),
                f"{self.name} ended with {self.process.returncode}:\n{self.errors()}",
            )
            return False

        wait_until(f"{self.name} says {text!r}", look, seconds, 0.02)

    def stop(self, seconds=60):
        """Asks it to end, and expects that it does so properly."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired as late:
            raise Failure(f"{self.name} ignores SIGTERM for {seconds} s:\n{self.errors()}") from late
        check(code == 0, f"{self.name} ended with {code}:\n{self.errors()}")

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def pause(self):
        """Stalls it, until `go_on`."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def cpu_seconds(self):
        """User and system time so far."""
        text = pathlib.Path(f"/proc/{self.pid}/stat").read_text()
        fields = text.rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server(Process):
    """`fieldstone serve`."""

    def __init__(self, pool, targets, options=(), wait=True, name="serve"):
        world = pool.world
        self.pool = pool
        world.sockets += 1
        self.socket = world.folder / f"nbd{world.sockets}.sock"
        paths = [pool.path / target for target in targets]
        command = [FIELDSTONE, "serve", *paths, "--nbd", f"unix:{self.socket}", *options]
        super().__init__(world, name, command)
        self.targets = targets
        if wait:
            self.wait_for_output("serving ", times=len(targets))

    def uri(self, volume=""):
        return f"nbd+unix:///{volume}?socket={self.socket}"


class Pool:
    """A pool, and its node processes if it has any."""

    def __init__(self, world, path, case, node_size, nodes, node_options, options):
        self.world, self.path, self.case = world, path, case
        self.node_options = node_options
        self.nodes = {}
        fieldstone(
            "pool", "create", path, "--nodes", nodes, "--code", case.code, "--node-size", node_size,
            *options,
        )
        self.count = nodes
        if case.nodes == "processes":
            for index in range(nodes):
                self.start_node(index)

    def node_path(self, index):
        return self.path / f"node.{index}"

    def start_node(self, index):
        """Starts one node as a process, in another folder than servers, which find its socket all
        the same."""
        listen = ["--listen", f"unix:n{index}.sock"]
        node = Process(
            self.world,
            f"node{index}",
            [FIELDSTONE, "node", self.node_path(index), *listen, *self.node_options],
            folder=self.world.folder,
        )
        self.nodes[index] = node
        node.wait_for_output("listens on")
        return node

    def kill_nodes(self, indices=None):
        """kill -9 of node processes, if there are any."""
        for index in list(self.nodes) if indices is None else indices:
            if index in self.nodes:
                self.nodes.pop(index).kill()

    def stop_nodes(self):
        """Ends all node processes properly."""
        for index in list(self.nodes):
            self.nodes.pop(index).stop()

    def delete_node(self, index):
        """Deletes a node's folder; its process, if it is one, is killed first."""
        self.kill_nodes([index])
        shutil.rmtree(self.node_path(index), ignore_errors=True)
        check(not self.node_path(index).exists(), f"node.{index} is still there")

    def replace(self, *indices, options=()):
        """Makes empty nodes in place of those whose folders are gone."""
        nodes = [f"node.{index}" for index in indices]
        return fieldstone("pool", "replace", self.path, *nodes, *options)

    def start_missing_nodes(self):
        """Replaces nodes whose folders were deleted by empty ones, and starts the node processes
        that do not run, where nodes are processes."""
        gone = [index for index in range(self.count) if not self.node_path(index).exists()]
        if gone:
            self.replace(*gone)
        if self.case.nodes == "processes":
            for index in range(self.count):
                if index not in self.nodes:
                    self.start_node(index)

    def create_volume(self, name, size, options=()):
        fieldstone("volume", "create", self.path / name, "--size", size, *options)

    def serve(self, *volumes, options=(), wait=True, name="serve"):
        return Server(self, list(volumes), options, wait, name)

    def status(self):
        return json.loads(fieldstone("status", self.path, "--json").stdout)

    def volume_status(self, name):
        """What `status` says of one volume."""
        volumes = [found for found in self.status()["volumes"] if found["name"] == name]
        check(len(volumes) == 1, f"status does not show the volume {name}")
        return volumes[0]

    def wait_until_whole(self, *names, seconds=120):
        """Waits until no shard of the volumes is missing."""

        def look():
            status = {found["name"]: found for found in self.status()["volumes"]}
            return all(
                name in status
                and status[name]["phase"] == "serving"
                and status[name]["protection"] == "healthy"
                and not status[name]["rebuild"]["running"]
                and all(node["state"] == "up" for node in status[name]["nodes"])
                for name in names
            )

        wait_until("every shard is there again", look, seconds, 0.2)


class World(contextlib.AbstractContextManager):
    """The temporary folder and the processes of one case."""

    def __init__(self, scenario, case, evidence=None):
        self.scenario, self.case = scenario, case
        # Where evidence is kept, below the scenario's folder.
        self.evidence = EVIDENCE / scenario / (evidence or str(case))
        self.processes, self.pools = [], []
        # What is called when all processes have ended, before the folder is removed.
        self.closers = []
        # Kills processes when the thread that started them ends.
        self.die_with_parent = False
        self.starts = self.sockets = 0
        # The limit on open files, soft and hard, of processes that are started from then on.
        self.open_files = None
        self.folder = None

    def __enter__(self):
        if not os.access(FIELDSTONE, os.X_OK):
            raise Failure(f"{FIELDSTONE} is not there; run `make build` first")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="fs."))
        (self.folder / "log").mkdir()
        return self

    def pool(
        self, node_size="512M", name="pool", case=None, nodes=None, node_options=(), options=()
    ):
        """Makes a pool with `options`, and starts its node processes, with `node_options`, if the case
        wants them."""
        case = case or self.case
        nodes = nodes or case.node_count
        pool = Pool(self, self.folder / name, case, node_size, nodes, node_options, options)
        self.pools.append(pool)
        return pool

    def file(self, name):
        """A path for a file of the scenario's own."""
        return self.folder / name

    def __exit__(self, kind, error, trace):
        panics = [p for p in self.processes if "panicked at" in p.errors()]
        failed = kind is not None and not issubclass(kind, Skip)
        if failed or panics:
            self._keep_evidence()
        for process in self.processes:
            if process.is_running():
                process.kill()
        for close in self.closers:
            close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if panics and not failed:
            raise Failure(f"{panics[0].name} panicked:\n{panics[0].errors()}")
        return False

    def _keep_evidence(self):
        place = self.evidence
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "log", place)
        for extra in self.folder.glob("*.log"):
            shutil.copy(extra, place)
        for pool in self.pools:
            for name, command in [
                (f"{pool.path.name}.status", [FIELDSTONE, "status", pool.path]),
                (f"{pool.path.name}.status.json", [FIELDSTONE, "status", pool.path, "--json"]),
                (f"{pool.path.name}.files", ["ls", "-lRs", pool.path]),
            ]:
                with open(place / name, "w") as out, contextlib.suppress(Exception):
                    subprocess.run(
                        command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=30
                    )
        print(f"evidence: {place}")
