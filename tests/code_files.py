#!/usr/bin/python3
"""Files as shards: pipes, bounded memory, crashes, lost and damaged shards, untrusted shard
folders, and refusals.
"""

import json
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from scenario import main
from world import (
    ENVIRONMENT,
    FIELDSTONE,
    MIB,
    Case,
    check,
    fieldstone,
    refused,
    run,
    wait_until,
)

# Shards that a repair reads from for one of the first, and how much of each.
PLANS = {"rs:4+2": (4, 1.0), "zigzag:4+2": (5, 0.5), "clay:4+2": (5, 0.5)}
CASES = [Case(code, "files") for code in PLANS]
MEMORY_MAX = 48 * MIB
BIG = 200 * MIB + 12_345


def noise_file(path, size):
    """A file of random bytes. Python does not hold them: its memory would count as its child's."""
    run("sh", "-c", f"head -c {size} /dev/urandom > {path}")
    return path


def same(one, two):
    return run("cmp", one, two, ok=None).returncode == 0


def code(command, *arguments, **options):
    """`fieldstone code … --json`, parsed."""
    return json.loads(fieldstone("code", command, *arguments, "--json", **options).stdout)


def measured(command, stdin=None, stdout=None):
    """Runs a command; the most memory it had, in bytes."""
    with open(stdin or os.devnull, "rb") as source, open(stdout or os.devnull, "wb") as sink:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=source,
            stdout=sink,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        errors = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    check(process.returncode == 0, f"{command}: exit code {process.returncode}\n{errors}")
    return usage.ru_maxrss * 1024


def pipes_and_memory(world):
    """Through pipes and back, in memory that does not depend on the length."""
    big, shards, out = noise_file(world.file("big"), BIG), world.file("piped"), world.file("out")
    # A pipe, not a redirection, so that nothing is known of the length and reads are short.
    encode = f"cat {big} | {FIELDSTONE} code encode - --code {world.case.code} --out {shards} -j 2"
    used = measured(["sh", "-c", encode])
    check(used < MEMORY_MAX, f"encoding {BIG} bytes takes {used} bytes of memory")
    used = measured([FIELDSTONE, "code", "decode", shards, "--out", "-", "-j", "2"], stdout=out)
    check(used < MEMORY_MAX, f"decoding takes {used} bytes of memory")
    check(same(big, out), "other bytes come out of stdout than went into stdin")
    (shards / "shard.0").unlink()
    (shards / "shard.4").unlink()
    used = measured([FIELDSTONE, "code", "decode", shards, "--out", "-", "-j", "2"], stdout=out)
    check(used < MEMORY_MAX, f"decoding without two shards takes {used} bytes of memory")
    check(same(big, out), "other bytes come out without two shards")
    head = run("sh", "-c", f"{FIELDSTONE} code decode {shards} --out - | head -c 1000 | wc -c")
    check(head.stdout.split() == ["1000"] and not head.stderr, f"{head.stdout}{head.stderr}")
    for found in (shards / "manifest.json", out):
        found.unlink()
    used = measured([FIELDSTONE, "code", "repair", shards, "-j", "2"])
    check(used < MEMORY_MAX, f"repairing takes {used} bytes of memory")
    fieldstone("code", "verify", shards)
    shutil.rmtree(shards)
    return big


def repair_bytes(world, big):
    """A repair reads what its plan names: by its own count, and by the system's."""
    shards = world.file("plan")
    encoded = code("encode", big, "--code", world.case.code, "--out", shards)
    shard = shards / "shard.1"
    original = world.file("original")
    shard.rename(original)
    script = f"{FIELDSTONE} code repair {shards} --json && cat /proc/$$/io"
    lines = run("sh", "-c", script).stdout.splitlines()
    repaired = json.loads(lines[0])
    system = {key: int(value) for key, value in (line.split(": ") for line in lines[1:])}
    check(same(shard, original), "the new shard is not as the old one was")
    helpers, part = PLANS[world.case.code]
    # Units only: a shard without its header and checksums.
    checksums = encoded["stripes"] * (8 if "rs" in world.case.code else 36)
    units = encoded["shard_file_bytes"] - 512 - checksums
    check(repaired["read_bytes"] == units * helpers * part, f"{repaired}, units {units}")
    check(repaired["reed_solomon_bytes"] == units * 4, f"{repaired}, units {units}")
    check(repaired["rebuilt_shards"] == [1] and not repaired["read_everything"], str(repaired))
    # What the process and the shell need to start is less than 1 MiB.
    extra = system["rchar"] - repaired["read_bytes"] - repaired["read_checksum_bytes"]
    check(0 <= extra < MIB, f"the system counts {system['rchar']} bytes read: {repaired}")
    shutil.rmtree(shards)


