"""check_isa_symbols.py must find a weak function planted in an object for AVX2, and only there."""
import json
import pathlib
import subprocess
import sys
import tempfile

WEAK = "inline __attribute__((noinline)) int twice(int x) { return 2 * x; } int f(int x) { return twice(x); }"
LOCAL = "namespace { __attribute__((noinline)) int twice(int x) { return 2 * x; } } int f(int x) { return twice(x); }"


def check(compiler, source, options):
    """Exit status of the script on a build of one object."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "planted.cc").write_text(source + "\n")
        command = f"{compiler} {options} -o planted.o -c planted.cc"
        subprocess.run(command.split(), check=True, cwd=folder)
        entry = {"directory": name, "command": command, "file": "planted.cc"}
        (folder / "compile_commands.json").write_text(json.dumps([entry]))
        return subprocess.run([sys.executable, "scripts/check_isa_symbols.py", name]).returncode


compiler = sys.argv[1]
assert check(compiler, WEAK, "-O2 -mavx2") == 1, "a weak function must be found"
assert check(compiler, LOCAL, "-O2 -mavx2") == 0, "a local function is no fault"
assert check(compiler, WEAK, "-O2") == 1, "a build without any such object checks nothing: a fault"
