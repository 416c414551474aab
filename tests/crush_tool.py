#!/usr/bin/python3
"""`crush compile`, `decompile` and `map`: outputs, JSON, pictures, data sets, and what is refused.

The lines expected here are crushtool's; crush_fuzz compares with crushtool itself.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from scenario import main
from world import FIELDSTONE, ONE_CASE, check, fieldstone, refused, run

TEXT = """tunable choose_local_tries 0
tunable choose_local_fallback_tries 0
tunable choose_total_tries 50
tunable chooseleaf_descend_once 1
tunable chooseleaf_vary_r 1
tunable chooseleaf_stable 1
tunable straw_calc_version 1
device 0 osd.0 class ssd
device 1 osd.1 class hdd
device 2 osd.2 class ssd
device 3 osd.3 class hdd
device 4 osd.4 class ssd
device 5 osd.5 class hdd
type 0 osd
type 1 host
type 2 root
host alpha {
	id -2
	alg straw2
	hash 0
	item osd.0 weight 1.00000
	item osd.1 weight 2.00000
}
host beta {
	id -3
	alg straw2
	hash 0
	item osd.2 weight 1.00000
	item osd.3 weight 2.00000
}
host gamma {
	id -4
	alg straw2
	hash 0
	item osd.4 weight 1.00000
	item osd.5 weight 2.00000
}
root all {
	id -1
	alg straw2
	hash 0
	item alpha weight 3.00000
	item beta weight 3.00000
	item gamma weight 3.00000
}
rule copies {
	id 0
	type replicated
	min_size 1
	max_size 2
	step take all
	step chooseleaf firstn 0 type host
	step emit
}
rule shards {
	id 2
	type erasure
	min_size 3
	max_size 3
	step take all class ssd
	step chooseleaf indep 0 type host
	step emit
}
"""
HOSTS = """rule hosts {
	id 3
	type replicated
	min_size 1
	max_size 10
	step take all
	step choose firstn 0 type host
	step emit
}
"""
# crushtool -i MAP --test --max-x 3 --min-x 0 --show-mappings --show-bad-mappings --show-utilization
#     --weight 4 0 --min-rule 0 --max-rule 9
EXPECTED = """rule 0 (copies), x = 0..3, numrep = 1..2
CRUSH rule 0 x 0 [5]
CRUSH rule 0 x 1 [0]
CRUSH rule 0 x 2 [5]
CRUSH rule 0 x 3 [2]
rule 0 (copies) num_rep 1 result size == 1:\t4/4
  device 0:\t\t stored : 1\t expected : 0.8
  device 2:\t\t stored : 1\t expected : 0.8
  device 5:\t\t stored : 2\t expected : 0.8
CRUSH rule 0 x 0 [5,0]
CRUSH rule 0 x 1 [0,3]
CRUSH rule 0 x 2 [5,3]
CRUSH rule 0 x 3 [2,1]
rule 0 (copies) num_rep 2 result size == 2:\t4/4
  device 0:\t\t stored : 2\t expected : 1.6
  device 1:\t\t stored : 1\t expected : 1.6
  device 2:\t\t stored : 1\t expected : 1.6
  device 3:\t\t stored : 2\t expected : 1.6
  device 5:\t\t stored : 2\t expected : 1.6
rule 1 dne
rule 2 (shards), x = 0..3, numrep = 3..3
CRUSH rule 2 x 0 [0,2147483647,2]
bad mapping rule 2 x 0 num_rep 3 result [0,2147483647,2]
CRUSH rule 2 x 1 [2,0,2147483647]
bad mapping rule 2 x 1 num_rep 3 result [2,0,2147483647]
CRUSH rule 2 x 2 [2147483647,0,2]
bad mapping rule 2 x 2 num_rep 3 result [2147483647,0,2]
CRUSH rule 2 x 3 [2,0,2147483647]
bad mapping rule 2 x 3 num_rep 3 result [2,0,2147483647]
rule 2 (shards) num_rep 3 result size == 3:\t4/4
  device 0:\t\t stored : 4\t expected : 2.4
  device 2:\t\t stored : 4\t expected : 2.4
