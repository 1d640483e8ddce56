#!/usr/bin/env python3
"""Holds our token ids against an oracle's on mixed lines, and writes the golden lines that CI uses.

usage: scripts/check_tokenizer.py --tokenize BUILD/tests/tokenizer/tokenize_lines MODEL [--lines N]
       scripts/check_tokenizer.py --tokenize ... --pre llama-bpe DIRECTORY [--lines N]
       scripts/check_tokenizer.py --write-golden tests/golden/needle_7m_ids.gz MODEL [--lines N]

MODEL is a .gguf file (oracle: llama-cpp-python; the gguf package reads its metadata) or a directory with
tokenizer.json (oracle: tokenizers). With --pre, a GGUF file is made of the directory's vocabulary and that
pre-tokenizer name, so that each name can be checked without its model. Half of the checked lines come from files of a Debian system, half are
generated; golden lines are all generated. Prints lines, equal lines and tokens by kind of line, the first
differences, and one JSON line. Exit 1 when any line differs, 77 when the model
is absent or the oracle is not installed.
"""
import argparse
import array
import collections
import gzip
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

REAL_FILES = {
    "text": ["/usr/share/common-licenses/*", "/usr/share/doc/*/copyright", "/usr/share/doc/*/README*"],
    "code": ["/usr/lib/python3*/*.py", "/usr/include/*.h", "/usr/include/c++/*/bits/*.h",
             "/usr/share/perl*/**/*.pm", "/etc/*.conf"],
    "locale": ["/usr/share/i18n/locales/*", "/usr/share/zoneinfo/*.tab", "/var/lib/dpkg/status"],
}
WORDS = """the quick reader opened seven doors and didn't close them; we've seen that it's late, I'll go
they're here you'd know HTTP SHA256 camelCase snake_case vec3 x86_64 don't CAN'T WE'LL naive cooperate
attention kernel register token needle hay stack sparse dense radius page block query value Umlaut straße
café résumé señor über Århus Łódź Việt İstanbul ſtrange ﬁne Ⅳ ² ½ ① ａｂｃ １２３""".split()
CODE = ["for (int i = 0; i < n; ++i) {", "\treturn x != nullptr ? *x : -1;", "def f(self, *args, **kw):",
        "    if a<=b and not c: d[e] += 0x1F", "#include <vector>", "// TODO(no one): 3.14e-10f",
        "SELECT * FROM t WHERE a='b';", "<a href=\"x\">y</a>", "${HOME}/bin:$PATH", "\\d+\\s*(?:\\w|$)",
        "a=b+c*d/e%f^g&h|~i", "}}}}]])));;;", "/* ---- */", "'''doc'''", "std::vector<std::string>{}"]
# Ranges of scripts: Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Tamil, Thai, Tibetan, Georgian,
# Hangul, Ethiopic, Khmer, Mongolian, kana, CJK and its extension B, Hangul syllables, Gothic, cuneiform.
SCRIPTS = [(0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x5D0, 0x5EA), (0x620, 0x6FF), (0x900, 0x97F),
           (0xB80, 0xBFF), (0xE01, 0xE5B), (0xF00, 0xFBC), (0x10A0, 0x10FF), (0x1100, 0x11FF),
           (0x1200, 0x137C), (0x1780, 0x17F9), (0x1800, 0x18AA), (0x3041, 0x30FF), (0x4E00, 0x9FFF),
           (0x20000, 0x2A6DF), (0xAC00, 0xD7A3), (0x10330, 0x1034A), (0x12000, 0x12399)]
SYMBOLS = [(0x2000, 0x206F), (0x20A0, 0x20C0), (0x2100, 0x218B), (0x2190, 0x23FF), (0x2500, 0x27BF),
           (0x3000, 0x303F), (0xFE00, 0xFE4F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0xE000, 0xE010)]
EMOJI = [(0x1F300, 0x1F64F), (0x1F680, 0x1F6FF), (0x1F900, 0x1F9FF), (0x1F1E6, 0x1F1FF),
         (0x1F3FB, 0x1F3FF), (0x2600, 0x26FF)]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\v", "\f", "\x85", "\xa0", "\u1680", "\u180e", "\u2003",
          "\u2028", "\u202f", "\u205f", "\u3000", "\u200b", "\ufeff", "\u2581"]
SPECIAL = ["<|im_start|>", "<|endoftext|>", "<bos>", "<end_of_turn>", "<0x41>", "<unk>", "<table>", "</s>",
           "[multimodal]", "<unused7>", "<|im_end", "|>", "<h1>"]


def pick(rng, ranges):
    low, high = rng.choice(ranges)
    return chr(rng.randint(low, high))


def words(rng):
    sep = rng.choice([" ", " ", " ", ", ", "-", "  ", "\n", "/"])
    return sep.join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))


def code(rng):
    return rng.choice(["\n", "\n  ", " ", "\t"]).join(rng.choice(CODE) for _ in range(rng.randint(1, 3)))


def scripts(rng):
    script = rng.choice(SCRIPTS)
    return "".join(" " if rng.random() < 0.15 else pick(rng, [script]) for _ in range(rng.randint(1, 20)))