def crashes(world, big):
    """kill -9 at any moment leaves the whole, or nothing that looks like it."""
    rng, shards, out = random.Random(4), world.file("killed"), world.file("out")
    began = time.monotonic()
    fieldstone("code", "encode", big, "--code", world.case.code, "--out", shards)
    took = time.monotonic() - began
    shutil.rmtree(shards)
    whole = partial = 0
    for round in range(12):
        process = subprocess.Popen(
            [FIELDSTONE, "code", "encode", str(big), "--code", world.case.code, "--out", str(shards)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )
        wait_until("shards are written", lambda: shards.exists() or process.poll() is not None, 30, 0.001)
        time.sleep(rng.uniform(0, took))
        process.kill()
        process.wait()
        names = sorted(path.name for path in shards.iterdir())
        if any(not name.endswith(".part") for name in names):
            # The first name appears when everything is on the disk; what still lacks its own is read.
            fieldstone("code", "decode", shards, "--out", out)
            fieldstone("code", "repair", shards)
            check(not list(shards.glob("*.part")), f"leftovers of {names}")
            check(same(big, out), f"a killed encode decodes to other bytes: {names}")
            out.unlink()
            shutil.rmtree(shards)
            whole += 1
            continue
        for command in (["info"], ["verify"], ["repair"], ["decode", "--out", out]):
            says = [str(shards), "interrupted" if names else "neither"]
            refused("code", command[0], shards, *command[1:], says=says)
        check(not out.exists(), "a file was made of half an encoding")
        partial += 1
    check(partial > 0, f"no encode was killed in time: {whole} were whole")
    # What is left over is not in the way of the next.
    fieldstone("code", "encode", big, "--code", world.case.code, "--out", shards)
    killed_repairs(shards, rng)
    shutil.rmtree(shards)


def killed_repairs(shards, rng):
    """A shard is there and whole after a repair was killed, or not there at all."""
    lost = shards / "shard.2"
    original = lost.rename(shards / "original")
    began = time.monotonic()
    fieldstone("code", "repair", shards)
    took = time.monotonic() - began
    lost.unlink()
    for _ in range(6):
        process = subprocess.Popen(
            [FIELDSTONE, "code", "repair", str(shards)], stdout=subprocess.DEVNULL, env=ENVIRONMENT
        )
        time.sleep(rng.uniform(0, took))
        process.kill()
        process.wait()
        if lost.exists():
            check(same(lost, original), "a killed repair leaves a shard that is not whole")
            lost.unlink()
    fieldstone("code", "repair", shards)
    check(same(lost, original), "a repair after killed ones makes another shard")
    fieldstone("code", "verify", shards)
    check(not list(shards.glob("*.part")), "leftovers")


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x20]))


def verify_says(shards, *says):
    """`verify` fails, and names all of it."""
    result = fieldstone("code", "verify", shards, ok=(1,))
    for word in says:
        check(word in result.stdout, f"verify does not say {word!r}:\n{result.stdout}{result.stderr}")
    check("nothing is lost" in result.stderr, result.stderr)


