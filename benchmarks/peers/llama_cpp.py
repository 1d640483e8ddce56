#!/usr/bin/env python3
"""Times llama.cpp reading the same tokens of the same GGUF file on the same threads.

usage: benchmarks/peers/llama_cpp.py MODEL.gguf IDS [--threads 2] [--repeat 3] [--n-batch 2048] [--n-ubatch 512]
                                     [--flash-attn] [--no-repack]

IDS holds token ids as little-endian int32 (`engine_probe encode`), so that both engines read the same
prompt. Prints one JSON object: ttft of every repetition (prompt in, logits of the last position out), the
median, and the median gap of 32 decode steps. Needs llama-cpp-python; exit 77 with the reason without it.

The rival's best path: a build with -march=native repacks Q4_1 weights for AMX int8, which GCC 12 miscompiles
(an empty tile configuration: illegal instruction). Build it with clang, or pass --no-repack, which leaves
that path out; the JSON says which. Try --flash-attn and batch sizes, and quote the fastest.
"""
import argparse
import array
import json
import pathlib
import statistics
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("ids", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--n-batch", type=int, default=2048)
    parser.add_argument("--n-ubatch", type=int, default=512)
    parser.add_argument("--flash-attn", action="store_true")
    parser.add_argument("--no-repack", action="store_true")
    args = parser.parse_args()
    sys.path.pop(0)  # this folder: the package has the name of this file
    try:
        import llama_cpp
    except ImportError:
        print("skipped: python package llama-cpp-python is not installed")
        sys.exit(77)
    if args.no_repack:
        defaults = llama_cpp.llama_cpp.llama_model_default_params

        def without_repacking():
            params = defaults()
            params.use_extra_bufts = False
            return params

        llama_cpp.llama_cpp.llama_model_default_params = without_repacking
    ids = array.array("i")
    ids.frombytes(args.ids.read_bytes())
    ids = ids.tolist()
    model = llama_cpp.Llama(model_path=args.model, n_ctx=len(ids) + 64, n_threads=args.threads,
                            n_threads_batch=args.threads, n_batch=args.n_batch, n_ubatch=args.n_ubatch,
                            flash_attn=args.flash_attn, verbose=False)
    ttft_ms, gaps_ms = [], []
    for _ in range(args.repeat + 1):  # the first one warms up
        model.reset()
        start = time.perf_counter()
        model.eval(ids)
        ttft_ms.append(1e3 * (time.perf_counter() - start))
    for _ in range(32):
        start = time.perf_counter()
        model.eval([ids[-1]])
        gaps_ms.append(1e3 * (time.perf_counter() - start))
    print(json.dumps({"engine": "llama.cpp", "version": llama_cpp.__version__, "model": args.model,
                      "prompt_tokens": len(ids), "threads": args.threads, "n_batch": args.n_batch,
                      "n_ubatch": args.n_ubatch, "flash_attn": args.flash_attn, "repack": not args.no_repack,
                      "ttft_ms": [round(t, 1) for t in ttft_ms[1:]],
                      "ttft_ms_median": round(statistics.median(ttft_ms[1:]), 1),
                      "itl_ms_median": round(statistics.median(gaps_ms), 2)}))


main()
