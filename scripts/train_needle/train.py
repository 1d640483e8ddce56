#!/usr/bin/env python3
"""Train the needle model on one GPU in minutes, then measure its dense accuracy.

    scripts/train_needle/train.py --corpus build/needle_corpus -o build/needle_model --seconds 270

Writes the checkpoint (config.json, model.safetensors in bf16, tokenizer.json, tokenizer_config.json)
every minute, and curves.json: answer accuracy by time and length, then by task. --tiny is
the same on a CPU with a toy model, to see that everything runs.
"""

import argparse
import dataclasses
import json
import multiprocessing
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator

import numpy as np
import safetensors.torch
import tokenizers
import torch
import torch.utils.data

import model as decoder_model
import sequences

FORMS = pathlib.Path(__file__).resolve().parents[2] / "src/fovea/quality/data/task_forms.json"
# Of batches whose texts are shorter than the stage's by a power of two, so that nothing is forgotten.
SHORTER_SHARE, SHORTER_SHARE_AT_END = 0.25, 0.4
JUMP_SHARE = 0.4        # of texts whose positions leap ahead
DECAY_SHARE = 0.5       # of the time, at the end, in which the learning rate falls to zero
WARM_UP_STEPS = 60
MUON_RATE, ADAM_RATE = 0.02, 2e-3
ANSWER_WEIGHT = 2.0     # of the answers' loss beside the text's
LIST_WEIGHT = 1.0       # of that of common and frequent words, which have a mean of their own: they are few
THOUGHT_WEIGHT = 1.0    # of the loss of what the first layers should find
TOKENS_PER_THOUGHT = 32  # at least: a batch's thoughts, and places in lines, beyond that are left out
LINE_WEIGHT = 1.0       # of that of the words that stand out so far, anywhere in lines of words
SAVE_SECONDS = 60
# Weight of one answer token: kinds with few tokens an answer, and hard kinds, count more.
TOKEN_WEIGHTS = {"code": 1.0, "two_word": 1.5, "list": 0.8, "trace": 1.5, "soft": 5.0, "lives": 5.0, "works": 8.0,
                 "stated": 5.0, "office": 5.0}
LISTS = ("common", "frequent")
COMMON = sequences.FIRST_ANSWER + sequences.ANSWER_KINDS.index("common")

Stages = list[tuple[int, float]]  # length of the training texts, up to a share of the time


def parse_stages(text: str) -> Stages:
    return [(int(length), float(end)) for length, end in (stage.split(":") for stage in text.split(","))]


def stage_length(stages: Stages, progress: float) -> int:
    return next((length for length, end in stages if progress < end), stages[-1][0])


@dataclasses.dataclass
class Material:
    """What texts are made of."""
    forms: sequences.Forms
    names: list[int]
    arrays: dict[str, np.ndarray]  # train, held_out, other

    def maker(self, filler: str) -> sequences.SequenceMaker:
        return sequences.SequenceMaker(self.forms, self.names, self.arrays[filler])


def load_material(corpus: pathlib.Path, forms_path: pathlib.Path) -> Material:
    arrays = dict(np.load(corpus / "corpus.npz"))
    tokenizer = tokenizers.Tokenizer.from_file(str(corpus / "tokenizer.json"))
    return Material(sequences.Forms(forms_path, tokenizer), arrays.pop("names").tolist(), arrays)


