#!/usr/bin/python3
"""The seeded world's command: one seed gives one trace, again and again."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from scenario import main
from world import ONE_CASE, check, fieldstone


def scenario(world):
    first = fieldstone("sim", "--seed", "7")
    again = fieldstone("sim", "--seed", "7")
    check(first.stdout == again.stdout and len(first.stdout.splitlines()) > 20, "the trace differs")
    other = fieldstone("sim", "--seed", "8").stdout
    check(other != first.stdout, "two seeds give the same trace")
    many = fieldstone("sim", "--seeds", "0..20")
    check("20" in many.stdout + many.stderr, f"{many.stdout}{many.stderr}")
    fieldstone("sim", "--seeds", "5..5", ok=(2,))
    fieldstone("sim", ok=(2,))


main(scenario, ONE_CASE)