"""
OPTIONS = """--min-x 0 --max-x 3 --show-mappings --show-bad-mappings --show-utilization --weight 4 0
    --min-rule 0 --max-rule 9""".split()


def crush_map(*arguments, **options):
    return fieldstone("crush", "map", *arguments, **options)


def forms(world):
    """A map is the same as text, as binary, and printed again."""
    text, binary, printed = (world.file(name) for name in ("map.txt", "map.bin", "printed.txt"))
    text.write_text(TEXT)
    fieldstone("crush", "compile", text, "-o", binary)
    fieldstone("crush", "decompile", binary, "-o", printed)
    again = world.file("again.bin")
    fieldstone("crush", "compile", printed, "-o", again)
    check(binary.read_bytes() == again.read_bytes(), "another map comes of the printed text")
    check(fieldstone("crush", "decompile", binary).stdout == printed.read_text(), "stdout differs")
    for form in (text, binary, printed):
        lines = crush_map("-i", form, *OPTIONS).stdout
        check(lines == EXPECTED, f"{form.name}:\n{lines}")
    return text, binary


def as_json(binary):
    lines = crush_map("-i", binary, "--json", *OPTIONS).stdout.splitlines()
    objects = [json.loads(line) for line in lines]
    rows = [found for found in objects if "items" in found]
    sums = [found for found in objects if "sizes" in found]
    check(len(rows) == 12 and len(sums) == 3, f"{len(rows)} rows, {len(sums)} sums")
    plain = [line for line in EXPECTED.splitlines() if line.startswith("CRUSH")]
    for row, line in zip(rows, plain):
        items = ",".join(str(0x7FFFFFFF if item is None else item) for item in row["items"])
        check(line == f"CRUSH rule {row['rule']} x {row['x']} [{items}]", f"{row}, {line}")
    check(all(row["bad"] == (None in row["items"]) for row in rows), f"{rows}")
    total = sum(device["stored"] for device in sums[2]["devices"])
    check(sums[2]["bad_mappings"] == 4 and total == 8, f"{sums[2]}")
    bad = crush_map("-i", binary, "--json", "--rule", 2, "--weight", 4, 0, "--show-bad-mappings")
    check(all(json.loads(line)["bad"] for line in bad.stdout.splitlines()), "a good mapping is shown")


def threads(binary):
    options = ["-i", binary, "--num-rep", 3, "--min-x", 0, "--max-x", 20000, "--show-mappings"]
    one = crush_map(*options, "-j", 1).stdout
    check(one.count("\n") == 2 * 20001, f"{one.count(chr(10))} lines")
    check(one == crush_map(*options, "-j", 7).stdout, "seven threads print something else than one")
    command = " ".join(map(str, [FIELDSTONE, "crush", "map", *options]))
    head = run("sh", "-c", f"{command} | head -1")
    check(head.stdout.startswith("CRUSH rule 0 x 0 [") and not head.stderr, head.stdout + head.stderr)


def files(world, binary):
    page = world.file("page.html")
    crush_map("-i", binary, "--html", page, "--num-rep", 2)
    html = page.read_text()
    for word in ("<svg", "osd.5", "gamma", "copies", "prefers-color-scheme: dark"):
        check(word in html, f"the page lacks {word!r}")
    for word in ("<script", "<link", "url(", "@import", "src="):
        check(word not in html, f"the page has {word!r}")
    prefix = world.file("sets")
    out = crush_map("-i", binary, "--output-csv", "--output-name", prefix, "--rule", 2, "--batches", 4)
    check(out.stdout == "", f"{out.stdout}")
    found = sorted(path.name for path in world.folder.glob("sets-shards-*.csv"))
    check(len(found) == 8, f"{found}")
    placements = world.file("sets-shards-placement_information.csv").read_text().splitlines()
    check(placements[0] == "Input, OSD0, OSD1, OSD2" and len(placements) == 1025, placements[0])


def corners(world, text, binary):
    """Where crushtool crashes or says nothing."""
    text.write_text(TEXT + HOSTS)
    lines = crush_map("-i", text, "--rule", 3, "--num-rep", 3, "--x", 1, "--show-mappings").stdout
    items = lines.split("[")[1].rstrip("]\n").split(",")
    check(sorted(items) == ["-2", "-3", "-4"], lines)
    out = [option for osd in range(6) for option in ("--weight", osd, 0)]
    lines = crush_map("-i", binary, "--rule", 0, "--num-rep", 2, *out, "--show-statistics").stdout
    check(lines == "rule 0 (copies), x = 0..1023, numrep = 2..2\n", lines)
    last = 2**31 - 1
    lines = crush_map("-i", binary, "--rule", 0, "--num-rep", 1, "--min-x", last - 1, "--max-x", last, "--show-mappings")
    check(lines.stdout.count("\n") == 2, lines.stdout)
    lines = crush_map("-i", binary, "--rule", 0).stdout
    check("result size == 2:\t1024/1024" in lines, f"no statistics without options: {lines}")
    told = crush_map("-i", binary, "--rule", 0, "--weight", 77, 1)
    check("no device 77" in told.stderr, told.stderr)


def refusals(world, binary):
    missing, broken, cut = (world.file(name) for name in ("missing", "broken.txt", "cut.bin"))
    refused("crush", "map", "-i", missing, says=[missing])
    broken.write_text(TEXT.replace("item osd.3 weight 2.00000", "item osd.33 weight 2.00000"))
    for command in (["map", "-i"], ["compile", "-o", world.file("x"), "--"]):
        refused("crush", *command, broken, says=[broken, "line 29", "osd.33"])
    check(not world.file("x").exists(), "a map was made of a wrong text")
    cut.write_bytes(binary.read_bytes()[:99])
    for command in (["map", "-i"], ["decompile"]):
        refused("crush", *command, cut, says=[cut, "byte"])
    refused("crush", "map", "-i", binary, "--rule", 1, says=["no rule 1", "0, 2"])
    refused("crush", "map", "-i", binary, "--num-rep", 70000, says=["65535", "70000"])
    refused("crush", "map", "-i", binary, "--weight", 1, "much", says=["--weight 1 much", "from 0 to 1"])
    refused("crush", "map", "-i", binary, "--weight", "osd", 1, says=["osd", "number of a device"])
    refused("crush", "map", "-i", binary, "--html", world.file("no/page"), says=["no/page"])
    for options in (
        [],
        ["--rule", 0, "--min-rule", 0],
        ["--num-rep", 1, "--max-rep", 2],
        ["--x", 1, "--max-x", 2],
        ["--x", "three"],
        ["--batches", 0],
        ["--weight", 3],
        ["--simulate"],
    ):
        given = [] if options == [] else ["-i", binary]
        crush_map(*given, *options, ok=(2,))


def scenario(world):
    text, binary = forms(world)
    as_json(binary)
    threads(binary)
    files(world, binary)
    refusals(world, binary)
    corners(world, text, binary)


main(scenario, ONE_CASE)