def damage(world):
    """Named by verify, harmless to decode, mended by repair."""
    small, shards, out = noise_file(world.file("small"), 3 * MIB + 1), world.file("e"), world.file("o")
    encoded = code("encode", small, "--code", world.case.code, "--out", shards)
    original = {path.name: path.read_bytes() for path in shards.iterdir()}

    def mend(*options):
        fieldstone("code", "decode", shards, "--out", out)
        check(same(small, out), "decode gives other bytes")
        out.unlink()
        repaired = code("repair", shards, *options)
        fieldstone("code", "verify", shards)
        now = {path.name: path.read_bytes() for path in shards.iterdir()}
        check(now == original, "the folder is not as it was at first")
        return repaired

    fieldstone("code", "verify", shards)
    at = 512 + encoded["unit_bytes"] + 1000
    flip(shards / "shard.3", at)
    verify_says(shards, "shard.3: stripe 1, byte ", "block 0 damaged")
    check(mend()["mended_units"] == 1, "one unit was damaged")
    flip(shards / "shard.2", 100)
    verify_says(shards, "shard.2: has a damaged header")
    check(mend()["rebuilt_shards"] == [2], "shard 2 was damaged")
    os.truncate(shards / "shard.5", at)
    verify_says(shards, f"shard.5: truncated: {at} bytes instead of")
    check(mend()["rebuilt_shards"] == [5], "shard 5 was truncated")
    (shards / "manifest.json").write_text(original["manifest.json"].decode().replace("4+2", "5+1"))
    verify_says(shards, "manifest.json: damaged: its checksum is wrong")
    check(mend()["rebuilt_manifest"], "the manifest was damaged")
    # One is missing, another one damaged where the repair need not look.
    (shards / "shard.0").unlink()
    flip(shards / "shard.5", encoded["shard_file_bytes"] - 1)
    verify_says(shards, "shard.0: missing", "shard.5: stripe ")
    repaired = mend("--all")
    check(repaired["rebuilt_shards"] == [0] and repaired["mended_units"] == 1, str(repaired))
    # Swapped names.
    (shards / "shard.0").rename(shards / "x")
    (shards / "shard.1").rename(shards / "shard.0")
    (shards / "x").rename(shards / "shard.1")
    verify_says(shards, "shard.0: lies in", "shard.1: lies in", "rename that to shard.0")
    refused("code", "repair", shards, says=["shard.1", "rename"])
    fieldstone("code", "decode", shards, "--out", out)
    check(same(small, out), "swapped names give other bytes")
    report = json.loads(fieldstone("code", "verify", shards, "--json", ok=(1,)).stdout)
    check(report["restorable"] and not report["clean"] and len(report["troubles"]) == 2, str(report))


def refusals(world):
    small, shards, out = noise_file(world.file("s"), 100_001), world.file("f"), world.file("r")
    fieldstone("code", "encode", small, "--out", shards, "--code", world.case.code)
    refused("code", "encode", small, "--out", shards, says=[shards, "not empty", "another folder"])
    refused("code", "encode", world.file("none"), "--out", world.file("n"), says=["none", "No such"])
    refused("code", "encode", world.folder, "--out", world.file("n"), says=["is a folder"])
    refused("code", "encode", small, "--out", world.file("a") / "b", says=["a/b", "No such"])
    refused(
        "code", "encode", small, "--code", "zigzag:4+2", "--unit", "100", "--out", world.file("n"),
        says=["zigzag:4+2", "multiple of 8", "96"],
    )
    wrong = fieldstone("code", "encode", small, "--code", "rs:300+2", "--out", world.file("n"), ok=(2,))
    check("at most 255" in wrong.stderr, wrong.stderr)
    for command in (["encode", small, "--out", world.file("n")], ["info"]):
        wrong = fieldstone("code", *command, "--code", "clay:60+60", ok=(2,))
        check("clay:60+60 is out of bounds" in wrong.stderr, wrong.stderr)
        check("16777216 are the most" in wrong.stderr, wrong.stderr)
    fieldstone("code", "encode", small, "--out", world.file("n"), "--jobs", "0", ok=(2,))
    fieldstone("code", "info", ok=(2,))
    refused("code", "decode", shards, "--out", small, says=[small, "exists"])
    refused("code", "decode", shards, "--out", "/dev/full", says=["no room for /dev/full", "No space left"])
    # A limit on the length of files stands for a full disk.
    script = f"trap '' XFSZ; ulimit -f 20; exec {FIELDSTONE} code"
    for command in (f"encode {small} --out {world.file('n')}", f"decode {shards} --out {out}"):
        result = run("sh", "-c", f"{script} {command}", ok=(1,))
        check("File too large" in result.stderr, result.stderr)
        check(".part" in result.stderr, f"the file is not named: {result.stderr}")
    check(not world.file("n").exists(), "a failed encode leaves its folder")
    check(not list(world.folder.glob("r*")), "a failed decode leaves a file")
    for shard in (1, 2, 3):
        (shards / f"shard.{shard}").unlink()
    says = ["shard 1 missing", "needs 4 good shards there, and 3 are"]
    refused("code", "decode", shards, "--out", out, says=says)
    refused("code", "repair", shards, says=says)
    lost = fieldstone("code", "verify", shards, ok=(1,))
    check("cannot be restored" in lost.stderr and "shard.2: missing" in lost.stdout, lost.stderr)
    check(not out.exists() and not list(shards.glob("*.part")), "leftovers")
    permissions(world, small)


