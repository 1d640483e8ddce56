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
            "list_begin list_len list_blocks q_scale k_scale v_scale").split()
NUMBERS = ("batch_size total_q total_kv num_q_heads num_kv_heads head_dim q_row_stride "
           "q_head_stride kv_row_stride kv_head_stride page_size num_pages max_pages num_q_blocks "
           "num_list_blocks block_size window_left is_causal dtype").split()
DTYPES = {torch.bfloat16: 0, torch.float16: 1, "f8e4m3": 2}


class AttentionCall(ctypes.Structure):
    """FoveaAttentionCall of benchmarks/cuda_capi.cc."""

    _fields_ = [(name, ctypes.c_void_p) for name in POINTERS]
    _fields_ += [(name, ctypes.c_int64) for name in NUMBERS]


SPARSE_POINTERS = "centroid v_mean witness rest_mean radius non_finite block_offsets".split()
METHODS = {"all": 0, "streaming": 1, "centroid": 2, "rescue": 3, "witness": 4, "bound": 5}


class SparseCall(ctypes.Structure):
    """FoveaSparseCall of benchmarks/cuda_capi.cc."""

    _fields_ = [("attention", AttentionCall)]
    _fields_ += [(name, ctypes.c_void_p) for name in SPARSE_POINTERS]
    _fields_ += [(name, ctypes.c_int64) for name in ("method", "num_witnesses", "has_periphery")]
    _fields_ += [(name, ctypes.c_double)
                 for name in ("density", "alpha_base", "alpha_rescue", "pool_density")]


class Session:
    """Statistics, selection and attention of one sparse prefill, step by step."""

    def __init__(self, fovea, q, k, v, method, density=0.0, num_witnesses=0, pool_density=0.15,
                 has_periphery=False):
        self.library = fovea.library
        call = SparseCall()
        attention, self.out = fovea.prepare(q, k, v)
        call.attention, self.kept = attention, attention.kept
        blocks, kv_heads, d = k.shape[0] // 128, k.shape[1], k.shape[2]

        def room(rows, dtype, *columns):
            self.kept.append(torch.empty(blocks, rows, *columns, dtype=dtype, device="cuda"))
            return self.kept[-1].data_ptr()

        call.centroid, call.v_mean, call.rest_mean = (
            room(kv_heads, torch.bfloat16, d) for _ in range(3))
        if num_witnesses:
            call.witness = room(kv_heads * num_witnesses, torch.bfloat16, d)
        call.radius, call.non_finite = room(kv_heads, torch.float32), room(kv_heads, torch.int32)
        self.kept.append(torch.zeros(1, dtype=torch.int64, device="cuda"))
        call.block_offsets = self.kept[-1].data_ptr()
        call.method, call.num_witnesses = METHODS[method], num_witnesses
        call.has_periphery = int(has_periphery)
        call.density, call.alpha_base, call.alpha_rescue = density, 0.22, 0.18
        call.pool_density = pool_density
        self.pairs = q.shape[1] * blocks * (blocks + 1) // 2
        self.handle = ctypes.c_void_p()
        self._run("create", ctypes.byref(call), ctypes.byref(self.handle))

    def _run(self, name, *arguments):
        function = getattr(self.library, f"fovea_sparse_{name}")
        function.restype = ctypes.c_char_p
        error = function(*arguments)
        if error:
            raise RuntimeError(error.decode())

    def stats(self):
        self._run("stats", self.handle)

    def select(self):
        self._run("select", self.handle)

    def attend(self):
        self._run("attend", self.handle)

    def whole(self):
        self.stats()
        self.select()
        self.attend()

    def attend_f8(self, call):
        self._run("attend_f8", self.handle, ctypes.byref(call))

    def report(self):
        """Density of the lists and bytes of the selection."""
        kept, size = ctypes.c_int64(), ctypes.c_int64()
        self._run("report", self.handle, ctypes.byref(kept), ctypes.byref(size))
        return kept.value / self.pairs, size.value

    def close(self):
        self.library.fovea_sparse_destroy(self.handle)