def symbols(rng):
    return "".join(pick(rng, SYMBOLS) if rng.random() < 0.7 else rng.choice(" a1.'") for _ in range(rng.randint(1, 12)))


def emoji(rng):
    joiners = ["\u200d", "\ufe0f", " ", "", ""]
    return "".join(pick(rng, EMOJI) + rng.choice(joiners) for _ in range(rng.randint(1, 6)))


def combining(rng):
    return "".join(rng.choice("aeiouAEInsz ") + "".join(chr(rng.randint(0x300, 0x36F))
                   for _ in range(rng.randint(0, 4))) for _ in range(rng.randint(1, 8)))


def spaces(rng):
    return "".join(rng.choice(SPACES) * rng.choice([1, 1, 2, 3, 8, 33]) + rng.choice(["", "a", "1", ".", "'s"])
                   for _ in range(rng.randint(1, 6)))


def digits(rng):
    return "".join(rng.choice("0123456789") if rng.random() < 0.8 else rng.choice(" .,-:/eE%٣५Ⅷ½")
                   for _ in range(rng.randint(1, 24)))


def long_words(rng):
    kind = rng.choice(["repeat", "mixed", "punctuation"])
    if kind == "repeat":
        return rng.choice(["a", "ab", "=", "-", "x\u0301", "ha", "\n", "0", "#"]) * rng.randint(10, 80)
    letters = "etaoinshrdlucmfwypvbgkqjxzETAOIN" if kind == "mixed" else "!@#$%^&*()_+-=[]{};':\",./<>?"
    return "".join(rng.choice(letters) for _ in range(rng.randint(20, 90)))


def control(rng):
    return "".join(chr(rng.choice([*range(0x20), 0x7F, *range(0x80, 0xA0), 0x41])) for _ in range(rng.randint(1, 16)))


def any_unicode(rng):
    out = []
    while len(out) < rng.randint(1, 10):
        point = rng.choice([rng.randint(0x80, 0x2FFF), rng.randint(0x3000, 0xFFFF), rng.randint(0x10000, 0x10FFFF)])
        if not 0xD800 <= point < 0xE000:
            out.append(chr(point))
    return "".join(out)


def special(rng):
    return "".join(rng.choice(SPECIAL + [" ", "a", "\n"]) for _ in range(rng.randint(1, 6)))