class TrainingBatches(torch.utils.data.IterableDataset):
    """Batches without end: ids, marks, positions [batch, length], batch * length being `num_tokens`.

    And the places, in the flattened batch, at which the first layers should find an id, and which
    (0: none, to fill up) [num_tokens / TOKENS_PER_THOUGHT]. As many places in lines of words, and
    which words stand out there [..., 3] (0: fewer, or to fill up).
    """

    def __init__(self, material: Material, num_tokens: int, stages: Stages, seed: int, progress):
        self.maker, self.num_tokens, self.stages, self.seed = material.maker("train"), num_tokens, stages, seed
        self.progress = progress  # shared with the training loop

    def _places(self, found: np.ndarray, known: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Of the places found, those that the batch has room for, and their rows of `known`; then others without."""
        size = self.num_tokens // TOKENS_PER_THOUGHT
        found = rng.permutation(found)[:size]
        places = np.arange(size)  # each once: gradients of one place add up slowly
        rows = np.zeros((size, *known.shape[1:]), np.int64)
        places[:len(found)], rows[:len(found)] = found, known[found]
        return places, rows

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        torch.set_num_threads(1)
        worker = torch.utils.data.get_worker_info()
        rng = np.random.default_rng([self.seed, worker.id if worker else 0])
        while True:
            length = stage_length(self.stages, self.progress.value)
            is_last = length == self.stages[-1][0]
            if length > 512 and rng.random() < (SHORTER_SHARE_AT_END if is_last else SHORTER_SHARE):
                length = 512 << int(rng.integers(0, (length // 512).bit_length() - 1))
            ids, marks, thoughts, outstanding = self.maker.training_batch(length, self.num_tokens, rng)
            before = np.roll(thoughts, -1, 1).reshape(-1)  # no text begins with an answer
            places, known = self._places(np.flatnonzero(before), before, rng)
            outstanding = outstanding.reshape(-1, 3)
            in_lines, words = self._places(np.flatnonzero(outstanding[:, 0]), outstanding, rng)
            positions = sequences.jumping_positions(*ids.shape, 131072, JUMP_SHARE if length > 1024 else 0.0, rng)
            yield tuple(torch.from_numpy(a) for a in (ids.astype(np.int32), marks, positions, places, known, in_lines, words))


class TaskBatches(torch.utils.data.Dataset):
    """Evaluation texts of one length, several to an item: (kind, ids [batch, length], answer places)."""

    def __init__(self, material: Material, filler: str, length: int, num_texts: int, seed: int):
        self.maker, self.length, self.seed = material.maker(filler), length, seed
        self.batch = max(1, min(num_texts, 65536 // length))
        self.num_batches = -(-num_texts // self.batch)

    def __len__(self) -> int:
        return self.num_batches * len(sequences.TASKS)

    def __getitem__(self, index: int) -> tuple[str, np.ndarray, list[list[np.ndarray]]]:
        torch.set_num_threads(1)
        kind = sequences.TASKS[index // self.num_batches]
        rng = np.random.default_rng([self.seed, 2, self.length, index])
        texts = [self.maker.task(kind, self.length, rng) for _ in range(self.batch)]
        return kind, np.stack([t.ids for t in texts]), [t.questions for t in texts]


def losses(hidden, norm, embedding, targets, is_right, weights, eps):
    """Losses of the language, the answers and the lists' answers, and whether the model's first choice is right.

    `targets` [tokens, 3], of which any that `is_right` will do; `weights` [tokens, 3], one column a loss.
    """
    h = decoder_model.rms_norm(hidden, norm, eps)
    logits = torch.nn.functional.linear(h, embedding.to(h.dtype)).float()
    wanted = logits.gather(1, targets).masked_fill(~is_right, -torch.inf)
    nll = torch.logsumexp(logits, -1) - torch.logsumexp(wanted, -1)
    means = (nll[:, None] * weights).sum(0) / weights.sum(0).clamp(min=1)
    return means, ((logits.argmax(-1)[:, None] == targets) & is_right).any(1)


def alternatives(targets: torch.Tensor, marks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets [tokens, 3] and which are right: of three common words any that is still to come."""
    is_common = marks == COMMON
    second = is_common & torch.roll(is_common, -1)
    third = second & torch.roll(is_common, -2)
    return (torch.stack((targets, torch.roll(targets, -1), torch.roll(targets, -2)), 1),
            torch.stack((torch.ones_like(second), second, third), 1))


def named_loss(hidden, norm, embedding, places, names, eps):
    """Loss of naming, in equal shares, the ids of `names` [places, any] but 0 at places of the residual stream."""
    h = decoder_model.rms_norm(hidden[places], norm, eps)
    logits = torch.nn.functional.linear(h, embedding.to(h.dtype)).float()
    is_name = names > 0
    num_names = is_name.sum(1)
    nll = torch.logsumexp(logits, -1) - (logits.gather(1, names) * is_name).sum(1) / num_names.clamp(min=1)
    return (nll * (num_names > 0)).sum() / (num_names > 0).sum().clamp(min=1)


class Tally:
    """Sums of one text length since the last report, kept on the device: nothing waits for them."""

    LOSSES = ("text_loss", "answer_loss", "list_loss", "thought_loss", "line_loss")

    def __init__(self, device: str):
        self.kinds = torch.zeros(len(sequences.ANSWER_KINDS), 2, device=device)  # right, all
        self.losses = torch.zeros(len(self.LOSSES), device=device)
        self.steps = 0

    def add(self, marks: torch.Tensor, hits: torch.Tensor, losses: torch.Tensor) -> None:
        kind = marks.long() - sequences.FIRST_ANSWER
        is_answer = (kind >= 0).float()
        pairs = torch.stack((hits.float() * is_answer, is_answer), 1)
        self.kinds.index_add_(0, kind.clamp(min=0), pairs)
        self.losses += losses
        self.steps += 1

    def report(self) -> dict:
        kinds = {name: round(right / total, 4) for name, (right, total) in
                 zip(sequences.ANSWER_KINDS, self.kinds.tolist()) if total}
        means = (self.losses / self.steps).tolist()
        return {name: round(mean, 3) for name, mean in zip(self.LOSSES, means)} | {"token_accuracy": kinds}


class Trainer:
    def __init__(self, args: argparse.Namespace, config: decoder_model.Config, material: Material):
        self.args, self.config = args, config
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        on_gpu = self.device == "cuda"
        dtype = torch.bfloat16 if on_gpu else torch.float32
        self.parameters = decoder_model.init_parameters(config, self.device, args.seed)
        if args.start:
            start = safetensors.torch.load_file(args.start, self.device)
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(start[name])
        self.decoder = decoder_model.Decoder(config, self.parameters, on_gpu, dtype)
        self.losses = torch.compile(losses) if on_gpu else losses
        self.named_loss = torch.compile(named_loss) if on_gpu else named_loss
        self.cos, self.sin = decoder_model.rope_tables(config, self.device)
        matrices = [p for name, p in self.parameters.items() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in self.parameters.items() if p.ndim == 1 or "embed" in name]
        self.muon = decoder_model.Muon(matrices, MUON_RATE)
        self.adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=on_gpu)
        by_kind = [(0.0, TOKEN_WEIGHTS.get(kind, 0.0), float(kind in LISTS)) for kind in sequences.ANSWER_KINDS]
        self.mark_weights = torch.tensor([(1.0, 0.0, 0.0), (0.0, 0.0, 0.0), *by_kind], device=self.device)
        self.loss_weights = torch.tensor(
            (1.0, ANSWER_WEIGHT, LIST_WEIGHT, THOUGHT_WEIGHT, LINE_WEIGHT), device=self.device)
        self.progress = multiprocessing.Value("d", 0.0)
        batches = TrainingBatches(material, args.batch_tokens, args.stages, args.seed, self.progress)
        self.batches = iter(torch.utils.data.DataLoader(
            batches, batch_size=None, num_workers=args.workers, pin_memory=on_gpu,
            prefetch_factor=2 if args.workers else None))
        self.curve: list[dict] = []

    def step(self, factor: float) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor, float]:
        """One update at `factor` of the learning rates; length, marks, hits, losses (Tally.LOSSES), seconds waited."""
        asked = time.monotonic()
        batch = next(self.batches)
        waited = time.monotonic() - asked
        ids, marks, positions, places, known, in_lines, words = (t.to(self.device, non_blocking=True) for t in batch)
        ids, positions = ids.long(), positions.long().reshape(-1)
        targets = torch.roll(ids, -1, 1).reshape(-1)
        marks = torch.roll(marks, -1, 1)
        marks[:, -1] = sequences.UNPREDICTABLE  # nothing follows the last token
        marks = marks.reshape(-1)
        middle, hidden = self.decoder.hidden(ids, self.cos[positions], self.sin[positions])
        norm, embedding = (self.parameters[name] for name in ("model.norm.weight", "model.embed_tokens.weight"))
        eps = self.config.norm_eps
        means, hits = self.losses(
            hidden, norm, embedding, *alternatives(targets, marks), self.mark_weights[marks.long()], eps)
        thought = self.named_loss(middle, norm, embedding, places, known[:, None], eps)
        line = self.named_loss(hidden, norm, embedding, in_lines, words, eps)
        all_losses = torch.cat((means, torch.stack((thought, line))))
        (all_losses * self.loss_weights).sum().backward()
        for group in self.adam.param_groups:
            group["lr"] = ADAM_RATE * factor
        self.muon.step(factor)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return ids.shape[1], marks, hits, all_losses.detach(), waited

    def train(self) -> None:
        """Steps until the time is spent; reports every few seconds, saves every minute."""
        self.step(0.0)  # compiles
        started = reported = saved = time.monotonic()
        tallies: dict[int, Tally] = {}
        num_steps, waited = 0, 0.0
        while self.progress.value < 1:
            elapsed = time.monotonic() - started
            progress = min(1.0, elapsed / self.args.seconds)
            self.progress.value = progress
            if time.monotonic() - saved >= SAVE_SECONDS:
                saved = time.monotonic()
                decoder_model.save_checkpoint(self.args.output, self.config, self.parameters)
            factor = min(1.0, (num_steps + 1) / WARM_UP_STEPS, max(0.02, (1 - progress) / DECAY_SHARE))
            length, marks, hits, means, wait = self.step(factor)
            tallies.setdefault(length, Tally(self.device)).add(marks, hits, means)
            num_steps += 1
            waited += wait
            if time.monotonic() - reported >= self.args.report_seconds or progress == 1:
                reported = time.monotonic()
                self._report(tallies, elapsed, num_steps, waited)
                tallies = {}
        decoder_model.save_checkpoint(self.args.output, self.config, self.parameters)

    def _report(self, tallies: dict[int, Tally], elapsed: float, num_steps: int, waited: float) -> None:
        for length, tally in sorted(tallies.items()):
            row = {"seconds": round(elapsed, 1), "step": num_steps, "length": length, "steps": tally.steps} | tally.report()
            self.curve.append(row)
            accuracy = " ".join(f"{kind} {value:.3f}" for kind, value in row["token_accuracy"].items())
            print(f"[{elapsed:6.1f}] step {num_steps} length {length} x{tally.steps} waited {waited:.1f} "
                  + " ".join(f"{name.removesuffix('_loss')} {row[name]:.3f}" for name in Tally.LOSSES)
                  + " | " + accuracy, flush=True)