class Fovea:
    """Calls fovea_attend; keeps the tensors of a call alive."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.fovea_attend.restype = ctypes.c_char_p

    def attend(self, call):
        error = self.library.fovea_attend(ctypes.byref(call))
        if error:
            raise RuntimeError(error.decode())

    def prepare(self, q, k, v, causal=True, window=-1, lists=None, block_size=128, page_size=0,
                batch=1):
        """q [n, heads, d], k and v [m, kv_heads, d]: a call over `batch` sequences of one shape, and
        its output."""
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
            call.kv_offsets = device([m // batch * s for s in range(batch)], torch.int64)
            call.kv_row_stride, call.kv_head_stride = k.stride(0), k.stride(1)
        call.q, call.out, call.lse = q.data_ptr(), keep[3].data_ptr(), keep[4].data_ptr()
        call.q_offsets = device([n // batch * s for s in range(batch + 1)], torch.int64)
        call.kv_lens = device([m // batch] * batch, torch.int64)
        call.batch_size, call.total_q, call.total_kv = batch, n, m
        call.num_q_heads, call.num_kv_heads, call.head_dim = heads, kv_heads, d
        call.q_row_stride, call.q_head_stride = q.stride(0), q.stride(1)
        call.window_left, call.is_causal = window, int(causal)
        call.dtype = DTYPES[q.dtype]
        if lists is not None:
            begin, length, blocks = lists
            keep += [begin, length, blocks]
            call.q_block_offsets = device([0, begin.shape[1]], torch.int64)
            call.list_begin, call.list_len = begin.data_ptr(), length.data_ptr()
            call.list_blocks = blocks.data_ptr()
            call.num_q_blocks, call.num_list_blocks = begin.shape[1], blocks.numel()
            call.block_size = block_size
        call.stream = torch.cuda.current_stream().cuda_stream
        call.kept = keep  # the call's tensors live as long as the call
        return call, keep[3]


    def prepare_f8(self, q, k, v, lists=None, batch=1):
        """The same in f8e4m3: pages of 128 in random order, a scale for each page; not quantized
        yet. Also what quantizes."""
        source, _ = self.prepare(q, k, v, batch=batch)
        call, out = self.prepare(q, k, v, lists=lists, batch=batch)
        (m, kv_heads, d), keep = k.shape, call.kept
        pages = m // 128
        table = torch.randperm(pages, device="cuda").int()
        q8 = torch.empty(q.shape, dtype=torch.float8_e4m3fn, device="cuda")
        k8 = torch.empty(pages, kv_heads, 128, d, dtype=torch.float8_e4m3fn, device="cuda")
        v8 = torch.empty(pages, kv_heads, d, 128, dtype=torch.float8_e4m3fn, device="cuda")
        scales = torch.empty(2, pages, kv_heads, device="cuda")
        keep += [table, q8, k8, v8, scales]
        call.q, call.k, call.v = q8.data_ptr(), k8.data_ptr(), v8.data_ptr()
        call.k_scale, call.v_scale = scales[0].data_ptr(), scales[1].data_ptr()
        call.page_table = table.data_ptr()
        call.page_size, call.num_pages, call.max_pages = 128, pages, pages // batch
        call.kv_offsets = None
        call.dtype = DTYPES["f8e4m3"]
        call.f8 = (table, q8, k8, v8, scales)
        self.library.fovea_quantize.restype = ctypes.c_char_p

        def quantize():
            error = self.library.fovea_quantize(
                ctypes.byref(source), ctypes.byref(call), ctypes.c_int64(m // batch))
            if error:
                raise RuntimeError(error.decode())

        return call, out, quantize


def f8_kv(call, head):
    """K and V of one KV head as their codes mean them, in f64."""
    table, _, k8, v8, scales = call.f8
    pages = table.long()
    slots = torch.tensor([t // 16 * 16 + t % 8 // 2 * 4 + t % 16 // 8 * 2 + t % 2
                          for t in range(128)], device="cuda")  # f8_value_slot()
    k, v = (x.view(torch.uint8)[pages, head].view(torch.float8_e4m3fn).double()
            for x in (k8, v8))
    k, v = k * scales[0, pages, head, None, None], v[..., slots] * scales[1, pages, head, None, None]
    return k.flatten(0, 1), v.transpose(1, 2).flatten(0, 1)


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


def structured(n, heads, kv_heads, d=128):
    """q and k with topics that last 1024 tokens, a sink, local structure and needles, after RoPE."""
    generator = torch.Generator(device="cuda").manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device="cuda")

    half, low, group = d // 2, 36, heads // kv_heads
    topics, segments = 48, n // 512 + 1
    content = torch.zeros(d, device="cuda")  # the slow RoPE pairs carry the content
    content[low:half] = content[half + low:] = 1
    of_segment = torch.randint(topics, (kv_heads, segments), generator=generator, device="cuda")
    of_segment[:, 1::2] = of_segment[:, ::2][:, : of_segment[:, 1::2].shape[1]]
    token_segment = torch.arange(n, device="cuda") // 512
    directions, bias = normal(kv_heads, topics, d), normal(kv_heads, d) * (1 - content)
    needles = 1.6 * normal(kv_heads, n // 4096 + 1, d)
    frequency = 1e6 ** (-torch.arange(half, device="cuda", dtype=torch.float64) / half)
    angle = torch.arange(n, device="cuda", dtype=torch.float64)[:, None] * frequency
    cosine, sine = angle.cos().float(), angle.sin().float()

    def rope(x):
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1).bfloat16()

    k = torch.empty(n, kv_heads, d, dtype=torch.bfloat16, device="cuda")
    q = torch.empty(n, heads, d, dtype=torch.bfloat16, device="cuda")
    for h in range(kv_heads):
        spread = (0.6 + 0.5 * torch.rand(n // 1024 + 1, generator=generator, device="cuda"))
        x = normal(n, d) * spread[torch.arange(n, device="cuda") // 1024, None]
        x += 0.9 * bias[h] + 1.3 * directions[h, of_segment[h, token_segment]] * content
        places = torch.randint(4096, (n // 4096,), generator=generator, device="cuda")
        places += torch.arange(n // 4096, device="cuda") * 4096
        x[places] += needles[h, : n // 4096] * content
        k[:, h] = rope(x)
        for g in range(group):
            y = 0.8 * normal(n, d) + 0.9 * bias[h]
            asked = torch.randint(topics, (segments,), generator=generator, device="cuda")
            y += (0.5 * directions[h, of_segment[h, token_segment]]
                  + directions[h, asked[token_segment]]) * content
            wanted = torch.randint(max(1, n // 4096), (n // 128 + 1,), generator=generator,
                                   device="cuda")
            seeks = torch.rand(n // 128 + 1, generator=generator, device="cuda") < 0.125
            block = torch.arange(n, device="cuda") // 128
            y += 1.5 / 1.6 * needles[h, wanted[block]] * content * seeks[block, None]
            q[:, h * group + g] = rope(y)
    return q, k, torch.randn_like(k)


def bench_whole(fovea, report, lengths, density, heads=32, kv_heads=4):
    """Statistics + selection + attention beside dense rivals in the same run."""
    for n in lengths:
        q, k, v = structured(n, heads, kv_heads)
        dense, _ = fovea.prepare(q, k, v)
        rivals = {"dense_ms": median_ms(lambda: fovea.attend(dense)),
                  "gemm_tflops": gemm_tflops()}  # fmt: skip
        if n <= 131072:
            for name, backend in (("flash2_ms", SDPBackend.FLASH_ATTENTION),
                                  ("cudnn_ms", SDPBackend.CUDNN_ATTENTION)):
                rivals[name] = median_ms(lambda: torch_attention(backend, q, k, v))
        dense_at_gemm = 2.0 * n * n * 128 * heads / rivals["gemm_tflops"] / 1e9
        for method, budget, witnesses, has_periphery in (
                ("rescue", density, 0, False), ("rescue", density, 0, True),
                ("rescue", 0.0, 0, False), ("centroid", density, 0, False),
                ("witness", density, 1, False), ("witness", density, 4, False),
                ("witness", density, 4, True), ("witness", 0.0, 4, False)):
            session = Session(fovea, q, k, v, method, budget, witnesses,
                              has_periphery=has_periphery)
            session.whole()
            kept, size = session.report()
            torch.cuda.synchronize()
            row = {"case": "whole", "n": n, "heads": f"{heads}/{kv_heads}", "method": method,
                   "witnesses": witnesses, "mode": "budget" if budget else "threshold",
                   "periphery": has_periphery,
                   "density": kept, "selection_mb": size / 1e6}
            row.update(stats_ms=median_ms(session.stats), select_ms=median_ms(session.select),
                       attend_ms=median_ms(session.attend), whole_ms=median_ms(session.whole))
            for name in ("flash2_ms", "cudnn_ms", "dense_ms"):
                if name in rivals:
                    row[f"vs_{name[:-3]}"] = rivals[name] / row["whole_ms"]
            row["vs_dense_at_gemm"] = dense_at_gemm / row["whole_ms"]
            report.add(**row, **rivals)
            session.close()


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


def fp8_gemm_tflops():
    a = torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    return 2 * 8192**3 / median_ms(
        lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)) / 1e9


def sampled_rows(q, k, v, head, rows):
    """Causal attention of rows of one head, q [n, heads, d] and k, v of its KV head, in f64."""
    logits = q[rows, head].double() @ k.T / q.shape[-1] ** 0.5
    logits.masked_fill_(torch.arange(k.shape[0], device="cuda") > rows[:, None], -float("inf"))
    return logits.softmax(-1) @ v


def bench_f8(fovea, report, lengths, densities, rivals=True, heads=32, kv_heads=4, d=128):
    """Dense and block-sparse f8e4m3 beside the same in bf16."""
    for n in lengths:
        q, k, v = make(n, heads, kv_heads, d)
        call, _, quantize = fovea.prepare_f8(q, k, v)
        quantize_ms = median_ms(quantize)
        flops = 2.0 * n * n * d * heads
        ms = median_ms(lambda: fovea.attend(call))
        row = {"case": "f8_dense", "n": n, "heads": f"{heads}/{kv_heads}", "head_dim": d,
               "ms": ms, "tflops": flops / ms / 1e9, "quantize_ms": quantize_ms}
        bf16, _ = fovea.prepare(q, k, v)
        row["bf16_ms"] = median_ms(lambda: fovea.attend(bf16))
        row["vs_bf16"] = row["bf16_ms"] / ms
        if rivals:
            for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION),
                                  ("flash2", SDPBackend.FLASH_ATTENTION)):
                other = median_ms(lambda: torch_attention(backend, q, k, v))
                row[f"{name}_bf16_ms"], row[f"vs_{name}_bf16"] = other, other / ms
        row["again_tflops"] = flops / median_ms(lambda: fovea.attend(call)) / 1e9
        row.update(gemm_tflops=gemm_tflops(), fp8_gemm_tflops=fp8_gemm_tflops())
        report.add(**row)
        for wanted in densities:
            lists, density = random_lists(heads, n // 128, wanted)
            sparse, _, quantize = fovea.prepare_f8(q, k, v, lists=lists)
            quantize()
            sparse_ms = median_ms(lambda: fovea.attend(sparse))
            dense_ms = median_ms(lambda: fovea.attend(call))
            report.add(case="f8_sparse", n=n, heads=f"{heads}/{kv_heads}", head_dim=d,
                       density=density, ms=sparse_ms, dense_ms=dense_ms,
                       efficiency=density * dense_ms / sparse_ms, speedup=dense_ms / sparse_ms,
                       tflops=density * flops / sparse_ms / 1e9)  # fmt: skip


def bench_f8_error(fovea, report, lengths, heads=32, kv_heads=4, d=128):
    """64 rows of two heads against f64, on what the codes mean and on the unrounded numbers, with
    values of both signs and of one: those add up in the accumulators."""
    for one_sided in (False, True):
        for n in lengths:
            q, k, v = make(n, heads, kv_heads, d)
            v = v.abs() if one_sided else v
            call, out, quantize = fovea.prepare_f8(q, k, v)
            quantize()
            fovea.attend(call)
            rows = torch.cat([torch.randint(n // 2, n, (63,), device="cuda"),
                              torch.tensor([n - 1], device="cuda")])
            got, codes, exact = [], [], []
            for head in (0, heads - 1):
                kv_head = head * kv_heads // heads
                got.append(out[rows, head])
                codes.append(sampled_rows(call.f8[1].bfloat16(), *f8_kv(call, kv_head), head, rows))
                exact.append(sampled_rows(q, k[:, kv_head].double(), v[:, kv_head].double(), head,
                                          rows))
            got, codes, exact = map(torch.cat, (got, codes, exact))
            report.add(case="f8_error", n=n, values="one sign" if one_sided else "both signs",
                       error=relative_error(got, codes), error_of_all=relative_error(got, exact))


def bench_f8_decode(fovea, report, shapes, heads=32, kv_heads=4, d=128):
    """One new token per sequence, CUDA-graph replay, beside the card's copy rate."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_tb_per_s = 2 * source.numel() / median_ms(lambda: target.copy_(source)) / 1e9
    del source, target
    for batch, m in shapes:
        bytes_of_kv = 2 * batch * m * kv_heads * d
        calls = []
        for _ in range(max(2, min(32, int(300e6 / bytes_of_kv) + 1))):
            q, k, v = make(batch * m, 1, kv_heads, d)
            q = torch.randn(batch, heads, d, device="cuda", dtype=torch.bfloat16)
            call, _, quantize = fovea.prepare_f8(q, k, v, batch=batch)
            quantize()
            calls.append(call)

        def step(calls=calls):
            for call in calls:
                call.stream = torch.cuda.current_stream().cuda_stream
                fovea.attend(call)

        us = graph_us(step) / len(calls)
        report.add(case="f8_decode", batch=batch, kv_len=m, heads=f"{heads}/{kv_heads}", us=us,
                   tb_per_s=bytes_of_kv / us / 1e6, copy_tb_per_s=copy_tb_per_s,
                   share_of_copy=bytes_of_kv / us / 1e6 / copy_tb_per_s)  # fmt: skip


