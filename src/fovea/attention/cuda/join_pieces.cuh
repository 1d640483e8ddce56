// How pieces of a row's keys become its output.
#pragma once

#include <type_traits>

#include "fovea/attention/cuda/prefill_params.h"

namespace fovea::cuda {

constexpr int kJoinWarps = 8;
constexpr int kJoinThreads = kJoinWarps * 32;

/// By a CTA of kJoinThreads, for one head of one row: weights pieces [first_piece, first_piece +
/// num_pieces), each a normalised output and an lse, by their lse; writes params.out and
/// params.lse. Warps take pieces in turn and ask for several at once: a piece costs a way to the
/// L2 cache and back.
template <typename Element, int kHeadDim>
__device__ void join_pieces(const PrefillParams& params, int q_row, int head, int64_t first_piece,
                            int num_pieces) {
  constexpr int kAtOnce = 8;
  constexpr int kColumns = kHeadDim / 32;  // of a lane
  struct alignas(kColumns * sizeof(float)) Share {
    float values[kColumns];
  };
  __shared__ Share outs[kJoinWarps][32];
  __shared__ float tops[kJoinWarps], totals[kJoinWarps];
  const auto thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;

  float top = -INFINITY, total = 0;
  Share out = {};
  const auto shrink = [](Share& sums, float factor) {
#pragma unroll
    for (float& value : sums.values) value = factor == 0.f ? 0.f : value * factor;
  };
  for (int first = warp; first < num_pieces; first += kJoinWarps * kAtOnce) {
    float lses[kAtOnce];
    Share parts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int piece = first + i * kJoinWarps;
      const bool is_there = piece < num_pieces;
      const int64_t row = (first_piece + piece) * params.group_size + head % params.group_size;
      const auto* part = reinterpret_cast<const Share*>(params.partial_out + row * kHeadDim);
      lses[i] = is_there ? params.partial_lse[row] : -INFINITY;
      parts[i] = is_there ? part[lane] : Share{};
    }
    const float before = top;
#pragma unroll
    for (const float lse : lses) top = fmaxf(top, lse);
    const float from = top == -INFINITY ? 0.f : top;
    const float factor = __expf(before - from);
    total *= factor;
    shrink(out, factor);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float weight = __expf(lses[i] - from);
      total += weight;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        out.values[j] = fmaf(weight, weight == 0.f ? 0.f : parts[i].values[j], out.values[j]);
      }
    }
  }
  outs[warp][lane] = out;
  if (lane == 0) {
    tops[warp] = top;
    totals[warp] = total;
  }
  __syncthreads();
  if (warp > 0) return;

  const float sink = params.sinks != nullptr ? params.sinks[head * params.sinks_stride] : -INFINITY;
  top = sink;
#pragma unroll
  for (const float of_warp : tops) top = fmaxf(top, of_warp);
  const float from = top == -INFINITY ? 0.f : top;
  total = __expf(sink - from);
  out = {};
#pragma unroll
  for (int w = 0; w < kJoinWarps; ++w) {
    const float factor = __expf(tops[w] - from);
    total = fmaf(totals[w], factor, total);
    Share part = outs[w][lane];
    shrink(part, factor);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) out.values[j] += part.values[j];
  }
  auto* to = static_cast<Element*>(params.out) + q_row * params.out_row_stride +
             head * params.out_head_stride + lane * kColumns;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const float value = total == 0.f ? 0.f : out.values[j] / total;
    to[j] = Element(value);
  }
  if (lane == 0 && params.lse != nullptr) {
    params.lse[head * params.lse_head_stride + q_row * params.lse_row_stride] =
        total == 0.f ? -INFINITY : top + __logf(total);
  }
}

/// Calls launch(constant head_dim) for one of those that have kernels.
template <typename Launch>
void with_head_dim(int head_dim, Launch launch) {
  if (head_dim == 64) return launch(std::integral_constant<int, 64>());
  if (head_dim == 128) return launch(std::integral_constant<int, 128>());
  launch(std::integral_constant<int, 256>());
}

}  // namespace fovea::cuda
