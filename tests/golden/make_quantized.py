"""Makes tests/golden/quantized.json: random packs of each GGUF type and the f32 weights in them.

Run from the root of the tree, with the package gguf 0.19.0 installed: python tests/golden/make_quantized.py
"""
import json, numpy as np
from gguf.constants import GGMLQuantizationType as T, GGML_QUANT_SIZES as S
from gguf.quants import dequantize
rng = np.random.default_rng(20261)
half_at = {'Q4_0': [0], 'Q4_1': [0, 2], 'Q5_0': [0], 'Q5_1': [0, 2], 'Q8_0': [0], 'Q4_K': [0, 2], 'Q5_K': [0, 2], 'Q6_K': [208], 'F16': [0], 'BF16': [], 'MXFP4': []}
out = {}
for name, halves in half_at.items():
    elements, size = S[T[name]]
    packs = max(2, 64 // elements) if elements > 1 else 64
    raw = rng.integers(0, 256, (packs, size), dtype=np.uint8)
    for p in raw:
        for at in halves:
            p[at:at + 2] = np.frombuffer(np.float16(rng.normal() * 0.1).tobytes(), np.uint8)
        if name == 'BF16':
            p[:] = np.frombuffer(np.float32(rng.normal()).tobytes(), np.uint8)[2:]
        if name == 'MXFP4':
            p[0] = rng.integers(118, 128)
    values = dequantize(raw.reshape(1, -1), T[name]).astype(np.float32).ravel()
    assert np.isfinite(values).all() and values.size == packs * elements
    out[name] = {'bytes': raw.tobytes().hex(), 'f32': values.tobytes().hex()}
json.dump(out, open('tests/golden/quantized.json', 'w'), indent=0)
