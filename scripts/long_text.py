#!/usr/bin/env python3
"""Put together a long real text from files that any Debian machine carries.

    scripts/long_text.py --bytes 2000000 -o build/long_text.txt
    scripts/long_text.py --kind prose --bytes 400000 -o build/prose.txt

Files come in a fixed order (sorted by path within each source), each once however many links lead to
it, and only if they are UTF-8: the same machine gives the same text every time. Kinds: `prose` is
licences, documentation and package descriptions; `code` is Python's standard library, Perl modules
and system headers; `mixed` (the default) takes files of the two in turn. A minimal machine has less
prose than asked for; then the rest is code.
"""

import argparse
import gzip
import hashlib
import itertools
import os
import sys
import sysconfig

PROSE = ["/usr/share/common-licenses", "/usr/share/doc"]
CODE = [sysconfig.get_path("stdlib"), "/usr/share/perl", "/usr/include", "/usr/lib/python3"]
PROSE_NAMES = ("", ".txt", ".md", ".rst", ".gz")
CODE_NAMES = (".py", ".pm", ".pod", ".pl", ".h")
LARGEST_FILE = 400_000
SMALLEST_FILE = 500


def paths_of(folders, suffixes):
    """Files below the folders, folder by folder, sorted by path; links are not followed."""
    for folder in folders:
        for root, subfolders, names in os.walk(folder):
            subfolders.sort()
            for name in sorted(names):
                path = os.path.join(root, name)
                if os.path.splitext(name)[1] in suffixes and not os.path.islink(path):
                    yield path


def text_of(path):
    """The file's text, or None when it is not text worth reading."""
    try:
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if not SMALLEST_FILE <= len(data) <= LARGEST_FILE or b"\0" in data:
            return None
        return data.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError, gzip.zlib.error):
        return None


def in_turn(first, second):
    """Items of the two, alternating, until both are spent."""
    for pair in itertools.zip_longest(first, second):
        yield from (item for item in pair if item is not None)


def long_text(kind, num_bytes):
    """At least one byte and at most `num_bytes` of text, cut at the end of a line."""
    prose, code = paths_of(PROSE, PROSE_NAMES), paths_of(CODE, CODE_NAMES)
    paths = {"prose": itertools.chain(prose, code), "code": itertools.chain(code, prose),
             "mixed": in_turn(prose, code)}[kind]
    pieces, size, seen = [], 0, set()
    for path in paths:
        if size >= num_bytes:
            break
        text = text_of(path)
        if text is None:
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if digest in seen:
            continue
        seen.add(digest)
        pieces.append(text.rstrip("\n") + "\n\n")
        size += len(pieces[-1].encode())
    data = "".join(pieces).encode()[:num_bytes]
    return data[:data.rfind(b"\n") + 1]


def main():
    parser = argparse.ArgumentParser(description="Put together a long real text from this machine's files.")
    parser.add_argument("--bytes", type=int, default=2_000_000, help="size to aim at (default: %(default)s)")
    parser.add_argument("--kind", choices=["prose", "code", "mixed"], default="mixed")
    parser.add_argument("-o", "--output", default="-", help="file to write; - is standard output")
    args = parser.parse_args()
    if args.bytes <= 0:
        parser.error("--bytes must be positive")
    data = long_text(args.kind, args.bytes)
    if len(data) < args.bytes // 2:
        print(f"long_text: error: found {len(data)} of {args.bytes} bytes of text on this machine",
              file=sys.stderr)
        return 1
    if args.output == "-":
        sys.stdout.buffer.write(data)
        return 0
    partial = args.output + ".part"
    try:
        os.makedirs(os.path.dirname(args.output) or ".", exist_ok=True)
        with open(partial, "wb") as file:
            file.write(data)
        os.replace(partial, args.output)
    except OSError as error:
        print(f"long_text: error: cannot write {args.output}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{args.output}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:16]}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