def malformed(rng):
    data = bytearray(rng.choice([words, scripts, emoji])(rng).encode())
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        how = rng.randrange(5)
        if how == 0:
            data[at:at] = bytes([rng.randint(0x80, 0xFF)])
        elif how == 1:
            del data[at:at + 1]
        elif how == 2:
            data[at:at] = rng.choice([b"\xc0\x80", b"\xc1\xa1", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xed\xbf\xbf",
                                      b"\xf0\x80\x80\xa0", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff\xfe", b"\xfc\x80"])
        elif how == 3:
            del data[at:]
        elif data:
            data[rng.randrange(len(data))] ^= 0x80
    return bytes(data)


GENERATORS = [words, code, scripts, symbols, emoji, combining, spaces, digits, long_words, control,
              any_unicode, special, malformed]


def generated_lines(rng, count):
    for i in range(count):
        generator = GENERATORS[i % len(GENERATORS)]
        line = generator(rng)
        yield generator.__name__, line if isinstance(line, bytes) else line.encode()


def real_lines(rng, count):
    """Lines of files that a Debian system has, the same share of each kind, long ones cut."""
    for kind, patterns in REAL_FILES.items():
        pool = []
        for pattern in patterns:
            files = sorted(p for p in pathlib.Path("/").glob(pattern[1:]) if p.is_file())
            for path in rng.sample(files, min(40, len(files))):
                lines = path.read_bytes().split(b"\n")
                pool += [line[:2000] + b"\n" for line in rng.sample(lines, min(100, len(lines))) if line]
        rng.shuffle(pool)
        yield from ((kind, line) for line in pool[:count // len(REAL_FILES)])


def above_unicode(line):
    """True where llama.cpp's own UTF-8 reader fails: sequences above U+10FFFF."""
    return any((a == 0xF4 and b >= 0x90 or 0xF4 < a < 0xF8) and b & 0xC0 == 0x80 for a, b in zip(line, line[1:]))


def repair(line):
    """What our byte-level BPE makes of malformed UTF-8: see repair_utf8 in utf8.h."""
    out, i = [], 0
    while i < len(line):
        first = line[i]
        size = 1 if first < 0x80 else 0 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4 if first < 0xF8 else 0
        rest = line[i + 1:i + size]
        if size == 0 or len(rest) < size - 1 or any(b & 0xC0 != 0x80 for b in rest):
            out.append("\ufffd")
            i += 1
            continue
        point = first if size == 1 else first & (0x7F >> size)
        for b in rest:
            point = point << 6 | b & 0x3F
        out.append(chr(point) if point <= 0x10FFFF else "\ufffd")
        i += size if point <= 0x10FFFF else 1
    return "".join(out)


class GgufOracle:
    name = "llama-cpp-python"

    def __init__(self, path):
        import llama_cpp
        self.llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        self.path = path

    def covers(self, line):
        # llama.cpp takes "</s>" for an end-of-turn token in any vocabulary, so also where the file has it as
        # an HTML tag (Gemma). We follow the file, as the model was trained.
        return not above_unicode(line) and b"</s>" not in line

    def ids(self, line):
        return self.llama.tokenize(line, add_bos=False, special=False) if line else []

    def argument(self, folder):
        """Metadata as the JSON that tokenize_lines reads."""
        from gguf import GGUFReader
        fields = GGUFReader(self.path).fields
        prefix = "tokenizer.ggml."
        out = {"scores": [], "merges": [], "token_type": [], "pre": ""}
        for key in ("model", "pre", "tokens", "scores", "token_type", "merges", "add_space_prefix",
                    "bos_token_id", "unknown_token_id"):
            if prefix + key in fields:
                out[key] = fields[prefix + key].contents()
        path = pathlib.Path(folder) / "fields.json"
        path.write_text(json.dumps(out))
        return str(path)


class JsonOracle:
    name = "tokenizers"

    def __init__(self, path):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        self.tokenizer.encode_special_tokens = True  # control tokens in text are letters
        self.path = path

    def covers(self, line):
        return not any(0xD800 <= ord(c) < 0xE000 for c in repair(line))  # it takes no surrogates

    def ids(self, line):
        return self.tokenizer.encode(repair(line), add_special_tokens=False).ids

    def argument(self, folder):
        return str(self.path)


def write_gguf(directory, pre, path):
    """The vocabulary of directory/tokenizer.json as a GGUF file without tensors."""
    import gguf
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def our_ids(program, argument, lines):
    request = b"".join(struct.pack("<I", len(line)) + line for line in lines)
    reply = subprocess.run([program, argument], input=request, stdout=subprocess.PIPE, check=True).stdout
    values = array.array("i", reply)
    at = 0
    for _ in lines:
        count = values[at]
        yield list(values[at + 1:at + 1 + count])
        at += 1 + count


def fnv1a(ids):
    """32-bit FNV-1a over the ids as 4-byte little-endian integers."""
    value = 0x811C9DC5
    for byte in struct.pack(f"<{len(ids)}i", *ids):
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def write_golden(oracle, path, count, seed):
    lines = [line for _, line in generated_lines(random.Random(seed), 2 * count) if oracle.covers(line)][:count]
    records = b"".join(struct.pack("<II", len(line), fnv1a(oracle.ids(line))) + line for line in lines)
    path.write_bytes(gzip.compress(records, 9, mtime=0))
    print(f"{path}: {len(lines)} lines, {path.stat().st_size} bytes, oracle {oracle.name}")


def check(oracle, program, count, seed):
    rng = random.Random(seed)
    labelled = [*real_lines(rng, count // 2), *generated_lines(rng, count - count // 2)]
    labelled = [(kind, line) for kind, line in labelled if oracle.covers(line)]
    with tempfile.TemporaryDirectory() as folder:
        ours = list(our_ids(program, oracle.argument(folder), [line for _, line in labelled]))
    totals, equal, tokens = collections.Counter(), collections.Counter(), collections.Counter()
    shown = 0
    for (kind, line), mine in zip(labelled, ours):
        theirs = oracle.ids(line)
        totals[kind] += 1
        tokens[kind] += len(theirs)
        if mine == theirs:
            equal[kind] += 1
        elif shown < 20:
            shown += 1
            at = next((i for i, (a, b) in enumerate(zip(mine, theirs)) if a != b), min(len(mine), len(theirs)))
            print(f"differs ({kind}) at token {at}: {line[:120]!r}\n  ours {mine[at:at + 8]}\n  oracle {theirs[at:at + 8]}")
    for kind in totals:
        print(f"{kind:12} {totals[kind]:6} lines {equal[kind]:6} equal {tokens[kind]:8} tokens")
    print(json.dumps({"model": str(oracle.path.name), "oracle": oracle.name, "seed": seed,
                      "lines": totals.total(), "equal": equal.total(), "tokens": tokens.total()}))
    return 0 if totals == equal else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--tokenize", help="the tokenize_lines program")
    parser.add_argument("--pre", help="name of a pre-tokenizer to check with the directory's vocabulary")
    parser.add_argument("--write-golden", type=pathlib.Path)
    parser.add_argument("--lines", type=int, default=12000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if bool(args.tokenize) == bool(args.write_golden):
        parser.error("give either --tokenize or --write-golden")
    if not args.model.exists():
        print(f"skipped: no {args.model}")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        model = args.model
        try:
            if args.pre:
                model = pathlib.Path(folder) / f"{args.pre}.gguf"
                write_gguf(args.model, args.pre, model)
            oracle = GgufOracle(model) if model.is_file() else JsonOracle(model)
        except ImportError as error:
            print(f"skipped: {error}")
            return 77
        if args.write_golden:
            write_golden(oracle, args.write_golden, args.lines, args.seed)
            return 0
        return check(oracle, args.tokenize, args.lines, args.seed)


if __name__ == "__main__":
    sys.exit(main())
