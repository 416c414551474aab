#!/usr/bin/env python3
"""Synthesizes the units of units.toml for an UltraScale+ FPGA and writes results.json.

    synthesize.py                 all units
    synthesize.py crush_straw2    these
    synthesize.py --jobs 2 --log FOLDER     with Yosys' log of each unit
    synthesize.py --check         which results are missing or of older sources

Yosys (pyosys) maps each unit by itself, as a whole but for the modules that units.toml leaves out of it
(`without`); nothing is placed or routed, so LUTs are counted before packing, and delays are not known.
`depth_*` are the cells on the path between registers that has most of them, `depth_lut_only` those on
the path with most LUTs without a carry chain.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
RTL = HERE.parent
FLIP_FLOPS = ["FDRE", "FDSE", "FDCE", "FDPE", "SRL16E", "SRLC32E"]
# ABC's usual script without its last pass (mfs), which takes hours on carry chains and saves little.
ABC = "+&scorr; &sweep; &dc2; &dch -f -r; &ps; &if {C} {W} {D} {R}"

# LUTs that one cell of a LUT memory takes.
LUT_MEMORIES = {
    "RAM32M": 4, "RAM32M16": 8, "RAM64M": 4, "RAM64M8": 8, "RAM32X1D": 2, "RAM64X1D": 2,
    "RAM128X1D": 4, "RAM256X1D": 8, "RAM64X1S": 1, "RAM128X1S": 2, "RAM256X1S": 4, "RAM512X1S": 8,
    "SRL16E": 1, "SRLC32E": 1,
}
# Cells per counted kind.
KINDS = {
    "lut": r"LUT\d",
    "ff": r"FD[RSCP]E",
    "bram36": r"RAMB36.*",
    "bram18": r"RAMB18.*",
    "uram": r"URAM288.*",
    "dsp": r"DSP48E2",
    "carry4": r"CARRY4",  # two make a CARRY8 of these parts
}
ON_PATH = {"lut": "t:LUT*", "carry": "t:CARRY4", "mux": "t:MUXF*"}


def digest(unit):
    """Identifies what was synthesized: comments and spaces do not count."""
    state = hashlib.sha256(json.dumps(unit, sort_keys=True).encode())
    for file in unit["files"]:
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", (RTL / file).read_text(), flags=re.DOTALL)
        state.update(" ".join(code.split()).encode())
    return state.hexdigest()[:16]


def constants_of(unit, module):
    """Parameters, local ones and generate variables of one of the unit's modules."""
    source = next(RTL / file for file in unit["files"] if pathlib.Path(file).stem == module).read_text()
    return sorted(set(re.findall(r"\b(?:parameter|localparam|genvar)\b[^=;]*?(\w+)\s*=", source)))


def script(unit, folder):
    files = " ".join(str(RTL / file) for file in unit["files"])
    parameters = "".join(f" -G {name}={value}" for name, value in unit.get("parameters", {}).items())
    top = unit.get("top", unit["name"])
    without = unit.get("without", [])
    boxes = "".join(f" --blackboxed-module {module}" for module in without)
    return [
        "read_slang --unroll-limit 10000000 --ignore-assertions -DSYNTHESIS "
        f"{files} --top {top}{parameters}{boxes}",
        # ABC knows no parameters of boxes.
        *[f"setparam -unset {name} t:{box}" for box in without for name in constants_of(unit, box)],
        f"scratchpad -set abc9.script \"{ABC}\"",
        "synth_xilinx -family xcup -noiopad -noclkbuf",
        f"tee -o {folder}/stat.json stat -json -tech xilinx",
        "delete " + " ".join(f"t:{cell}" for cell in FLIP_FLOPS),
        # Memories and multipliers have registers of their own; a path from a LUT memory begins at its
        # output.
        "delete t:RAM* t:URAM288* t:DSP48E2" + "".join(f" t:{module}" for module in without),
        f"tee -o {folder}/path.txt ltp",
        *[f"tee -o {folder}/{kind}.txt select -list {cells}" for kind, cells in ON_PATH.items()],
        # Yosys' longest path has the most cells, and a carry is quicker than a LUT: both extremes.
        "delete t:CARRY4",
        f"tee -o {folder}/lut_path.txt ltp",
    ]


