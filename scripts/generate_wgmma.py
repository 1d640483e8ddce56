#!/usr/bin/env python3
"""Writes src/fovea/tensor/cuda/ptx/wgmma.h; with --check, fails when it differs from this."""

import argparse
import pathlib
import sys

OUTPUT = pathlib.Path(__file__).parent.parent / "src/fovea/tensor/cuda/ptx/wgmma.h"

# C++ type, PTX type, K of one instruction, N
TYPES = [
    ("__nv_bfloat16", "bf16", 16, [64, 128, 256]),
    ("__half", "f16", 16, [64, 128, 256]),
    ("Float8E4M3", "e4m3", 32, [64, 128]),
]

HEAD = """\
// Written by scripts/generate_wgmma.py; change that and run it.
//
// Warpgroup matrix products D[64, N] = A[64, K] B[K, N] with f32 accumulators. Thread t of the
// warpgroup holds rows r = 16 * (t / 32) + (t % 32) / 4 and r + 8: d[4 * j + e] is row r + 8 *
// (e / 2), column 8 * j + 2 * (t % 4) + e % 2. A in registers has the same layout, two elements in
// a register. Of 8 bits four: a[2 * h + i] is row r + 8 * i, columns 16 * h + 4 * (t % 4) on.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"
#include "fovea/tensor/float8.h"

namespace fovea::ptx {

/// Orders register accesses before the next products. Needed before each group that touches
/// registers written since.
FOVEA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FOVEA_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `kPending` committed groups are in flight.
template <int kPending>
FOVEA_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// ptxas 13.0 moves `wgmma.wait_group 0` up in front of a softmax that was written before it, which
/// undoes the overlap of the softmax with the product in flight. A store that depends on a result
/// of what must come first holds it back; it is never executed: no arithmetic gives this NaN.
/// Worth 2 % at 64K and more tokens.
FOVEA_DEVICE void hold_wait(uint32_t scratch, float result) {
  asm volatile(
      "{\\n"
      ".reg .pred never;\\n"
      "setp.eq.b32 never, %1, 0x7f812345;\\n"
      "@never st.shared.b32 [%0], %1;\\n"
      "}\\n" ::"r"(scratch),
      "r"(__float_as_uint(result))
      : "memory");
}

// clang-format off

/// `first`: D = A B with both operands K-major in shared memory; never reads D.
/// `add`: D += A B, likewise.
/// `add_rs`: D += A B with A in registers and B as it is stored (MN-major) in shared memory; of 8
/// bits, K-major there too. `first_rs`: D = A B, likewise.
template <typename Element, int kN>
struct Wgmma;
"""

FUNCTION = """\
  static FOVEA_DEVICE void {name}(float (&d)[{count}], {a_type} a, uint64_t b) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, {accumulate}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{ptx}.{ptx} {{"
{registers}
        "}}, {a_operand}, %{b_index}, p, 1, 1{transposes};\\n}}\\n"
        : {outputs}
        : {inputs});
  }}
"""


def wrapped(items, per_line, indent, joiner):
    lines = [joiner.join(items[i : i + per_line]) for i in range(0, len(items), per_line)]
    return (joiner.rstrip() + "\n" + indent).join(lines)


def function(name, n, k, ptx, a_in_registers):
    accumulate = name.startswith("add")
    count = n // 2
    numbers = [f"%{i}" for i in range(count)]
    chunks = [", ".join(numbers[i : i + 16]) for i in range(0, count, 16)]
    registers = "\n".join(
        f'        "{chunk}{", " if i + 1 < len(chunks) else ""}"' for i, chunk in enumerate(chunks)
    )
    mode = "+f" if accumulate else "=f"
    outputs = wrapped([f'"{mode}"(d[{i}])' for i in range(count)], 8, " " * 10, ", ")
    if a_in_registers:
        a_operand = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}"
        inputs = ", ".join(f'"r"(a[{i}])' for i in range(4)) + ', "l"(b)'
        b_index, transposes, a_type = count + 4, ", 1", "const uint32_t*"
    else:
        a_operand, inputs = f"%{count}", '"l"(a), "l"(b)'
        b_index, transposes, a_type = count + 1, ", 0, 0", "uint64_t"
    if k == 32:
        transposes = ""  # operands of 8 bits are K-major always
    return FUNCTION.format(
        name=name, count=count, a_type=a_type, accumulate=int(accumulate), n=n, k=k, ptx=ptx,
        registers=registers, a_operand=a_operand, b_index=b_index, transposes=transposes,
        outputs=outputs, inputs=inputs)  # fmt: skip


def generate():
    parts = [HEAD]
    for element, ptx, k, widths in TYPES:
        for n in widths:
            parts.append(f"\ntemplate <>\nstruct Wgmma<{element}, {n}> {{\n")
            parts.append(function("first", n, k, ptx, False))
            parts.append(function("add", n, k, ptx, False))
            if k == 32:
                parts.append(function("first_rs", n, k, ptx, True))
            parts.append(function("add_rs", n, k, ptx, True))
            parts.append("};\n")
    parts.append("\n}  // namespace fovea::ptx\n")
    return "".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = generate()
    if not arguments.check:
        OUTPUT.write_text(text)
    elif OUTPUT.read_text() != text:
        sys.exit(f"{OUTPUT} is not what {sys.argv[0]} writes: run it")


if __name__ == "__main__":
    main()