def bench_f8_whole(fovea, report, lengths, density, heads=32, kv_heads=4):
    """Statistics and selection in bf16, attention in f8e4m3, beside dense rivals."""
    for n in lengths:
        q, k, v = structured(n, heads, kv_heads)
        rivals = {"gemm_tflops": gemm_tflops()}
        for name, backend in (("flash2_ms", SDPBackend.FLASH_ATTENTION),
                              ("cudnn_ms", SDPBackend.CUDNN_ATTENTION)):
            rivals[name] = median_ms(lambda: torch_attention(backend, q, k, v))
        call, out, quantize = fovea.prepare_f8(q, k, v)
        row = {"case": "f8_whole", "n": n, "heads": f"{heads}/{kv_heads}",
               "quantize_ms": median_ms(quantize)}
        for method, budget in (("rescue", density), ("rescue", 0.0), ("centroid", density)):
            session = Session(fovea, q, k, v, method, budget)

            def whole():
                session.stats()
                session.select()
                session.attend_f8(call)

            whole()
            kept, _ = session.report()
            session.attend()
            torch.cuda.synchronize()
            row.update(method=method, mode="budget" if budget else "threshold", density=kept,
                       stats_ms=median_ms(session.stats), select_ms=median_ms(session.select),
                       attend_ms=median_ms(lambda: session.attend_f8(call)),
                       attend_bf16_ms=median_ms(session.attend), whole_ms=median_ms(whole),
                       whole_bf16_ms=median_ms(session.whole),
                       error_vs_bf16=relative_error(out, session.out))
            for name in ("flash2_ms", "cudnn_ms"):
                row[f"vs_{name[:-3]}"] = rivals[name] / row["whole_ms"]
            report.add(**row, **rivals)
            session.close()


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


