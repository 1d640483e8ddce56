// What a consumer does where a tile's weights, taken relative to the maximum of the tiles before,
// turn out to be too large.
#pragma once

#include "fovea/attention/cuda/prefill_math.cuh"
#include "fovea/tensor/cuda/ptx/float8.h"
#include "fovea/tensor/cuda/ptx/math.h"

namespace fovea::cuda {

/// This thread's scores of row `q_row` of Q, in order of columns, by plain products of what lies in
/// shared memory at `q` and `k`.
template <typename Traits>
__device__ void score_again(uint32_t q, int q_row, uint32_t k,
                            float (&scores)[Traits::kKvTileRows / 4]) {
  using Element = typename Traits::Element;
  constexpr int kPerWord = static_cast<int>(4 / sizeof(Element));
  const auto unpack = [](uint32_t word, float(&values)[kPerWord]) {
    if constexpr (Traits::kIsF8) {
      ptx::unpack_e4m3(word, values);
    } else {
      const float2 pair = ptx::unpack2<Element>(word);
      values[0] = pair.x;
      values[1] = pair.y;
    }
  };
  const uint32_t first_key = ptx::lane_number() % 4 * 2;
#pragma unroll
  for (float& score : scores) score = 0.f;
#pragma unroll 1
  for (uint32_t word = 0; word < Traits::kPanels * ptx::kPanelRowBytes / 4; ++word) {
    const uint32_t byte = 4 * word % ptx::kPanelRowBytes;
    if (word > 0 && byte == 0) {
      q += Traits::kQPanelBytes;
      k += Traits::kKvPanelBytes;
    }
    float of_q[kPerWord];
    unpack(ptx::load_shared(q + ptx::swizzle128(q_row * ptx::kPanelRowBytes + byte)), of_q);
#pragma unroll
    for (uint32_t i = 0; i < Traits::kKvTileRows / 4; ++i) {
      const uint32_t key = first_key + i / 2 * 8 + i % 2;
      float of_k[kPerWord];
      unpack(ptx::load_shared(k + ptx::swizzle128(key * ptx::kPanelRowBytes + byte)), of_k);
#pragma unroll
      for (int j = 0; j < kPerWord; ++j) scores[i] = fmaf(of_q[j], of_k[j], scores[i]);
    }
  }
}

/// Sums of a tile's weights under this are finite.
constexpr float kLargestReach = 0x1p120f;

/// After exponentiate_ahead(), where is_behind(): moves the maxima of the rows that need it, and
/// makes weights, sums and O relative to them. A row that has left the range of f32, or had no
/// maximum yet, gets its weights anew, from Q and the K tile at `q` and `k`. What becomes of a row
/// depends on no other row. Whole warp.
template <typename Traits, typename Math>
__device__ void catch_up(Math& math, RowState& state, uint32_t q, uint32_t k) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float reach = ptx::quad_max(math.reach[r]);
    const bool has_maximum = state.max[r] != -INFINITY;
    const bool moves = reach > Math::kMaxReach || !has_maximum;
    if (!__any_sync(~0u, moves)) continue;
    const bool is_lost = moves && (reach > kLargestReach || !has_maximum);
    float factor = 1.f;
    if (moves && !is_lost) factor = math.raise_maximum(state, r, reach);
#pragma unroll
    for (int i = 2 * r; i < Math::kScores; i += 4) {
      math.s[i] *= factor;
      math.s[i + 1] *= factor;
    }
    math.tile_sum[r] *= factor;
    if (__any_sync(~0u, is_lost)) {
      float scores[Math::kScores / 2];
      score_again<Traits>(q, consumer_row(ptx::thread_number()) + 8 * r, k, scores);
      if (is_lost) {
#pragma unroll
        for (int i = 0; i < Math::kScores / 2; ++i) {
          math.s[i / 2 * 4 + 2 * r + i % 2] = scores[i];
        }
      }
      const float top = math.find_row_maximum(state, r);
      if (is_lost) {
        factor = math.move_maximum(state, r, top);
        math.tile_sum[r] = math.exponentiate_row(state, r, 0.f);
      }
    }
    state.sum[r] *= factor;
#pragma unroll
    for (int i = 2 * r; i < Math::kOutputs; i += 4) {
      math.o[i] *= factor;
      math.o[i + 1] *= factor;
    }
    if constexpr (Math::kTakesProductFirst) math.pack_row(r);
  }
}

}  // namespace fovea::cuda
