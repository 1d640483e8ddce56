#!/usr/bin/env python3
"""Runs every command of README.md, so that none of them can go stale.

Commands are the lines of fenced `sh` blocks, run in order from the root of the tree, each in a shell of its own; a
line that ends in a backslash goes on. `git clone` and `cd` (the checkout is here already) and `make test` (what
CI has just run) are left out, and said to be.
usage: scripts/check_readme.py [README.md]
"""
import re
import subprocess
import sys
import time

LEFT_OUT = re.compile(r"^(git clone\b|cd fovea\b|make test\b)")


def blocks(text):
    for match in re.finditer(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        commands = match.group(1).replace("\\\n", " ").splitlines()
        yield [line.strip() for line in commands if line.strip() and not line.startswith("#")]


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "README.md"
    with open(path, encoding="utf-8") as file:
        text = file.read()
    ran = 0
    for commands in blocks(text):
        kept = []
        for command in commands:
            if LEFT_OUT.match(command):
                print(f"readme: left out: {command}")
            else:
                kept.append(command)
        for command in kept:
            print(f"readme: $ {command}", flush=True)
            start = time.monotonic()
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], stdin=subprocess.DEVNULL)
            if done.returncode != 0:
                sys.exit(f"check_readme.py: exit code {done.returncode} from: {command}")
            print(f"readme: ok in {time.monotonic() - start:.1f} s", flush=True)
            ran += 1
    if ran == 0:
        sys.exit(f"check_readme.py: {path} holds no command to run")
    print(f"readme: {ran} commands ran")


if __name__ == "__main__":
    main()
