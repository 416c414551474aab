"""What every scenario script ends with: `main(run, cases)`.

A script runs all its cases, or the one named with --case, and lists them with --list. The exit
code of a single case is 0 for passed, 1 for failed, 77 for skipped; the reason is printed.
"""

import argparse
import pathlib
import resource
import signal
import sys
import time
import traceback

from world import Case, Failure, Skip, World

SKIPPED = 77


def _run_case(scenario, run, case, options):
    began = time.monotonic()
    try:
        with World(scenario, case) as world:
            run(world, options) if options is not None else run(world)
    except Skip as reason:
        print(f"skipped: {reason}", flush=True)
        return SKIPPED
    except Failure as failure:
        # The place in the scenario, and what did not hold.
        frames = traceback.extract_tb(failure.__traceback__)
        place = [frame for frame in frames if pathlib.Path(frame.filename).stem == scenario]
        where = f" (line {place[-1].lineno})" if place else ""
        print(f"failed: {scenario} {case}{where}: {failure}", flush=True)
        return 1
    except Exception:
        traceback.print_exc()
        print(f"failed: {scenario} {case}", flush=True)
        return 1
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(f"passed: {scenario} {case} ({time.monotonic() - began:.1f} s)\ncpu: {cpu:.1f} s", flush=True)
    return 0


def _time_is_up(*_):
    raise Failure("the time limit of the case is reached")


def main(
    run, cases, parser=None, waits=False, computes=False, more=(), long=(), long_seconds=None
):
    """Runs the script's cases; `parser` adds options, which `run` then gets as second argument.

    `waits`: the cases use a CPU for less than a third of their time; the rest they wait, for time
    limits of the program for example. `tests/run` then runs them in addition to others.
    `computes`: they use more than a CPU nearly all the time, against time limits. They take the
    places of two others. `more`: those that are not in `cases` have other codes and places, and
    run only when they are named, or with `tests/run --all`; world.py has the rule. `long` are
    cases that run only when they are named, or with `tests/run --long`; `long_seconds` is their
    time limit there, if they need more than others.
    """
    scenario = pathlib.Path(sys.argv[0]).stem
    given = parser is not None
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--case", help="run this case only, for example rs:4+2,inside")
    parser.add_argument("--list", action="store_true", help="list the cases")
    options = parser.parse_args()
    if options.list:
        long_mark = f" long {long_seconds}" if long_seconds else " long"
        mark = " waits" if waits else " computes" if computes else ""
        known = [str(case) for case in cases]
        others = [case for case in more if str(case) not in known]
        for group, kind in ((cases, ""), (others, " more"), (long, long_mark)):
            for case in group:
                print(f"{case}{mark}{kind}")
        return
    # The runner says so first and kills later: time to keep the evidence and end the servers.
    signal.signal(signal.SIGTERM, _time_is_up)
    chosen = [Case.parse(options.case)] if options.case else cases
    codes = [_run_case(scenario, run, case, options if given else None) for case in chosen]
    failed = [code for code in codes if code not in (0, SKIPPED)]
    if failed:
        sys.exit(1)
    sys.exit(SKIPPED if all(code == SKIPPED for code in codes) else 0)
