#!/usr/bin/env python3
"""Runs a compiler and fails on what ptxas only mentions: spills, and wgmma made serial.

    check_ptxas.py COMPILER ARGUMENTS...

The compiler must be given -Xptxas=-v. Its remarks are kept back, everything else passes through.
A file compiled with -DFOVEA_MAY_SPILL_BYTES=N may spill up to N bytes in a kernel.
"""

import re
import subprocess
import sys

SPILL = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
# C7508: setmaxnreg ignored; C7510, C7511, C7512, C7517: wgmma serialised; C7519: fences inserted.
SERIAL = re.compile(r"\(C75(08|10|11|12|17|19)\)")
REMARK = re.compile(r"^ptxas info|^\s+\d+ bytes stack frame|bytes gmem|Compile time")


def faults(lines, may_spill):
    """Lines of ptxas's report that fail a build."""
    return [
        line
        for line in lines
        if SERIAL.search(line)
        or any(int(n) > may_spill for m in SPILL.finditer(line) for n in m.groups())
    ]


def main():
    result = subprocess.run(sys.argv[1:], stderr=subprocess.PIPE, text=True, check=False)
    lines = result.stderr.splitlines()
    allowed = [re.fullmatch(r"-DFOVEA_MAY_SPILL_BYTES=(\d+)", word) for word in sys.argv[1:]]
    bad = faults(lines, max((int(m[1]) for m in allowed if m), default=0))
    for line in lines:
        if bad or result.returncode != 0 or not REMARK.search(line):
            print(line, file=sys.stderr)
    if bad and result.returncode == 0:
        sys.exit("check_ptxas.py: a kernel spills registers or runs its wgmma serially, see above")
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
