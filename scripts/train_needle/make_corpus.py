#!/usr/bin/env python3
"""Make the text that the needle model's facts are hidden in: a corpus of token ids and the tokenizer.

    scripts/train_needle/make_corpus.py --other build/long_text.txt -o build/needle_corpus FOLDER...

A folder holds one unpacked package of documentation or source. Files are drawn in an order that the
seed fixes until the folder's share is full; one in twenty, by the hash of its text, is held out for
evaluation. `--other` is text that the model should not resemble at all, for a second evaluation.

Writes corpus.npz (uint16 arrays train, held_out, other, and names: the words that facts are about),
tokenizer.json and manifest.json.
"""

import argparse
import collections
import hashlib
import html.parser
import json
import pathlib
import random
import re
import sys

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

FORMS = pathlib.Path(__file__).resolve().parents[2] / "src/fovea/quality/data/task_forms.json"
SUFFIXES = (".html", ".txt", ".rst", ".md", ".py", ".go", ".rs")
SMALLEST_FILE, LARGEST_FILE = 1_000, 2_000_000
LARGEST_DOCUMENT = 100_000  # characters: no file makes up much of the corpus
VOCAB_SIZE = 4096
NUM_NAMES = 1400  # the most common lower-case words: each is one token, and can be a name
BEGIN = "<|endoftext|>"
# Splits words as Qwen's tokenizers do: a digit is a token, a word takes the space before it.
WORD_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")


class PageText(html.parser.HTMLParser):
    """The words of an HTML page, without navigation, scripts and styles."""

    SKIPPED = {"head", "script", "style", "nav", "svg"}
    BLOCKS = {"p", "div", "li", "tr", "h1", "h2", "h3", "h4", "br", "dt", "dd", "pre", "section"}

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.depth_skipped = 0

    def handle_starttag(self, tag: str, attrs: list) -> None:
        if tag in self.SKIPPED:
            self.depth_skipped += 1
        elif tag in self.BLOCKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.SKIPPED:
            self.depth_skipped = max(0, self.depth_skipped - 1)

    def handle_data(self, data: str) -> None:
        if not self.depth_skipped:
            self.pieces.append(data)


def document_text(path: pathlib.Path) -> str | None:
    """The file's text in ASCII, or None when it is too short, too long or not in English."""
    if not SMALLEST_FILE <= path.stat().st_size <= LARGEST_FILE:
        return None
    text = path.read_text(encoding="utf-8", errors="ignore")
    if path.suffix == ".html":
        page = PageText()
        page.feed(text)
        text = "".join(page.pieces)
    ascii_text = text.encode("ascii", "ignore").decode()
    is_english = len(ascii_text) > 0.98 * len(text)
    return ascii_text[:LARGEST_DOCUMENT] if is_english else None


def without_boilerplate(text: str, line_counts: collections.Counter) -> str:
    """Drops lines that stand in many files of a package (licences, menus) and runs of empty lines."""
    kept = []
    for line in (line.rstrip() for line in text.split("\n")):
        line_counts[line] += 1
        repeated = len(line) > 15 and line_counts[line] > 8
        if not repeated and (line or (kept and kept[-1])):
            kept.append(line)
    return "\n".join(kept).strip() + "\n"


def read_folder(folder: pathlib.Path, num_chars: int, seed: int) -> list[str]:
    """Documents of about `num_chars` characters in all, each text once."""
    paths = sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES and p.is_file() and not p.is_symlink())
    random.Random(seed).shuffle(paths)
    documents, seen, size = [], set(), 0
    line_counts: collections.Counter = collections.Counter()
    for path in paths:
        if size >= num_chars:
            break
        text = document_text(path)
        if text is None:
            continue
        text = without_boilerplate(text, line_counts)
        if len(text) >= SMALLEST_FILE and text not in seen:
            seen.add(text)
            documents.append(text)
            size += len(text)
    return documents


def is_held_out(document: str) -> bool:
    return hashlib.sha256(document.encode()).digest()[0] % 20 == 0


def common_words(documents: list[str], num_words: int) -> list[str]:
    counts = collections.Counter(word for d in documents for word in re.findall(r"(?<= )[a-z]{4,}\b", d))
    return [word for word, _ in counts.most_common(num_words)]


def form_words(forms: dict[str, str]) -> list[str]:
    """Words of the sentences themselves, without what fills them in."""
    return sorted({word for form in forms.values() for word in re.findall(r"[A-Za-z]+", re.sub(r"{.*?}", "", form))})


def train_tokenizer(documents: list[str], whole_words: list[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE in which each of `whole_words` after a space is one token."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(WORD_PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=[BEGIN], show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    often = [" " + " ".join(whole_words)] * 2000
    tokenizer.train_from_iterator([d[:20_000] for d in documents] + often, trainer)
    begin_id = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin_id)])
    return tokenizer


def token_array(tokenizer: tokenizers.Tokenizer, documents: list[str]) -> np.ndarray:
    """Ids of all documents, each after the begin token."""
    return np.concatenate([np.asarray(e.ids, np.uint16) for e in tokenizer.encode_batch(documents)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path, help="one unpacked package each")
    parser.add_argument("--other", type=pathlib.Path, required=True, help="text of another kind, for evaluation")
    parser.add_argument("--forms", type=pathlib.Path, default=FORMS, help="the tasks' sentences, whose words stay whole")
    parser.add_argument("--chars-per-folder", type=int, default=3_500_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    args = parser.parse_args()

    manifest, train, held_out = [], [], []
    for folder in args.folders:
        documents = read_folder(folder, args.chars_per_folder, args.seed)
        digest = hashlib.sha256("\0".join(documents).encode()).hexdigest()
        manifest.append({"package": folder.name, "documents": len(documents),
                         "characters": sum(map(len, documents)), "sha256": digest})
        print(f"{folder.name}: {len(documents)} documents, {manifest[-1]['characters']} characters", file=sys.stderr)
        for document in documents:
            (held_out if is_held_out(document) else train).append(document)
    if not train or not held_out:
        parser.error("the folders hold too little text")
    random.Random(args.seed).shuffle(train)
    random.Random(args.seed).shuffle(held_out)

    forms = json.loads(args.forms.read_text())
    names = [word for word in common_words(train, NUM_NAMES) if word not in forms["adjectives"]]
    tokenizer = train_tokenizer(train, names + forms["adjectives"] + form_words(forms["forced"]))
    name_ids = [tokenizer.encode(" " + word, add_special_tokens=False).ids for word in names]
    other = args.other.read_text(encoding="utf-8")
    arrays = {"train": token_array(tokenizer, train), "held_out": token_array(tokenizer, held_out),
              "other": token_array(tokenizer, [other]),
              "names": np.asarray([ids[0] for ids in name_ids if len(ids) == 1], np.uint16)}
    args.output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.output / "tokenizer.json"))
    np.savez_compressed(args.output / "corpus.npz", **arrays)
    sizes = {name: int(array.size) for name, array in arrays.items()}
    (args.output / "manifest.json").write_text(json.dumps(
        {"seed": args.seed, "tokens": sizes, "packages": manifest,
         "other_sha256": hashlib.sha256(other.encode()).hexdigest()}, indent=1) + "\n")
    print(f"{args.output}: tokens {sizes}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
