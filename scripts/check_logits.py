#!/usr/bin/env python3
"""Compares the engine's logits and greedy text with another engine's on the same weights.

usage: scripts/check_logits.py MODEL [--probe build/release/tests/engine/engine_probe] [--text FILE]
                               [--positions 2000] [--types f32,bf16]
                               [--oracle llama_cpp_f32|llama_cpp|transformers] [--own-rounding]

MODEL is a GGUF file, or a folder in the Hugging Face form (Qwen3 only, unless the oracle is transformers).
llama.cpp rounds activations to 8 bits where weights are quantised, so its own noise is part of the
difference. llama_cpp_f32, the default, gives it the same weights as an F32 file instead, which is made
here and thrown away; transformers multiplies in f32 as well.

Prints, per type: top-1 agreement over teacher-forced positions, how many of the disagreements are near-ties
(the oracle's margin below 0.1), relative error ||ours - theirs|| / ||theirs|| of centred logits, and
greedy text on five prompts up to the first difference. --own-rounding also shows what bf16 costs llama.cpp
itself: its logits on the same weights in BF16 against its own in F32.
Exit 1 when agreement in f32 is below 99 %, when bf16 differs in more than 1 % where there was no near-tie,
or when a text parts where there was none; exit 77 with the reason when the model or the oracle is absent.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

NEAR_TIE = 0.1  # nats
GREEDY_TOKENS = 48
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius because",
    "1, 1, 2, 3, 5, 8,",
]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


class LlamaCpp:
    def __init__(self, path, length):
        try:
            import llama_cpp
        except ImportError:
            skip("python package llama-cpp-python is not installed")
        # Its AMX path, when compiled by GCC 12, loads an empty tile configuration and dies: leave it out.
        low = llama_cpp.llama_cpp
        defaults = low.llama_model_default_params

        def without_extra_buffers():
            params = defaults()
            params.use_extra_bufts = False
            return params

        low.llama_model_default_params = without_extra_buffers
        # It keeps K and V in f16 unless told otherwise: an error of its own, larger than all of ours in f32.
        self.model = llama_cpp.Llama(model_path=str(path), n_ctx=length + GREEDY_TOKENS + 8, n_batch=512,
                                     logits_all=True, verbose=False, type_k=low.GGML_TYPE_F32,
                                     type_v=low.GGML_TYPE_F32)

    def logits(self, ids):
        self.model.reset()
        self.model.eval(ids)
        return self.model.scores[: len(ids)].copy()


def compare(ours, theirs, numpy):
    """(same top-1, the oracle's margin in nats, relative error of centred logits) of every row."""
    same, margins, errors = [], [], []
    for mine, other in zip(ours, theirs):  # row by row: 2,000 rows of 262,144 logits are 2 GB
        same.append(mine.argmax() == other.argmax())
        second, first = numpy.partition(other, -2)[-2:]
        margins.append(first - second)
        centred = other - other.mean()
        errors.append(numpy.linalg.norm(mine - mine.mean() - centred) / numpy.linalg.norm(centred))
    return numpy.array(same), numpy.array(margins), numpy.array(errors)


def qwen3_gguf_items(folder, gguf, numpy):
    """(metadata setter, tensors) of a Qwen3 folder under GGUF's names; no tokenizer, ids are all we need."""
    import json

    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "qwen3":
        skip(f"{folder} is of type {config['model_type']}, only qwen3 folders can be given to llama.cpp")
    names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
             "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
             "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}

    def rename(name):
        name = name.removeprefix("model.").removesuffix(".weight")
        whole = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
        if name in whole:
            return whole[name] + ".weight"
        _, layer, part = name.split(".", 2)
        return f"blk.{layer}.{names[part]}.weight"

    def fill(writer):
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_rope_freq_base(config["rope_theta"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_vocab_size(config["vocab_size"])
        writer.add_tokenizer_model("none")

    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            words = numpy.frombuffer(raw[begin:end], dtype="<u2" if entry["dtype"] == "BF16" else "<f4")
            if entry["dtype"] == "BF16":
                words = (words.astype("<u4") << 16).view("<f4")
            tensors[rename(name)] = words.reshape(entry["shape"])
    return "qwen3", fill, tensors


def gguf_items(path, gguf, numpy):
    """The same of a GGUF file: its metadata as they are, its tensors dequantised."""
    del numpy
    reader = gguf.GGUFReader(str(path))
    architecture = reader.fields["general.architecture"].contents()

    def fill(writer):
        for name, field in reader.fields.items():
            if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
                continue
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)

    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    return architecture, fill, tensors


def write_gguf(model, target, matrix_type):
    """The model as a GGUF file whose matrices are F32 or BF16."""
    try:
        import gguf
        import numpy
    except ImportError as error:
        skip(f"python package {error.name} is not installed")
    items = qwen3_gguf_items if model.is_dir() else gguf_items
    architecture, fill, tensors = items(model, gguf, numpy)
    writer = gguf.GGUFWriter(str(target), architecture)
    fill(writer)
    for name, values in tensors.items():
        kind = gguf.GGMLQuantizationType[matrix_type if values.ndim == 2 else "F32"]
        values = numpy.ascontiguousarray(values, dtype="<f4")
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCppF32(LlamaCpp):
    matrix_type = "F32"

    def __init__(self, path, length):
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder) / "model.gguf"
            write_gguf(path, target, self.matrix_type)
            super().__init__(target, length)


class LlamaCppBf16(LlamaCppF32):
    matrix_type = "BF16"


class Transformers:
    def __init__(self, path, length):
        del length
        try:
            import torch
            import transformers
        except ImportError as error:
            skip(f"python package {error.name} is not installed")
        self.torch = torch
        folder, extra = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", **extra).eval()

    def logits(self, ids):
        with self.torch.no_grad():
            return self.model(self.torch.tensor([ids])).logits[0].float().numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--probe", default="build/release/tests/engine/engine_probe")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--positions", type=int, default=2000)
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--oracle", choices=["llama_cpp_f32", "llama_cpp", "transformers"],
                        default="llama_cpp_f32")
    parser.add_argument("--own-rounding", action="store_true")
    args = parser.parse_args()
    for path in (args.model, args.probe, args.text):
        if not pathlib.Path(path).exists():
            skip(f"{path} is absent")
    try:
        import numpy
    except ImportError:
        skip("python package numpy is not installed")
    classes = {"llama_cpp_f32": LlamaCppF32, "llama_cpp": LlamaCpp, "transformers": Transformers}
    oracle = classes[args.oracle](args.model, args.positions)
    folder = tempfile.TemporaryDirectory()
    scratch = pathlib.Path(folder.name)
    ids_file, out_file = scratch / "ids", scratch / "out"

    def probe(*words):
        return subprocess.run([args.probe, *map(str, words)], check=True, capture_output=True, text=True).stdout

    def encode(text_file):
        probe("encode", args.model, text_file, ids_file)
        return numpy.fromfile(ids_file, dtype="<i4")

    def save(ids):
        numpy.asarray(ids, dtype="<i4").tofile(ids_file)

    def show(name, ours, theirs):
        """Prints one comparison; returns the shares of rows that agree, and that agree or are near-ties."""
        same, margins, errors = compare(ours, theirs, numpy)
        near = ~same & (margins < NEAR_TIE)
        print(f"{name} vs {args.oracle}: {len(same)} positions, top-1 agreement {100 * same.mean():.2f} %, "
              f"{int((~same).sum())} differ ({int(near.sum())} of them near-ties), "
              f"relative error median {numpy.median(errors):.2e}, max {errors.max():.2e}")
        return same.mean(), (same | near).mean()

    good = True
    ids = encode(args.text)[: args.positions].tolist()
    theirs = oracle.logits(ids)
    if args.own_rounding:
        show("llama.cpp's own bf16", LlamaCppBf16(args.model, args.positions).logits(ids), theirs)
    for kind in args.types.split(","):
        save(ids)
        probe("logits", args.model, kind, ids_file, len(ids), out_file)
        ours = numpy.memmap(out_file, dtype="<f4", mode="r").reshape(len(ids), -1)[:, : theirs.shape[1]]
        agreed, excused = show(kind, ours, theirs)
        good &= bool((agreed if kind == "f32" else excused) >= 0.99)

        for number, prompt in enumerate(PROMPTS):
            (scratch / "prompt").write_text(prompt)
            sequence = encode(scratch / "prompt").tolist()
            text = probe("greedy", args.model, kind, ids_file, GREEDY_TOKENS).split("\n")
            verdict = f"equal over {GREEDY_TOKENS} tokens"
            tokens = [int(line.split()[0]) for line in text if line]
            whole = oracle.logits(sequence + tokens)
            for step, token in enumerate(tokens):
                row = numpy.sort(whole[len(sequence) - 1 + step])
                best = int(whole[len(sequence) - 1 + step].argmax())
                if best != token:
                    margin = float(row[-1] - row[-2])
                    verdict = f"parts at token {step} where the oracle's margin is {margin:.3f}"
                    good &= margin < NEAR_TIE
                    break
            print(f"  greedy prompt {number}: {verdict}")
    sys.exit(0 if good else 1)


main()
