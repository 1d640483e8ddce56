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
        ids, marks, _, _ = self.maker.training_batch(2048, 2048 * 16, np.random.default_rng(1))
        for form in ("common", "frequent"):
            kind = sequences.FIRST_ANSWER + sequences.ANSWER_KINDS.index(form)
            counts = (marks == kind).sum(axis=1)
            self.assertEqual(set(counts.tolist()), {0, 3}, form)

    def test_lines_of_words_know_which_stand_out_but_for_the_last_read(self):
        rng = np.random.default_rng(1)
        placed = sequences.word_lines(self.forms, self.names, "common", 900, rng, True, 1.0)
        common = {word for word in placed[-1].sentence.ids if word in self.names}
        line = placed[-2].sentence  # nearly all has been seen
        self.assertEqual(len(common), 3)
        self.assertGreater(len(line.outstanding), 0)
        for place, words in line.outstanding.items():
            self.assertEqual(set(words), common - {line.ids[place]})
            self.assertIn(line.ids[place + 1], self.names)
        self.assertFalse(any(p.sentence.outstanding for p in sequences.word_lines(
            self.forms, self.names, "frequent", 900, rng, True, 1.0)))

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
