#!/usr/bin/env python3
"""The texts that the needle model is trained on: scripts/train_needle/sequences.py with needle_17m's tokenizer.

Exit 77, which CTest shows as skipped, where numpy or tokenizers is absent.
"""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/train_needle"))
try:
    import numpy as np
    import tokenizers

    import sequences
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


class TrainingTexts(unittest.TestCase):
    def setUp(self):
        self.tokenizer = tokenizers.Tokenizer.from_file(str(ROOT / "models/needle_17m/tokenizer.json"))
        self.forms = sequences.Forms(ROOT / "src/fovea/quality/data/task_forms.json", self.tokenizer)
        words = sorted({word for word in (ROOT / "LICENSE").read_text().split() if word.isalpha() and word.islower()})
        ids = [self.forms.encode(" " + word) for word in words if len(word) >= 4]
        self.names = [word_ids[0] for word_ids in ids if len(word_ids) == 1]
        self.assertGreater(len(self.names), 100)
        filler = np.array(self.forms.encode((ROOT / "LICENSE").read_text()) * 10)
        self.maker = sequences.SequenceMaker(self.forms, self.names, filler)

    def test_a_sentence_of_parts_has_the_tokens_of_the_whole(self):
        scene = sequences.Scene(self.forms, self.names, np.random.default_rng(1), 20, 0.5)
        for make in sequences.GROUPS.values():
            group = make(scene)
            for sentence in [*group.facts, group.question]:
                self.assertEqual(self.forms.encode(self.tokenizer.decode(sentence.ids)), sentence.ids)
                self.assertEqual(len(sentence.marks), len(sentence.ids))

    def test_one_seed_makes_one_batch(self):
        first, again, other = (self.maker.training_batch(512, 4096, np.random.default_rng(seed)) for seed in (1, 1, 2))
        self.assertEqual(first[0].shape, (8, 512))
        self.assertTrue((first[0] == again[0]).all() and (first[1] == again[1]).all())
        self.assertFalse((first[0] == other[0]).all())
        self.assertTrue((first[0][:, 0] == sequences.BEGIN_ID).all())

    def test_the_first_layers_are_asked_for_the_office(self):
        scene = sequences.Scene(self.forms, self.names, np.random.default_rng(1), 20, 0.5)
        for form in ("where_works", "where_is"):
            group = scene.works(form)
            at = [i for i, thought in enumerate(group.question.thoughts) if thought]
            self.assertEqual(at, [i for i, mark in enumerate(group.question.marks) if mark >= sequences.FIRST_ANSWER])
            office = self.tokenizer.decode([group.question.thoughts[at[0]]])
            texts = [self.tokenizer.decode(fact.ids) for fact in group.facts]
            self.assertTrue(any(text.startswith(f" The{office} office is in ") for text in texts), texts)

    def test_lists_are_asked_about_once(self):
        ids, marks, _ = self.maker.training_batch(2048, 2048 * 16, np.random.default_rng(1))
        for form in ("common", "frequent"):
            kind = sequences.FIRST_ANSWER + sequences.ANSWER_KINDS.index(form)
            counts = (marks == kind).sum(axis=1)
            self.assertEqual(set(counts.tolist()), {0, 3}, form)

    def test_the_first_layers_are_asked_how_often_a_word_of_lists_has_occurred(self):
        lines = sequences.count_thoughts(self.forms, [[5, 6, 5], [7, 5, 5, 6]])
        steps = [[self.forms.count_ids.index(thought) for thought in line] for line in lines]
        self.assertEqual(steps, [[0, 0, 2], [0, 3, 4, 2]])  # 1, 1, 2; 1, 3, 4, 2 times

        rng = np.random.default_rng(1)
        for placed in sequences.word_lines(self.forms, self.names, "common", 400, rng, True, 1.0)[:-1]:
            ids, thoughts = placed.sentence.ids, placed.sentence.thoughts
            foretold_after = [ids[i - 1] in self.names for i in range(len(ids)) if thoughts[i]]
            self.assertEqual(len(thoughts), len(ids))
            self.assertTrue(all(foretold_after))
            self.assertEqual(len(foretold_after), sum(word in self.names for word in ids))

    def test_every_task_has_its_answers_among_its_facts(self):
        for kind in sequences.TASKS:
            task = self.maker.task(kind, 2048, np.random.default_rng(1))
            self.assertEqual(len(task.ids), 2048, kind)
            text = self.tokenizer.decode(task.ids.tolist())
            before = text[:max(text.rfind(start) for start in (" Recall:", " Question:", " List:", " Trace:",
                                                               " Where does", " Common:", " Frequent:"))]
            last = task.ids[task.questions[-1]].tolist()
            answers = [last[-5:]] if len(last) >= 5 else [[word] for word in last]  # five digits, or words
            for answer in answers:
                self.assertIn(self.tokenizer.decode(answer), before, kind)

    def test_positions_only_ever_leap_ahead_and_stay_below_the_limit(self):
        positions = sequences.jumping_positions(16, 256, 4096, 1.0, np.random.default_rng(1))
        self.assertTrue((np.diff(positions, axis=1) >= 1).all())
        self.assertTrue((positions >= 0).all() and (positions < 4096).all())
        self.assertTrue((positions[:, -1] > 255).any())


if __name__ == "__main__":
    unittest.main()
