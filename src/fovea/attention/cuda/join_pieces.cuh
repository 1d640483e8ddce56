// How pieces of a row's keys become its output.
#pragma once

#include "fovea/attention/cuda/prefill_params.h"

namespace fovea::cuda {

constexpr int kMaxPiecesAtOnce = 256;

/// By a CTA of head_dim threads, for one head of one row: weights pieces [first_piece, first_piece
/// + num_pieces), each a normalised output and an lse, by their lse; writes params.out and
/// params.lse.
template <typename Element>
__device__ void join_pieces(const PrefillParams& params, int q_row, int head, int64_t first_piece,
                            int num_pieces) {
  __shared__ float weights[kMaxPiecesAtOnce];
  const auto thread = static_cast<int>(threadIdx.x);
  const auto head_dim = static_cast<int>(blockDim.x);
  const int in_group = head % params.group_size;
  const auto index = [&](int piece) {
    return (first_piece + piece) * params.group_size + in_group;
  };

  const float sink = params.sinks != nullptr ? params.sinks[head * params.sinks_stride] : -INFINITY;
  float top = sink;
  bool has_nan = false;
  for (int piece = 0; piece < num_pieces; ++piece) {
    const float lse = params.partial_lse[index(piece)];
    has_nan |= isnan(lse);
    top = fmaxf(top, lse);
  }
  float total = sink == -INFINITY ? 0.f : __expf(sink - top);
  float out = 0.f;
  for (int start = 0; start < num_pieces; start += kMaxPiecesAtOnce) {
    const int count = min(num_pieces - start, kMaxPiecesAtOnce);
    __syncthreads();
    for (int piece = thread; piece < count; piece += head_dim) {
      const float lse = params.partial_lse[index(start + piece)];
      weights[piece] = lse == -INFINITY ? 0.f : __expf(lse - top);
    }
    __syncthreads();
#pragma unroll 8
    for (int piece = 0; piece < count; ++piece) {
      const float weight = weights[piece];
      const float part = params.partial_out[index(start + piece) * head_dim + thread];
      total += weight;
      out = fmaf(weight, weight == 0.f ? 0.f : part, out);
    }
  }
  out = total == 0.f ? 0.f : out / total;
  if (has_nan) out = total = NAN;
  auto* to = static_cast<Element*>(params.out) + q_row * params.out_row_stride +
             head * params.out_head_stride;
  to[thread] = Element(out);
  if (thread == 0 && params.lse != nullptr) {
    params.lse[head * params.lse_head_stride + q_row * params.lse_row_stride] =
        total == 0.f ? -INFINITY : top + __logf(total);
  }
}

}  // namespace fovea::cuda