@torch.no_grad()
def evaluate(decoder: decoder_model.Decoder, tasks: TaskBatches, workers: int, deadline: float) -> dict[str, list[int]]:
    """Per kind: answers that are right token by token under teacher forcing, and how many there were.

    As `fovea eval` counts: a value of a list or a word of three is an answer of its own.
    """
    device = decoder.parameters["model.norm.weight"].device
    cos, sin = (t[:tasks.length].repeat(tasks.batch, 1) for t in decoder_model.rope_tables(decoder.config, str(device)))
    counts: dict[str, list[int]] = {}
    loader = torch.utils.data.DataLoader(tasks, batch_size=None, num_workers=workers, collate_fn=lambda item: item)
    for kind, ids, questions in loader:
        if time.monotonic() > deadline:
            break
        hidden = decoder.hidden(torch.from_numpy(ids).to(device), cos, sin)[1].view(tasks.batch, tasks.length, -1)
        right, total = counts.setdefault(kind, [0, 0])
        for text, text_questions in enumerate(questions):
            places = np.concatenate(text_questions)
            choices = decoder.logits(hidden[text, places - 1]).argmax(-1).cpu().numpy()
            hits = choices == ids[text, places]
            if kind == "common_words":  # a set: any of the words that are still to come
                hits = np.array([choice in ids[text, places[i:]] for i, choice in enumerate(choices)])
            answers = answer_spans(text_questions)
            right += sum(bool(hits[begin:end].all()) for begin, end in answers)
            total += len(answers)
        counts[kind] = [right, total]
    return counts