def graph_us(work):
    """Median time of a CUDA graph of `work`."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return median_ms(graph.replay) * 1e3


def bench_decode(fovea, report, shapes, heads=32, kv_heads=4, d=128):
    """One new token per sequence, CUDA-graph replay, K and V never in L2."""
    for batch, m in shapes:
        bytes_of_kv = 4 * batch * m * kv_heads * d
        sets = max(2, min(32, int(300e6 / bytes_of_kv) + 1))
        data = [(torch.randn(batch, heads, d, device="cuda", dtype=torch.bfloat16),
                 *(torch.randn(batch * m, kv_heads, d, device="cuda", dtype=torch.bfloat16)
                   for _ in range(2))) for _ in range(sets)]  # fmt: skip

        def time_us(step):
            return graph_us(lambda: [step(item) for item in range(sets)]) / sets

        calls = [fovea.prepare(*item, batch=batch) for item in data]

        def ours(item):
            calls[item][0].stream = torch.cuda.current_stream().cuda_stream
            fovea.attend(calls[item][0])

        def theirs(item):
            q, k, v = data[item]
            q = q.view(batch, heads, 1, d)
            k, v = (x.view(batch, m, kv_heads, d).transpose(1, 2) for x in (k, v))
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        us = time_us(ours)
        row = {"case": "decode", "batch": batch, "kv_len": m, "heads": f"{heads}/{kv_heads}",
               "us": us, "tb_per_s": bytes_of_kv / us / 1e6}  # fmt: skip
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION),
                              ("flash2", SDPBackend.FLASH_ATTENTION)):
            try:
                row[f"{name}_us"] = time_us(theirs)
                row[f"vs_{name}"] = row[f"{name}_us"] / us
                row[f"error_vs_{name}"] = relative_error(
                    calls[0][1], theirs(0).view(batch, heads, d))
            except RuntimeError as error:
                row[name] = str(error).splitlines()[0][:60]
        report.add(**row)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--cases", default="dense,layout,head_dim,paged,window,sparse,decode,whole")
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
    if "decode" in cases:
        bench_decode(fovea, report, [(1, 4096), (1, 32768), (1, 131072), (16, 32768)])
    if "whole" in cases:
        bench_whole(fovea, report, [n for n in lengths if n > 16384], 0.0534)
    if "f8" in cases:
        bench_f8(fovea, report, lengths, densities)
    if "f8_error" in cases:
        bench_f8_error(fovea, report, [8192, 16384, 32768, 65536, 131072])
    if "f8_decode" in cases:
        bench_f8_decode(fovea, report, [(1, 32768), (1, 131072), (1, 262144), (16, 32768)])
    if "f8_whole" in cases:
        bench_f8_whole(fovea, report, [n for n in lengths if n > 16384], 0.0534)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report.rows, file, indent=1)


if __name__ == "__main__":
    main()
