#!/usr/bin/env python3
"""Checks which folder includes which: the arrows of docs/architecture.md, read off the #include lines.

usage: scripts/check_layers.py [ROOT]      exit 1 and one line per violation, else 0
"""
import pathlib
import re
import sys

# Folder of src/fovea -> the folders it may include, itself apart.
ALLOWED = {
    "base": set(),
    "tensor": {"base"},
    "attention": {"tensor", "base"},
    "selector": {"attention", "tensor", "base"},
    "ops": {"tensor", "base"},
    "model_io": {"tensor", "base"},
    "tokenizer": {"base"},
    "trace": {"base"},
    "worth": {"trace", "base"},
    "engine": {"attention", "selector", "ops", "model_io", "tokenizer", "tensor", "base"},
    "quality": {"engine", "attention", "selector", "ops", "model_io", "tokenizer", "tensor", "base"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".cc", ".cuh", ".cu"}
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|nccl|cupti|cooperative_groups|cute/|cub/|thrust/|nvtx)")
HTTP_HEADER = re.compile(r"^httplib")
HTTP_CLIENT = ("apps", "cli", "sweep_server.cc")  # the one client beside the server
PYTHON_HEADER = re.compile(r"^(Python\.h|nanobind/|pybind11/)")
MAX_LINES = 800


def sources(root):
    for top in ("src", "apps", "python", "benchmarks", "tests", "examples"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCES:
                yield path


def violations_of(parts, line):
    """Yields what is wrong with one line of the file whose path below the root is `parts`."""
    match = INCLUDE.match(line)
    if not match:
        return
    bracket, header = match.groups()
    in_library = parts[:2] == ("src", "fovea")
    folder = parts[2] if in_library and len(parts) > 3 else None
    if in_library and CUDA_HEADER.match(header) and "cuda" not in parts[3:-1]:
        yield f"only */cuda/ includes CUDA headers, not {header}"
    knows_http = parts[:2] == ("apps", "server") or parts == HTTP_CLIENT or parts[0] == "tests"
    if HTTP_HEADER.match(header) and not knows_http:
        yield f"only apps/server/ and the sweep's client know HTTP, not {header}"
    if PYTHON_HEADER.match(header) and parts[0] != "python":
        yield f"only python/ knows Python, not {header}"
    if in_library and header.startswith(("apps/", "python/", "tests/", "benchmarks/")):
        yield f"the library does not include {header}"
    elif in_library and bracket == '"' and not header.startswith("fovea/"):
        yield f"write includes from the root of src, not {header}"
    if folder is None or not header.startswith("fovea/"):
        return
    target = header.split("/")[1]
    if target != folder and target not in ALLOWED.get(folder, set()):
        yield f"{folder} must not include {target} ({header})"
    if "reference" in parts and target == folder and ("/cpu/" in header or "/cuda/" in header):
        yield f"reference/ includes only its own contract, not {header}"


def check(root):
    found = []
    for path in sources(root):
        relative = path.relative_to(root)
        parts = relative.parts
        lines = path.read_text(encoding="utf-8").splitlines()
        if parts[:2] == ("src", "fovea") and len(parts) > 3 and parts[2] not in ALLOWED:
            found.append(f"{relative}: folder {parts[2]} is not in the picture; add it to "
                         "docs/architecture.md and to ALLOWED")
        if len(lines) > MAX_LINES:
            found.append(f"{relative}: {len(lines)} lines, at most {MAX_LINES}")
        for number, line in enumerate(lines, 1):
            found.extend(f"{relative}:{number}: {what}" for what in violations_of(parts, line))
    return found


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    if not (root / "src" / "fovea").is_dir():
        sys.exit(f"check_layers.py: {root} has no src/fovea; give the root of the tree")
    found = check(root)
    print("\n".join(found) if found else "layers: no violation")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
