"""Makes tests/golden/architectures.json: small models of every architecture, as transformers computes them.

Per model its config.json, as transformers writes it, and the logits of the last 12 of 150 tokens in f32. The
weights are not in the file: `weight` below makes them from their names, tests/engine/architecture_test.cc the same.

Run from the root of the tree with the packages torch 2.15 and transformers 5.24: python tests/golden/make_architectures.py
"""
import json

import numpy as np
import torch
from transformers import (AutoModelForCausalLM, Gemma3TextConfig, GptOssConfig, LlamaConfig, MistralConfig, Qwen2Config,
                          Qwen3Config, Qwen3MoeConfig)

NUM_TOKENS, NUM_ROWS = 150, 12
SIZES = dict(hidden_size=48, intermediate_size=80, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
             vocab_size=32, max_position_embeddings=512, num_hidden_layers=3, bos_token_id=None, eos_token_id=None,
             pad_token_id=None)
CONFIGS = {
    "llama": LlamaConfig(**SIZES, rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64)),
    "mistral": MistralConfig(**SIZES, sliding_window=40),
    "qwen2": Qwen2Config(**{**SIZES, "head_dim": 64}, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
                                norm_topk_prob=True, rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    "gemma3": Gemma3TextConfig(
        **SIZES, sliding_window=40, query_pre_attn_scalar=48,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                             sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
    "gpt_oss": GptOssConfig(
        **{**SIZES, "hidden_size": 64, "intermediate_size": 96}, num_local_experts=8, num_experts_per_tok=3,
        sliding_window=40, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                             truncate=False, original_max_position_embeddings=64)),
}
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def bits(name, count):
    """32 bits, different for every name and element."""
    seed = 2166136261
    for byte in name.encode():  # FNV-1a
        seed = (seed ^ byte) * 16777619 & 0xFFFFFFFF
    x = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(seed)
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(15))


def weight(name, count, base):
    """base + values in [-0.5, 0.5)."""
    x = bits(name, count)
    return np.float32(base) + (x >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24) - np.float32(0.5)


def experts(key, tensor):
    """Files keep the matrices of experts apart that transformers keeps in one parameter."""
    prefix, name = key.rsplit(".", 1)
    num_experts, _, columns = tensor.shape

    def matrix(expert, part, rows):
        return weight(f"{prefix}.{expert}.{part}.weight", rows * columns, 0.0).reshape(rows, columns)
    parts = ["gate_proj", "up_proj"] if name == "gate_up_proj" else ["down_proj"]
    rows = tensor.shape[1] // len(parts)
    return np.stack([np.concatenate([matrix(e, part, rows) for part in parts]) for e in range(num_experts)])


def mxfp4_experts(key, tensor):
    """What gpt-oss files hold as codes and exponents, [experts, out, in], transformers turns round."""
    num_experts, columns, rows = tensor.shape
    groups = columns // 32
    codes = (bits(key + "_blocks", num_experts * rows * groups * 16) >> np.uint32(24)).reshape(-1, 16)
    exponents = 119 + (bits(key + "_scales", num_experts * rows * groups) >> np.uint32(30)).astype(np.int32)
    pairs = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], axis=-1).reshape(-1, 32)
    values = np.ldexp(pairs, (exponents - 127)[:, None]).astype(np.float32)
    return np.ascontiguousarray(values.reshape(num_experts, rows, columns).transpose(0, 2, 1))


def main():
    tokens = [(i * i + 7 * i) % 32 for i in range(NUM_TOKENS)]
    golden = {}
    for name, config in CONFIGS.items():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        tied = model.config.tie_word_embeddings
        state = {}
        for key, tensor in model.state_dict().items():
            if key == "lm_head.weight" and tied:
                continue
            if ".experts." in key and not key.endswith("_bias"):
                made = mxfp4_experts if name == "gpt_oss" else experts
                state[key] = torch.from_numpy(made(key, tensor))
                continue
            base = 1.0 if "norm" in key and name != "gemma3" else 0.0  # Gemma's norms add the one themselves
            state[key] = torch.from_numpy(weight(key, tensor.numel(), base).reshape(tensor.shape))
        missing = model.load_state_dict(state, strict=False).missing_keys
        assert missing == (["lm_head.weight"] if tied else []), missing
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -NUM_ROWS:].numpy()
        settings = {k: v for k, v in config.to_diff_dict().items() if k != "transformers_version"}
        if name == "gpt_oss":
            settings["quantization_config"] = {"quant_method": "mxfp4"}
        golden[name] = {"config": settings, "logits": logits.astype("<f4").tobytes().hex()}
        print(name, "logits", logits.std(), "tied" if tied else "")
    with open("tests/golden/architectures.json", "w") as out:
        json.dump(golden, out, indent=1)
        out.write("\n")


main()
