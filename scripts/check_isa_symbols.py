#!/usr/bin/env python3
"""Fails when an object compiled for one instruction set defines a weak function.

The linker keeps one copy of an inline function or template for the whole program. If the copy comes
from an object compiled with -mavx512f, an older processor crashes wherever it is called. Objects
with -mavx... or -mamx... options may therefore define nothing weak.

    check_isa_symbols.py BUILD_FOLDER     (with compile_commands.json)
"""
import json
import pathlib
import re
import subprocess
import sys


def weak_functions(nm_output):
    """Names of the weak definitions in the output of `nm -C`."""
    return re.findall(r"^[0-9a-f]+ W (.*)$", nm_output, re.MULTILINE)


def isa_objects(build_folder):
    """Paths of the objects that are compiled with options for an instruction set and exist."""
    for entry in json.loads((build_folder / "compile_commands.json").read_text()):
        command = entry["command"]
        output = re.search(r" -o (\S+)", command)
        if output and re.search(r" -m(avx|amx|fma|f16c)", command):
            path = pathlib.Path(entry["directory"], output.group(1))
            if path.exists():
                yield path


def main():
    objects = sorted(set(isa_objects(pathlib.Path(sys.argv[1]))))
    failures = 0
    for path in objects:
        nm = subprocess.run(["nm", "-C", path], check=True, capture_output=True, text=True)
        for name in weak_functions(nm.stdout):
            print(f"{path}: defines the weak function {name}")
            failures += 1
    print(f"{len(objects)} objects for one instruction set, {failures} weak functions")
    return 1 if failures or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
