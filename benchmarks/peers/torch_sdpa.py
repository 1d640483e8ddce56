#!/usr/bin/env python3
"""Times the GPU kernels beside PyTorch's FlashAttention-2 and cuDNN backends, in one process.

    torch_sdpa.py LIBRARY [--cases dense,sparse,...] [--json FILE]

LIBRARY is libfovea_cuda_capi.so of a build with FOVEA_CUDA. Sustained: 200 ms of the same work
before each median, so that the card's clock has settled; the GEMM rate is measured in the same run.
"""

import argparse
import ctypes
import json
import sys

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

POINTERS = ("q k v out lse stream q_offsets kv_lens kv_offsets page_table q_block_offsets "
            "list_begin list_len list_blocks").split()
NUMBERS = ("batch_size total_q total_kv num_q_heads num_kv_heads head_dim q_row_stride "
           "q_head_stride kv_row_stride kv_head_stride page_size num_pages max_pages num_q_blocks "
           "num_list_blocks block_size window_left is_causal is_f16").split()


class AttentionCall(ctypes.Structure):
    """FoveaAttentionCall of benchmarks/cuda_capi.cc."""

    _fields_ = [(name, ctypes.c_void_p) for name in POINTERS]
    _fields_ += [(name, ctypes.c_int64) for name in NUMBERS]


