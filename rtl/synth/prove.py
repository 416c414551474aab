#!/usr/bin/env python3
"""Proves what the properties in rtl/*/formal say, with Yosys' own solver.

A property file NAME_formal.sv is a module of that name. Sequential ones are unrolled from a reset for a
bounded number of cycles, or proved without a bound by induction; those without a clock are proved for all
inputs. The lines of proofs.toml say which.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
RTL = HERE.parent
SECONDS = 900


def script(proof):
    files = " ".join(str(RTL / file) for file in proof["files"])
    parameters = "".join(f" -G {name}={value}" for name, value in proof.get("parameters", {}).items())
    top = proof["top"]
    solve = "sat -verify -prove-asserts -set-def-inputs"
    if cycles := proof.get("cycles"):
        solve += f" -seq {cycles} -prove-skip 1 -set-at 1 rst_ni 0"
        solve += "".join(f" -set-at {cycle} rst_ni 1" for cycle in range(2, cycles + 1))
    if proof.get("unbounded"):
        solve = "sat -verify -prove-asserts -set-assumes -tempinduct -maxsteps 4"
    return [
        f"read_slang --unroll-limit 10000000 -DSYNTHESIS {files} --top {top}{parameters}",
        f"prep -flatten -top {top}",
        "memory_map",
        "async2sync",
        "chformal -lower",
        "opt -full",
        solve,
    ]


def prove(proof):
    """Returns whether the properties hold, and the text that says so."""
    started = time.monotonic()
    program = (
        "import sys\nfrom pyosys import libyosys as ys\ndesign = ys.Design()\n"
        "for line in sys.stdin:\n    ys.run_pass(line.strip(), design)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="\n".join(script(proof)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    seconds = time.monotonic() - started
    bound = f"{proof['cycles']} cycles from reset" if "cycles" in proof else "all inputs"
    found = "SAT proof finished"
    if proof.get("unbounded"):
        bound, found = "without a bound", "Induction step proven: SUCCESS!"
    if done.returncode == 0 and found in done.stdout:
        return True, f"proved   {proof['top']}: {bound} ({seconds:.1f} s)"
    return False, f"FAILED   {proof['top']}: {bound}\n{done.stdout[-3000:]}"


def main():
    proofs = tomllib.loads((HERE / "proofs.toml").read_text())["proof"]
    failed = 0
    # Each proof keeps one CPU busy.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for holds, text in pool.map(prove, proofs):
            print(text, flush=True)
            failed += not holds
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
