#!/usr/bin/python3
"""The quickstart runs to its end in under a minute, as any user, and leaves nothing behind."""

import os
import pathlib
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from scenario import main
from world import ENVIRONMENT, FIELDSTONE, ONE_CASE, check, run


def scenario(world):
    home = world.file("tmp")
    home.mkdir()
    world.folder.chmod(0o755)
    home.chmod(0o777)
    binary = world.file("fieldstone")
    shutil.copy(FIELDSTONE, binary)
    # No tool of any package may be needed: nothing but the command is to be found.
    env = dict(ENVIRONMENT, TMPDIR=str(home), PATH="/nonexistent", HOME=str(home))
    become = []
    if os.geteuid() == 0 and shutil.which("setpriv"):
        become = [shutil.which("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups"]
    began = time.monotonic()
    done = run(*become, binary, "quickstart", seconds=120, env=env)
    took = time.monotonic() - began
    check(took < 60, f"the quickstart takes {took:.0f} s")
    text = done.stdout + done.stderr
    for word in ("rs:4+2", "node", "rebuil"):
        check(word in text, f"the quickstart does not tell of {word!r}:\n{text}")
    check(len(done.stdout.splitlines()) <= 70, f"{len(done.stdout.splitlines())} lines are not one page")
    left = [path.name for path in home.iterdir()]
    check(not left, f"the quickstart leaves {left} behind")


main(scenario, ONE_CASE)
