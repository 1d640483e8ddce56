#!/usr/bin/env python3
"""Checks that Ctrl-C ends a command within a second while it reads a prompt.

    scripts/check_interrupt.py SECONDS COMMAND...

Starts the command, sends SIGINT after SECONDS, when a long prompt should be under way, and says how
long it took to exit. Exit code 1: it took longer than a second, was not interrupted (130), or had
ended before.
"""
import signal
import subprocess
import sys
import time


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    process = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(float(sys.argv[1]))
    if process.poll() is not None:
        print(f"ended by itself with {process.returncode}: {process.stderr.read()[-300:]}")
        return 1
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate()
    seconds = time.monotonic() - start
    print(f"ended {seconds:.2f} s after SIGINT with {process.returncode}")
    return 0 if seconds <= 1 and process.returncode == 130 else 1


if __name__ == "__main__":
    sys.exit(main())
