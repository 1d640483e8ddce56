"""Long texts with facts in them and questions about the facts, to train on and to evaluate with.

The sentences are the forms of the project's tasks (src/fovea/quality/data/task_forms.json). A text is
built from groups: facts that belong together, in the order in which they stand, and one question.
"""

import collections
import dataclasses
import functools
import json
import math
import pathlib
import re
from collections.abc import Callable

import numpy as np
import tokenizers

# What a token is for: language loss, no loss (made up, nothing could predict it), or an answer of a
# kind, FIRST_ANSWER + index in ANSWER_KINDS.
TEXT, UNPREDICTABLE, FIRST_ANSWER = 0, 1, 2
ANSWER_KINDS = ("code", "two_word", "list", "trace", "soft", "lives", "works", "stated", "office", "common", "frequent")
DEPTH_OF_LAST_FACT = 0.97
CLEAR_ON_THE_WAY = 1.9   # in a line of words: least ratio of the third word's count to the fourth's
EXACT_LISTS_SHARE = 0.3  # of training texts with lists, whose lists are as the task has them
BEGIN_ID = 0

Words = list[int]  # token ids

# Asked in training only: the second hop of `works` alone, and both with the office named between them.
TRAINING_FORMS = {"where_is": " Where is the {office} office? In {word}.",
                  "where_stated": " Where does {name} work? For the {office} office in {word}."}