def answer_spans(questions: list[np.ndarray]) -> list[tuple[int, int]]:
    """Runs of neighbouring answer tokens as index pairs into the questions' places, one after another.

    Words that follow each other directly (" Common: a b c") are split: each is a run of its own.
    """
    spans, base = [], 0
    for places in questions:
        breaks = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        if len(places) == 3 and len(breaks) == 2:
            breaks = [0, 1, 2, 3]
        spans += [(base + begin, base + end) for begin, end in zip(breaks, breaks[1:])]
        base += len(places)
    return spans


def rounded(parameters: decoder_model.Parameters) -> decoder_model.Parameters:
    """The parameters as the checkpoint has them."""
    return {name: p.detach().bfloat16().to(p.dtype) for name, p in parameters.items()}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=pathlib.Path, required=True, help="folder written by make_corpus.py")
    parser.add_argument("--forms", type=pathlib.Path, default=FORMS, help="the tasks' sentences")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--start", type=pathlib.Path, help="model.safetensors to go on from (default: random weights)")
    parser.add_argument("--seconds", type=float, default=270, help="training time, after compiling (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds from the start after which measuring stops")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-tokens", type=int, default=65536)
    parser.add_argument("--stages", type=parse_stages, default="512:0.12,2048:0.36,8192:0.64,32768:0.82,65536:1",
                        help="training texts of a length up to a share of the time, comma separated (default: %(default)s)")
    parser.add_argument("--evaluate", default="held_out:65536:16,held_out:16384:24,held_out:4096:48,held_out:1024:64,"
                        "other:16384:24,held_out:32768:16,other:65536:4,held_out:131072:4", help="filler:length:texts, comma separated")
    parser.add_argument("--workers", type=int, default=14, help="processes that make texts")
    parser.add_argument("--report-seconds", type=float, default=5)
    parser.add_argument("--tiny", action="store_true", help="a toy model")
    return parser.parse_args()


