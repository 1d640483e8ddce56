#!/usr/bin/env python3
"""Traces a small transformer of random weights with PyTorch's profiler, on a GPU.

    torch_transformer.py OUT.json.gz [--graph]

Two layers in bf16: cuBLAS, FlashAttention through SDPA, norms and rotations op by op. One prompt of
2,048 tokens is read and two tokens are decoded, each step under an annotation of its own; with
--graph the decode steps are replays of one CUDA graph.
"""

import argparse

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile, record_function

LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 2, 2048, 16, 4, 128, 5632, 32000
PROMPT, DECODED = 2048, 2


def weight(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda") * 0.02


class Layer:
    def __init__(self):
        self.qkv = weight((HEADS + 2 * KV_HEADS) * HEAD_DIM, DIM)
        self.out = weight(DIM, HEADS * HEAD_DIM)
        self.gate_up, self.down = weight(2 * MLP, DIM), weight(DIM, MLP)
        self.norms = [torch.ones(DIM, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        room = PROMPT + DECODED
        self.cache = [weight(1, KV_HEADS, room, HEAD_DIM) for _ in range(2)]

    def __call__(self, x, position, rotation):
        n = x.shape[0]
        qkv = functional.linear(functional.rms_norm(x, (DIM,), self.norms[0]), self.qkv)
        qkv = qkv.view(1, n, -1, HEAD_DIM).transpose(1, 2)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        q, k = rotate(q, rotation), rotate(k, rotation)
        for cache, rows in zip(self.cache, (k, v)):
            cache[:, :, position : position + n].copy_(rows)
        k, v = (cache[:, :, : position + n] for cache in self.cache)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            attended = functional.scaled_dot_product_attention(
                q, k, v, is_causal=n > 1, enable_gqa=True)
        attended = attended.transpose(1, 2).reshape(n, -1)
        x = x + functional.linear(attended, self.out)
        gate, up = functional.linear(
            functional.rms_norm(x, (DIM,), self.norms[1]), self.gate_up).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, self.down)


def rotate(x, rotation):
    cos, sin = rotation
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Model:
    def __init__(self):
        self.embedding, self.head = weight(VOCAB, DIM), weight(VOCAB, DIM)
        self.layers = [Layer() for _ in range(LAYERS)]
        angles = torch.outer(torch.arange(PROMPT + DECODED), 1e4 ** -torch.linspace(0, 1, 64))
        self.rotation = [f(angles).to("cuda", torch.bfloat16) for f in (torch.cos, torch.sin)]

    def step(self, tokens, position):
        """Reads tokens from `position` on; returns the next token."""
        x = functional.embedding(tokens, self.embedding)
        rotation = [table[position : position + len(tokens)] for table in self.rotation]
        for layer in self.layers:
            x = layer(x, position, rotation)
        return functional.linear(x[-1:], self.head).argmax(dim=-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--graph", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    model = Model()
    prompt = torch.randint(VOCAB, (PROMPT,), device="cuda")
    token = model.step(prompt, 0)
    for _ in range(3):  # warm
        model.step(token, PROMPT)
    torch.cuda.synchronize()
    decode = model.step
    if options.graph:
        graph, static = torch.cuda.CUDAGraph(), token.clone()
        with torch.cuda.graph(graph):
            result = model.step(static, PROMPT)

        def decode(token, _):
            static.copy_(token)
            graph.replay()
            return result

        decode(token, 0)
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function(f"step[prefill bs=1 toks={PROMPT}]"):
            token = model.step(prompt, 0)
        for i in range(DECODED):
            with record_function("step[decode bs=1]"):
                token = decode(token, PROMPT + i)
        torch.cuda.synchronize()
    profiler.export_chrome_trace(options.out)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