@dataclasses.dataclass
class Sentence:
    ids: list[int]
    marks: list[int]  # one a token
    # One a token: the id that the first layers should find where this token is foretold. 0: none.
    thoughts: list[int]
    # By place, in a line of words: the words that stand out so far, but for the one that has just been read.
    outstanding: dict[int, list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Group:
    facts: list[Sentence]
    question: Sentence


@dataclasses.dataclass
class Placed:
    depth: float  # where in the filler, 0 ... 1
    sentence: Sentence
    is_question: bool = False


@dataclasses.dataclass
class Sequence:
    ids: np.ndarray       # [length] int64
    marks: np.ndarray     # [length] int8
    thoughts: np.ndarray  # [length] int64
    outstanding: np.ndarray  # [length, 3] int64: ids of Sentence.outstanding; 0: none
    questions: list[np.ndarray]  # places of each question's answer tokens


class Forms:
    """The sentences of the tasks, cut into token ids and {slots}."""

    def __init__(self, path: pathlib.Path, tokenizer: tokenizers.Tokenizer):
        settings = json.loads(path.read_text())
        self.tokenizer = tokenizer
        self.texts: dict[str, str] = settings["forced"] | TRAINING_FORMS
        self.adjectives = [self.encode(" " + word) for word in settings["adjectives"]]
        self.digits = [self.encode(str(digit))[0] for digit in range(10)]
        self.parts = {name: self._cut(text) for name, text in self.texts.items()}

    def encode(self, text: str) -> Words:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _cut(self, text: str) -> list[tuple[str, Words]]:
        """Pairs (slot, []) and ("", ids) in order. Words bring the blank before them, digits do not."""
        pieces = re.split(r"{(\w+)}", text)  # literal, slot, literal, ..., literal
        parts: list[tuple[str, Words]] = []
        for literal, slot in zip(pieces[::2], [*pieces[1::2], ""]):
            if slot and not slot.startswith("value"):
                literal = literal.removesuffix(" ")
            if literal:
                parts.append(("", self.encode(literal)))
            if slot:
                parts.append((slot, []))
        return parts

    def fill(self, name: str, slots: dict[str, Words], kind: str = "", gaps: tuple[str, ...] = (),
             thought: int = 0) -> Sentence:
        """The form with its slots filled; `gaps` answer a question of `kind`, by way of `thought` if there is one."""
        sentence = Sentence([], [], [])
        for slot, ids in self.parts[name]:
            mark = TEXT
            is_gap = slot in gaps
            if slot:
                ids = slots[slot]
                mark = FIRST_ANSWER + ANSWER_KINDS.index(kind) if is_gap else UNPREDICTABLE
            sentence.ids += ids
            sentence.marks += [mark] * len(ids)
            sentence.thoughts += [thought if is_gap else 0, *[0] * (len(ids) - 1)] if ids else []
        return sentence


class Scene:
    """What one text is about: its names and the keys in use. Makes groups."""

    def __init__(self, forms: Forms, names: list[int], rng: np.random.Generator, num_pool: int, two_word_share: float):
        self.forms, self.rng, self.two_word_share = forms, rng, two_word_share
        self.names = names
        self.pool = [names[i] for i in rng.permutation(len(names))[:num_pool]]  # of codes and colors, shared
        self.unused = [names[i] for i in rng.permutation(len(names))]           # of everything else, once each
        self.used_keys: set[tuple] = set()

    def _pick(self, items: list):
        return items[self.rng.integers(len(items))]

    def _word(self) -> Words:
        return [self._pick(self.names)]

    def _name_once(self) -> Words:
        return [self.unused.pop()] if self.unused else [*self._word(), *self._word()]

    def _value(self) -> Words:
        return [self.forms.digits[d] for d in self.rng.integers(0, 10, 5)]

    def _key(self, topic: str, two_word_share: float) -> dict[str, Words]:
        """An adjective and a name that no other fact on the topic has; names share words when pools are small."""
        for _ in range(50):
            num_words = 2 if self.rng.random() < two_word_share else 1
            name = [self._pick(self.pool) for _ in range(num_words)]
            adjective = self._pick(self.forms.adjectives)
            key = (topic, *adjective, *name)
            if key not in self.used_keys:
                break
        else:
            adjective, name = self._pick(self.forms.adjectives), self._name_once()
            key = (topic, *adjective, *name)
        self.used_keys.add(key)
        return {"adj": adjective, "name": name}

    def code(self, form: str = "") -> Group:
        """A code, asked for in one of two forms or in the one given."""
        slots = self._key("code", self.two_word_share) | {"value": self._value()}
        kind = "code" if len(slots["name"]) == 1 else "two_word"
        form = form or ("question" if self.rng.random() < 0.4 else "recall")
        return Group([self.forms.fill("fact", slots)], self.forms.fill(form, slots, kind, ("value",)))

    def list_of_codes(self) -> Group:
        key = self._key("code", self.two_word_share)
        values = {f"value{i}": self._value() for i in range(1, 5)}
        facts = [self.forms.fill("fact", key | {"value": value}) for value in values.values()]
        return Group(facts, self.forms.fill("list", key | values, "list", tuple(values)))

    def trace(self) -> Group:
        names = [self._name_once() for _ in range(4)]
        slots = {f"name{i}": name for i, name in enumerate(names, 1)} | {"value": self._value()}
        facts = [self.forms.fill("let_value", {"name": names[0], "value": slots["value"]})]
        facts += [self.forms.fill("let_name", {"name": name, "other": other}) for other, name in zip(names, names[1:])]
        return Group(facts, self.forms.fill("trace", slots, "trace", ("name3", "name2", "name1", "value")))

    def soft(self) -> Group:
        slots = self._key("color", self.two_word_share) | {"word": self._word()}
        return Group([self.forms.fill("soft_fact", slots)], self.forms.fill("soft_recall", slots, "soft", ("word",)))

    def lives(self) -> Group:
        slots = {"name": self._name_once(), "word": self._word()}
        question = self.forms.fill("where_lives", slots, "lives", ("word",), thought=slots["word"][0])
        return Group([self.forms.fill("lives", slots)], question)

    def works(self, form: str = "where_works") -> Group:
        """Two hops: who works for which office, and where that is. Often two people share an office.

        The first layers should find the office, the others its place.
        """
        slots = {"name": self._name_once(), "office": self._name_once(), "word": self._word()}
        facts = [self.forms.fill("works", slots), self.forms.fill("office", slots)]
        if self.rng.random() < 0.6:
            facts.append(self.forms.fill("works", slots | {"name": self._name_once()}))
        facts = [facts[i] for i in self.rng.permutation(len(facts))]
        if form == "where_stated":
            return Group(facts, self.forms.fill(form, slots, "stated", ("office", "word")))
        kind = "works" if form == "where_works" else "office"
        return Group(facts, self.forms.fill(form, slots, kind, ("word",), thought=slots["office"][0]))

    def works_somehow(self) -> Group:
        """The same, asked in one of three ways: two of them teach what the first needs."""
        return self.works(str(self.rng.choice(["where_works", "where_stated", "where_is"], p=[0.5, 0.3, 0.2])))


GROUPS: dict[str, Callable[[Scene], Group]] = {
    "code": Scene.code, "list": Scene.list_of_codes, "trace": Scene.trace, "soft": Scene.soft,
    "lives": Scene.lives, "works": Scene.works_somehow}
GROUP_WEIGHTS = {"code": 3.0, "list": 3.0, "trace": 2.5, "soft": 2.0, "lives": 4.0, "works": 12.0}


def word_counts(form: str, num_words: int, num_names: int, rng: np.random.Generator, exact: bool) -> np.ndarray:
    """How often each word occurs in all lines together, the most frequent first.

    common: 3 words 30 times among words that occur 3 times; frequent: Zipf's law with exponent 2. In
    most of training (`exact` false) the figures vary.
    """
    if form == "common":
        ratio, rare = (10, 3) if exact else (int(rng.integers(5, 14)), int(rng.integers(1, 5)))
        num_rare = min(max(4, num_words // rare - 3 * ratio), num_names - 3)
        return np.array([ratio * rare] * 3 + [rare] * num_rare)
    exponent = 2.0 if exact else rng.uniform(1.7, 2.3)
    shares = np.arange(1, num_names + 1) ** -exponent
    counts = np.floor(num_words * shares / shares.sum()).astype(int)
    return counts[counts > 0]


def asked_words(form: str, seen: collections.Counter[int], rng: np.random.Generator, clearly: float = 1.4) -> list[int]:
    """The three words that stand out of those seen so far: in random order, or the most frequent first.

    Empty when it is not clear which they are: when one that matters is not `clearly` times as frequent as the next.
    """
    first = seen.most_common(4)
    clear = [2] if form == "common" else [0, 1, 2]
    if len(first) < 4 or any(first[i][1] < clearly * first[i + 1][1] for i in clear):
        return []
    words = [word for word, _ in first[:3]]
    return [words[i] for i in rng.permutation(3)] if form == "common" else words


def word_lines(forms: Forms, names: list[int], form: str, num_words: int, rng: np.random.Generator,
               exact: bool, ask_depth: float) -> list[Placed]:
    """Lines of words, spread evenly with some chance, and one question about those before it.

    One only: a second answer could be copied from the first.
    """
    counts = word_counts(form, num_words, len(names), rng, exact)
    words = np.repeat(np.array(names)[rng.permutation(len(names))[:len(counts)]], counts)
    words = words[rng.permutation(len(words))].tolist()
    per_line = 16 if exact else int(rng.integers(8, 25))
    lines = [words[i:i + per_line] for i in range(0, len(words), per_line)]
    depths = [DEPTH_OF_LAST_FACT * (i + rng.random()) / len(lines) for i in range(len(lines))]
    placed = [Placed(depth, forms.fill("words", {"words": line})) for depth, line in zip(depths, lines)]
    seen: collections.Counter[int] = collections.Counter()
    for p, line in zip(placed, lines) if form == "common" else ():
        outstanding = asked_words(form, seen, rng, CLEAR_ON_THE_WAY)
        before_first = p.sentence.ids.index(line[0]) - 1  # " Words:" has no name in it
        for place in range(before_first, before_first + len(line)) if outstanding else ():
            p.sentence.outstanding[place] = [word for word in outstanding if word != p.sentence.ids[place]]
        seen.update(line)
    before = collections.Counter(word for depth, line in zip(depths, lines) if depth < ask_depth for word in line)
    asked = asked_words(form, before, rng)
    if asked:
        slots = {f"word{i}": [word] for i, word in enumerate(asked, 1)}
        placed.append(Placed(ask_depth, forms.fill(form, slots, form, tuple(slots)), is_question=True))
    return placed


class SequenceMaker:
    def __init__(self, forms: Forms, names: list[int], filler: np.ndarray):
        """`names`: ids of words; `filler`: the corpus, a flat array of ids."""
        self.forms, self.names, self.filler = forms, names, filler

    def _filler(self, num_tokens: int, rng: np.random.Generator, is_one_stretch: bool) -> np.ndarray:
        """Text from random places: one stretch, or several as if documents followed each other."""
        pieces, left = [], num_tokens
        while left > 0:
            size = left if is_one_stretch else int(min(left, rng.integers(400, 4000)))
            begin = int(rng.integers(0, len(self.filler) - size))
            pieces.append(self.filler[begin:begin + size])
            left -= size
        return np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, np.int64)

    def _lay_out(self, placed: list[Placed], length: int, rng: np.random.Generator, is_one_stretch: bool) -> Sequence:
        """Sentences at their depths in the filler; those of one depth keep their order."""
        num_filler = length - 1 - sum(len(p.sentence.ids) for p in placed)
        if num_filler < 0:
            raise ValueError(f"{len(placed)} sentences do not fit {length} tokens")
        filler = self._filler(num_filler, rng, is_one_stretch)
        ids, marks, thoughts = np.full(length, BEGIN_ID, np.int64), np.zeros(length, np.int8), np.zeros(length, np.int64)
        outstanding = np.zeros((length, 3), np.int64)
        at, next_filler, questions = 1, 0, []
        for p in sorted(placed, key=lambda p: p.depth):
            cut = int(p.depth * num_filler)
            size = cut - next_filler
            ids[at:at + size] = filler[next_filler:cut]
            at, next_filler = at + size, cut
            end = at + len(p.sentence.ids)
            ids[at:end], marks[at:end], thoughts[at:end] = p.sentence.ids, p.sentence.marks, p.sentence.thoughts
            for place, words in p.sentence.outstanding.items():
                outstanding[at + place, :len(words)] = words
            if p.is_question:
                questions.append(at + np.flatnonzero(marks[at:end] >= FIRST_ANSWER))
            at = end
        ids[at:] = filler[next_filler:]
        return Sequence(ids, marks, thoughts, outstanding, questions)

    def training_sequence(self, length: int, rng: np.random.Generator) -> Sequence:
        """Facts and questions are 2 to 65 % of the text (short ones have many), of all kinds in random shares.

        Most have lines of words as well. Questions stand on the way and at the end.
        """
        least = 0.3 if length <= 2048 else 0.08 if length <= 8192 else 0.02
        budget = math.exp(rng.uniform(math.log(least), math.log(0.65))) * length
        num_pool = int(math.exp(rng.uniform(math.log(6), math.log(400))))
        scene = Scene(self.forms, self.names, rng, num_pool, two_word_share=float(rng.choice([0.0, 0.4, 1.0])))
        shares = np.array([GROUP_WEIGHTS[name] for name in GROUPS]) * rng.exponential(1.0, len(GROUPS)) ** 2
        kinds = list(GROUPS.values())
        asked_share = rng.uniform(0.5, 1.0)

        placed: list[Placed] = []
        used = 0
        if rng.random() < 0.9:
            form = "common" if rng.random() < 0.6 else "frequent"
            most = 0.7 if length <= 16384 else 0.4  # short texts can have as many as long ones
            num_words = max(60, int(rng.uniform(0.05, most) * length))
            ask_depth = 1.0 if rng.random() < 0.5 else float(rng.uniform(0.4, 1.0))
            exact = rng.random() < EXACT_LISTS_SHARE
            placed = word_lines(self.forms, self.names, form, num_words, rng, exact, ask_depth)
            used = sum(len(p.sentence.ids) for p in placed)
            budget += used
        for kind in rng.choice(len(kinds), size=length // 16, p=shares / shares.sum()):
            if used >= min(budget, length - 250):
                break
            group = kinds[kind](scene)
            depths = np.sort(rng.uniform(0, DEPTH_OF_LAST_FACT, len(group.facts))).tolist()
            placed += [Placed(depth, fact) for depth, fact in zip(depths, group.facts)]
            used += sum(len(fact.ids) for fact in group.facts)
            if rng.random() < asked_share:
                depth = rng.uniform(depths[-1], 1.0) if rng.random() < 0.6 else 1.0
                placed.append(Placed(depth, group.question, is_question=True))
                used += len(group.question.ids)
        placed = [placed[i] for i in rng.permutation(len(placed))]  # sorting is stable: questions at the end mix
        return self._lay_out(placed, length, rng, is_one_stretch=False)

    def training_batch(self, length: int, num_tokens: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """ids, marks, thoughts [num_tokens / length, length] and outstanding [..., 3]."""
        made: list[Sequence] = []
        while len(made) < num_tokens // length:
            try:
                made.append(self.training_sequence(length, rng))
            except ValueError:
                continue  # more sentences than tokens, which short lengths meet now and then
        return tuple(np.stack([getattr(s, name) for s in made]) for name in ("ids", "marks", "thoughts", "outstanding"))

    def task(self, kind: str, length: int, rng: np.random.Generator) -> Sequence:
        """One text of an evaluation: facts at random depths, its questions at the end.

        As the project's tasks, except that some have more questions a text, which costs nothing.
        """
        if kind in ("common_words", "frequent_words"):
            form = kind.removesuffix("_words")
            placed = word_lines(self.forms, self.names, form, length // 4, rng, True, 1.0)
            return self._lay_out(placed, length, rng, is_one_stretch=True)
        num_facts = max(8, length // 256)
        recall = functools.partial(Scene.code, form="recall")
        question = functools.partial(Scene.code, form="question")
        asked, num_questions, others, num_others = {
            "single": (recall, 1, recall, 0),
            "lookalike": (recall, 1, recall, num_facts - 1),
            "eight": (recall, 8, recall, num_facts - 8),
            "multi_key": (question, 4, question, num_facts - 4),
            "multi_value": (Scene.list_of_codes, 1, recall, num_facts - 1),
            "multi_query": (question, 4, question, num_facts - 4),
            "trace": (Scene.trace, 2, Scene.trace, num_facts // 4 - 2),
            "soft": (Scene.soft, 4, Scene.soft, num_facts - 4),
            "qa_single": (Scene.lives, 4, Scene.lives, num_facts - 4),
            "qa_two_hop": (Scene.works, 2, Scene.works, max(2, num_facts // 3) - 2)}[kind]
        scene = Scene(self.forms, self.names, rng, max(8, num_facts // 4), 1.0 if kind == "multi_key" else 0.0)
        groups = [asked(scene) for _ in range(num_questions)] + [others(scene) for _ in range(num_others)]
        placed = [Placed(depth, fact) for group in groups for depth, fact in zip(
            np.sort(rng.uniform(0, DEPTH_OF_LAST_FACT, len(group.facts))).tolist(), group.facts)]
        placed += [Placed(1.0, group.question, is_question=True) for group in groups[:num_questions]]
        return self._lay_out(placed, length, rng, is_one_stretch=True)


TASKS = ("single", "lookalike", "eight", "multi_key", "multi_value", "multi_query", "trace", "soft", "qa_single",
         "qa_two_hop", "common_words", "frequent_words")


def jumping_positions(batch: int, length: int, limit: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Positions [batch, length]; a share of the rows leaps ahead at up to eight places, but stays below `limit`.

    So short texts train distances that only long ones would have.
    """
    positions = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
    for row in positions:
        if length < limit and rng.random() < share:
            cuts = np.sort(rng.integers(0, length, int(rng.integers(1, 9))))
            leaps = rng.dirichlet(np.ones(len(cuts))) * rng.uniform(0, limit - length)
            for cut, leap in zip(cuts, leaps.astype(np.int32)):
                row[cut:] += leap
    return positions