def longest(text):
    """The cells ("module/cell") on the longest path of every module."""
    paths = []
    for block in text.split("Longest topological path in ")[1:]:
        module = block.split(" ", 1)[0]
        paths.append([f"{module}/{cell}" for cell in re.findall(r"\(via (.*)\)$", block, re.MULTILINE)])
    return paths


def run(unit, options):
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        program = (
            "import sys\nfrom pyosys import libyosys as ys\ndesign = ys.Design()\n"
            "for line in sys.stdin:\n    ys.run_pass(line.strip(), design)\n"
        )
        log = (options.log or pathlib.Path(folder)) / f"{unit['name']}.log"
        with log.open("w") as output:
            done = subprocess.run(
                [sys.executable, "-c", program],
                input="\n".join(script(unit, folder)),
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=options.timeout_s,
            )
        if done.returncode != 0:
            raise RuntimeError(f"{unit['name']}: Yosys failed:\n" + log.read_text()[-3000:])
        stat = json.loads(pathlib.Path(folder, "stat.json").read_text())
        paths = longest(pathlib.Path(folder, "path.txt").read_text())
        lut_paths = longest(pathlib.Path(folder, "lut_path.txt").read_text())
        kinds = {
            kind: set(pathlib.Path(folder, f"{kind}.txt").read_text().split()) for kind in ON_PATH
        }
    cells = stat["design"]["num_cells_by_type"]
    counts = {
        kind: sum(number for cell, number in cells.items() if re.fullmatch(pattern, cell))
        for kind, pattern in KINDS.items()
    }
    memories = {cell: n for cell, n in cells.items() if re.match(r"(RAM|SRL)(?!B)", cell)}
    unknown = memories.keys() - LUT_MEMORIES.keys()
    if unknown:
        raise RuntimeError(f"{unit['name']}: LUTs of {', '.join(unknown)} are not known")
    counts["lut_memory"] = sum(LUT_MEMORIES[cell] * number for cell, number in memories.items())
    on_path = max(paths, key=len, default=[])
    lut_path = max(lut_paths, key=len, default=[])
    depths = {f"depth_{kind}": sum(cell in kinds[kind] for cell in on_path) for kind in ON_PATH}
    depths["depth_lut_only"] = sum(cell in kinds["lut"] for cell in lut_path)
    return {
        "unit": unit["name"],
        "digest": digest(unit),
        "parameters": unit.get("parameters", {}),
        **counts,
        **depths,
        "seconds": round(time.monotonic() - started),
    }


def main():
    parser = argparse.ArgumentParser(description="Synthesizes units and writes results.json.")
    parser.add_argument("names", nargs="*", help="units; all of them by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="units at a time")
    parser.add_argument("--check", action="store_true", help="say which results are of older sources")
    parser.add_argument("--timeout-s", type=int, default=3600, help="longest time for a unit")
    parser.add_argument("--log", type=pathlib.Path, metavar="FOLDER", help="keep Yosys' logs there")
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "results.json")
    options = parser.parse_args()
    units = tomllib.loads((HERE / "units.toml").read_text())["unit"]
    known = {unit["name"]: unit for unit in units}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no such unit: {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [known[name] for name in options.names] or units
    old = json.loads(options.output.read_text()) if options.output.exists() else []
    results = {row["unit"]: row for row in old if row["unit"] in known}
    if options.check:
        for name, unit in known.items():
            row = results.get(name)
            state = "missing" if row is None else "good" if row["digest"] == digest(unit) else "old"
            print(f"{state:<8} {name}")
        return
    failed = False
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for future in concurrent.futures.as_completed([pool.submit(run, unit, options) for unit in chosen]):
            try:
                row = future.result()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(error, file=sys.stderr, flush=True)
                failed = True
                continue
            results[row["unit"]] = row
            print(json.dumps(row), flush=True)
            ordered = [results[name] for name in known if name in results]
            options.output.write_text("[\n" + ",\n".join("  " + json.dumps(row) for row in ordered) + "\n]\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