def permissions(world, small):
    """As a user who may not."""
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    world.folder.chmod(0o755)
    binary = world.file("fieldstone")
    shutil.copy(FIELDSTONE, binary)
    if run(*become, binary, "--version", ok=None).returncode != 0:
        print("not root: the permission checks were left out")
        return
    denied = run(*become, binary, "code", "encode", small, "--out", world.file("mine"), ok=(1,))
    check("mine" in denied.stderr and "ermission denied" in denied.stderr, denied.stderr)
    shards = world.file("p")
    fieldstone("code", "encode", small, "--out", shards)
    shards.chmod(0o700)
    denied = run(*become, binary, "code", "verify", shards, ok=(1,))
    check(str(shards) in denied.stderr and "ermission denied" in denied.stderr, denied.stderr)
    shards.chmod(0o755)
    (shards / "shard.1").chmod(0)
    denied = run(*become, binary, "code", "verify", shards, ok=(1,))
    check("shard.1: cannot be read: Permission denied" in denied.stdout, denied.stdout)
    denied = run(*become, binary, "code", "repair", shards, ok=(1,))
    check("shard.1" in denied.stderr and "make it readable" in denied.stderr, denied.stderr)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def forge(path, at, field):
    """Changes a field of a shard's header, and puts its checksum right."""
    with open(path, "r+b") as file:
        header = bytearray(file.read(512))
        header[at : at + len(field)] = field
        header[8:12] = struct.pack("<I", crc32c(header[12:]))
        file.seek(0)
        file.write(header)


def plant(path, what, target):
    """Puts something else than a regular file at `path`."""
    path.unlink(missing_ok=True)
    if what == "a symbolic link":
        path.symlink_to(target)
    elif what == "a named pipe":
        os.mkfifo(path)
    elif what == "a folder":
        path.mkdir()
    else:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.close()


def irregular(world):
    """Links, pipes, folders and sockets in a shard folder are named, and neither used nor replaced."""
    small, out = noise_file(world.file("odd"), 300_000), world.file("o2")
    secret = world.file("secret")
    for number, what in enumerate(("a symbolic link", "a named pipe", "a folder", "a socket")):
        shards = world.file(f"i{number}")
        fieldstone("code", "encode", small, "--code", world.case.code, "--out", shards)
        says = f"is {what} and no regular file"
        for name in ("shard.1", "manifest.json"):
            good = (shards / name).read_bytes()
            secret.write_bytes(good)
            plant(shards / name, what, secret)
            told = fieldstone("code", "info", shards, seconds=20).stdout
            check(f"{name}: {says}" in told, told)
            failed = fieldstone("code", "verify", shards, ok=(1,), seconds=20)
            check(f"{name}: {says}" in failed.stdout, failed.stdout)
            fieldstone("code", "decode", shards, "--out", out, seconds=20)
            check(same(small, out), "decode gives other bytes")
            out.unlink()
            refused("code", "repair", shards, says=[shards / name, says, "move it away"], seconds=20)
            check(secret.read_bytes() == good, "a file outside the folder was written to")
            run("rm", "-r", shards / name)
            (shards / name).write_bytes(good)
        # Where a repair would write, and where an encode would.
        (shards / "shard.2").rename(world.file("aside"))
        plant(shards / "shard.2.part", what, secret)
        refused("code", "repair", shards, says=["shard.2.part", says], seconds=20)
        fresh = world.file(f"j{number}")
        fresh.mkdir()
        plant(fresh / "shard.0.part", what, secret)
        refused("code", "encode", small, "--out", fresh, says=["shard.0.part", says], seconds=20)
        check(secret.read_bytes() == good, "a file outside the folder was written to")
    # The folder itself, and what decode writes to, are the user's own.
    link, pipe = world.file("link"), world.file("pipe")
    link.symlink_to(world.file("i0"))
    (world.file("i0") / "shard.2.part").unlink()
    fieldstone("code", "decode", link, "--out", out)
    check(same(small, out), "decode through a link to the folder gives other bytes")
    os.mkfifo(pipe)
    refused("code", "info", pipe, says=[pipe, "Not a directory"], seconds=20)
    nowhere = world.file("nowhere")
    nowhere.symlink_to(world.file("not-there"))
    refused("code", "decode", link, "--out", nowhere, says=[nowhere, "exists"])
    check(not world.file("not-there").exists(), "a link that leads nowhere was written through")