def main() -> int:
    began = time.monotonic()
    args = parse_args()
    config = decoder_model.Config()
    if args.tiny:
        config = dataclasses.replace(config, model_dim=64, num_layers=2, thought_layers=1, num_heads=2, num_kv_heads=1, head_dim=32, mlp_dim=96)
    material = load_material(args.corpus, args.forms)
    args.output.mkdir(parents=True, exist_ok=True)
    shutil.copy(args.corpus / "tokenizer.json", args.output)
    trainer = Trainer(args, config, material)
    num_parameters = sum(p.numel() for p in trainer.parameters.values())
    print(f"{num_parameters} parameters on {trainer.device}", flush=True)
    trainer.train()
    print(f"[{time.monotonic() - began:6.1f}] trained", flush=True)

    result = {"seed": args.seed, "seconds": args.seconds, "parameters": num_parameters,
              "stages": args.stages, "config": dataclasses.asdict(config), "curve": trainer.curve, "evaluation": []}
    decoder = decoder_model.Decoder(config, rounded(trainer.parameters), False, trainer.decoder.dtype)
    del trainer.batches
    for item in filter(None, args.evaluate.split(",")):
        filler, length, num_texts = item.split(":")
        tasks = TaskBatches(material, filler, int(length), int(num_texts), args.seed)
        counts = evaluate(decoder, tasks, args.workers, began + args.limit)
        result["evaluation"].append({"filler": filler, "length": int(length), "right_of": counts})
        rates = " ".join(f"{kind} {right / total:.3f}({total})" for kind, (right, total) in counts.items())
        print(f"[{time.monotonic() - began:6.1f}] {filler} {length} {rates}", flush=True)
        (args.output / "curves.json").write_text(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