class Fovea:
    """Calls fovea_attend; keeps the tensors of a call alive."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.fovea_attend.restype = ctypes.c_char_p

    def attend(self, call):
        error = self.library.fovea_attend(ctypes.byref(call))
        if error:
            raise RuntimeError(error.decode())

    def prepare(self, q, k, v, causal=True, window=-1, lists=None, block_size=128, page_size=0):
        """q [n, heads, d], k and v [m, kv_heads, d]: a call over one sequence, and its output."""
        n, heads, d = q.shape
        m, kv_heads, _ = k.shape
        call = AttentionCall()
        keep = [q, k, v, torch.empty_like(q), torch.empty(heads, n, device="cuda")]

        def device(values, dtype):
            keep.append(torch.tensor(values, dtype=dtype, device="cuda"))
            return keep[-1].data_ptr()

        if page_size:
            pages = m // page_size
            order = torch.randperm(pages, device="cuda")
            table = torch.empty(pages, dtype=torch.int32, device="cuda")
            table[:] = torch.argsort(order).int()
            paged = [x.view(pages, page_size, kv_heads, d)[order].transpose(1, 2).contiguous()
                     for x in (k, v)]
            keep += paged + [table]
            call.k, call.v = (x.data_ptr() for x in paged)
            call.page_table = table.data_ptr()
            call.page_size, call.num_pages, call.max_pages = page_size, pages, pages
        else:
            call.k, call.v = k.data_ptr(), v.data_ptr()
            call.kv_offsets = device([0], torch.int64)
            call.kv_row_stride, call.kv_head_stride = k.stride(0), k.stride(1)
        call.q, call.out, call.lse = q.data_ptr(), keep[3].data_ptr(), keep[4].data_ptr()
        call.q_offsets = device([0, n], torch.int64)
        call.kv_lens = device([m], torch.int64)
        call.batch_size, call.total_q, call.total_kv = 1, n, m
        call.num_q_heads, call.num_kv_heads, call.head_dim = heads, kv_heads, d
        call.q_row_stride, call.q_head_stride = q.stride(0), q.stride(1)
        call.window_left, call.is_causal = window, int(causal)
        call.is_f16 = int(q.dtype == torch.float16)
        if lists is not None:
            begin, length, blocks = lists
            keep += [begin, length, blocks]
            call.q_block_offsets = device([0, begin.shape[1]], torch.int64)
            call.list_begin, call.list_len = begin.data_ptr(), length.data_ptr()
            call.list_blocks = blocks.data_ptr()
            call.num_q_blocks, call.num_list_blocks = begin.shape[1], blocks.numel()
            call.block_size = block_size
        call.stream = torch.cuda.current_stream().cuda_stream
        call.kept = keep
        return call, keep[3]


def median_ms(function, warm_ms=200.0):
    """Median of event timings after warm_ms of the same work: at least 5 runs, 100 ms."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once():
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    once()
    estimate = max(once(), 1e-3)
    for _ in range(min(2000, int(warm_ms / estimate))):
        function()
    runs = max(3 if estimate > 100 else 5, min(60, int(100 / estimate)))
    times = sorted(once() for _ in range(runs))
    return times[len(times) // 2]


def random_lists(heads, blocks, density, seed=1):
    """Each causal block with one probability, the first, the last three always; on the device."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    total = blocks * (blocks + 1) / 2
    forced = sum(min(i + 1, 4) for i in range(blocks))
    p = max(0.0, (density * total - forced) / (total - forced))
    begins, lengths, pools, at = [], [], [], 0
    row = torch.arange(blocks, device="cuda")
    for _ in range(heads):
        keep = torch.rand(blocks, blocks, generator=generator, device="cuda") < p
        keep |= row[None, :] == 0
        keep |= row[None, :] >= row[:, None] - 2
        keep &= row[None, :] <= row[:, None]
        length = keep.sum(1)
        begins.append(at + torch.cumsum(length, 0) - length)
        lengths.append(length.int())
        pools.append(keep.nonzero()[:, 1].int())
        at += int(length.sum())
    lists = torch.stack(begins).contiguous(), torch.stack(lengths).contiguous(), torch.cat(pools)
    return lists, at / (heads * total)


def relative_error(out, expected):
    return float((out.double() - expected.double()).norm() / expected.double().norm())


class Report:
    def __init__(self):
        self.rows = []

    def add(self, **row):
        self.rows.append(row)
        print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}"
                       for k, v in row.items()), flush=True)  # fmt: skip


def gemm_tflops():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn_like(a)
    return 2 * 8192**3 / median_ms(lambda: a @ b) / 1e9


def make(n, heads, kv_heads, d, dtype=torch.bfloat16, head_major=False):
    def tensor(h):
        if head_major:
            return torch.randn(h, n, d, device="cuda", dtype=dtype).transpose(0, 1)
        return torch.randn(n, h, d, device="cuda", dtype=dtype)

    return tensor(heads), tensor(kv_heads), tensor(kv_heads)


def torch_attention(backend, q, k, v, causal=True):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    with sdpa_kernel(backend):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def bench_dense(fovea, report, shapes, rivals=True, **options):
    for n, heads, kv_heads, d in shapes:
        q, k, v = make(n, heads, kv_heads, d, options.pop("dtype", torch.bfloat16),
                       options.pop("head_major", False))
        call, out = fovea.prepare(q, k, v, **options)
        flops = 2.0 * n * n * d * heads
        row = {"case": "dense", "n": n, "heads": f"{heads}/{kv_heads}", "head_dim": d, **options}
        ms = median_ms(lambda: fovea.attend(call))
        row.update(ms=ms, tflops=flops / ms / 1e9)
        if rivals:
            for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION),
                                  ("flash2", SDPBackend.FLASH_ATTENTION)):
                try:
                    other = median_ms(lambda: torch_attention(backend, q, k, v))
                    row[f"{name}_ms"], row[f"vs_{name}"] = other, other / ms
                except RuntimeError as error:
                    row[name] = str(error).splitlines()[0][:60]
            again = median_ms(lambda: fovea.attend(call))
            row["again_tflops"] = flops / again / 1e9
            gemm = gemm_tflops()
            row.update(gemm_tflops=gemm, share_of_gemm=flops / ms / 1e9 / gemm)
            if n <= 32768:
                fovea.attend(call)
                expected = torch_attention(SDPBackend.FLASH_ATTENTION, q, k, v)[0].transpose(0, 1)
                row["error_vs_flash2"] = relative_error(out, expected)
        report.add(**row)


def bench_sparse(fovea, report, lengths, densities, heads=32, kv_heads=4, d=128):
    for n in lengths:
        q, k, v = make(n, heads, kv_heads, d)
        dense, _ = fovea.prepare(q, k, v)
        for wanted in densities:
            lists, density = random_lists(heads, n // 128, wanted)
            call, _ = fovea.prepare(q, k, v, lists=lists)
            ms = median_ms(lambda: fovea.attend(call))
            dense_ms = median_ms(lambda: fovea.attend(dense))
            report.add(case="sparse", n=n, heads=f"{heads}/{kv_heads}", head_dim=d,
                       density=density, ms=ms, dense_ms=dense_ms,
                       efficiency=density * dense_ms / ms, speedup=dense_ms / ms)  # fmt: skip


def bench_window(fovea, report, n, windows, heads=32, kv_heads=4):
    for d in (64, 128):
        q, k, v = make(n, heads, kv_heads, d)
        for window in windows:
            call, _ = fovea.prepare(q, k, v, window=window)
            ms = median_ms(lambda: fovea.attend(call))
            keys = sum(min(i, window) + 1 for i in range(min(n, window))) + max(
                0, n - window) * (window + 1)
            report.add(case="window", n=n, heads=f"{heads}/{kv_heads}", head_dim=d, window=window,
                       ms=ms, useful_tflops=4.0 * keys * d * heads / ms / 1e9)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--cases", default="dense,layout,head_dim,paged,window,sparse")
    parser.add_argument("--lengths", default="16384,32768,131072")
    parser.add_argument("--densities", default="0.03,0.0534,0.1,0.25,0.5")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU: nothing to time")
    fovea = Fovea(arguments.library)
    report = Report()
    report.add(device=torch.cuda.get_device_name(), torch=torch.__version__,
               cudnn=torch.backends.cudnn.version(), gemm_tflops=gemm_tflops())  # fmt: skip
    lengths = [int(n) for n in arguments.lengths.split(",")]
    densities = [float(x) for x in arguments.densities.split(",")]
    cases = arguments.cases.split(",")
    if "dense" in cases:
        bench_dense(fovea, report, [(n, 32, 4, 128) for n in lengths])
    if "layout" in cases:
        bench_dense(fovea, report, [(32768, 32, 4, 128)], rivals=False, head_major=True)
    if "head_dim" in cases:
        bench_dense(fovea, report, [(32768, 9, 3, 64), (32768, 64, 8, 64), (32768, 16, 4, 256)])
    if "paged" in cases:
        for page_size in (64, 128, 256):
            bench_dense(fovea, report, [(32768, 32, 4, 128)], rivals=False, page_size=page_size)
    if "window" in cases:
        bench_window(fovea, report, 32768, (128, 1024))
    if "sparse" in cases:
        bench_sparse(fovea, report, [n for n in lengths if n > 16384], densities)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report.rows, file, indent=1)


if __name__ == "__main__":
    main()