def claims(world):
    """A manifest is read up to its bound, and no length is believed beyond the files."""
    small, shards, out = noise_file(world.file("cl"), 300_000), world.file("c"), world.file("o3")
    encoded = code("encode", small, "--code", world.case.code, "--out", shards)
    manifest = shards / "manifest.json"
    with open(manifest, "r+b") as file:
        file.truncate(1 << 40)
    used = measured([FIELDSTONE, "code", "decode", shards, "--out", out, "-j", "1"])
    check(used < MEMORY_MAX, f"a manifest of 1 TiB costs {used} bytes of memory")
    check(same(small, out), "decode gives other bytes")
    says = f"{manifest.name}: damaged: it has more than 65536 bytes"
    check(says in fieldstone("code", "info", shards).stdout, "info does not name the manifest")
    manifest.unlink()
    # All headers claim 2^60 bytes: so many stripes take for ever.
    longest = (1 << 30) // encoded["shards"] // 64 * 64
    for unit_bytes in (encoded["unit_bytes"], longest):
        for shard in range(encoded["shards"]):
            forge(shards / f"shard.{shard}", 32, struct.pack("<QQ", 1 << 60, unit_bytes))
        failed = fieldstone("code", "verify", shards, "--json", ok=(1,), seconds=20)
        stripes = -(-(1 << 60) // (4 * unit_bytes))
        report = json.loads(failed.stdout)
        check(stripes - 1 <= report["lost_stripes"] <= stripes, failed.stdout)
        for command in (["repair"], ["decode", "--out", world.file("o4")]):
            refused("code", command[0], shards, *command[1:], says=["needs 4 good shards"], seconds=20)
        check(not world.file("o4").exists(), "a file was made of nothing")
    # A code that cannot be made: one such shard is left alone, and if all are, the first is named.
    shutil.rmtree(shards)
    fieldstone("code", "encode", small, "--code", world.case.code, "--out", shards)
    name = b"clay:60+60"
    says = ["clay:60+60 is out of bounds", "16777216 are the most"]
    forge(shards / "shard.1", 56, struct.pack("<I", len(name)) + name.ljust(68, b"\0"))
    out.unlink()
    fieldstone("code", "decode", shards, "--out", out)
    check(same(small, out), "decode gives other bytes")
    refused("code", "repair", shards, says=[shards / "shard.1", "move it away", *says])
    manifest.unlink()
    for shard in range(encoded["shards"]):
        forge(shards / f"shard.{shard}", 56, struct.pack("<I", len(name)) + name.ljust(68, b"\0"))
    for command in (["info"], ["verify"], ["repair"], ["decode", "--out", world.file("o4")]):
        refused("code", command[0], shards, *command[1:], says=[shards / "shard.0", *says], seconds=20)


def explain(world):
    told = code("info", "--code", world.case.code)
    helpers, part = PLANS[world.case.code]
    check((told["k"], told["m"]) == (4, 2), str(told))
    first = told["repairs"][0]
    check((first["helpers"], first["reads_shards"]) == (helpers, helpers * part), str(first))
    check(len(told["repairs"]) == 6, str(told))
    text = fieldstone("code", "info", "--code", world.case.code).stdout
    check("any 2 shards may be lost" in text, text)


def scenario(world):
    explain(world)
    big = pipes_and_memory(world)
    repair_bytes(world, big)
    crashes(world, big)
    damage(world)
    irregular(world)
    claims(world)
    refusals(world)


main(scenario, CASES)
