// The warp that keeps NaN and Inf in V away from rows that do not see them: a hidden key has weight
// 0, but 0 x NaN would reach every row of the tile.
#pragma once

#include "fovea/attention/cuda/prefill_shared.cuh"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

/// Rows [begin, end) of a V tile.
struct TileRows {
  int begin;
  int end;
};

/// Rows that some query row of the tile may see. What lies past the end of the keys belongs to
/// nobody; a piece of split KV has one query row, which sees all of the others.
template <typename Traits>
__device__ TileRows rows_in_reach(const PrefillParams& params, const RowInfo& row, int tile) {
  if (is_mean_tile(tile)) return {0, Traits::kKvTileRows};
  const int first_key = tile * Traits::kKvTileRows;
  TileRows rows{0, row.kv_len - first_key};
  if constexpr (Traits::kIsSplit) {
    const int position = row.q_tile;
    if (params.causal) rows.end = min(rows.end, position + 1 - first_key);
    if (params.window_left >= 0) rows.begin = position - params.window_left - first_key;
  }
  return {max(rows.begin, 0), min(rows.end, Traits::kKvTileRows)};
}

/// Clears a V tile but for `rows`. Whole warp.
template <typename Traits>
__device__ void clear_other_rows(uint32_t tile, TileRows rows) {
  const int lane = ptx::lane_number();
  const auto clear = [&](int begin, int end) {
    for (int panel = 0; panel < Traits::kPanels; ++panel) {
      for (int byte = begin * static_cast<int>(ptx::kPanelRowBytes) + 16 * lane;
           byte < end * static_cast<int>(ptx::kPanelRowBytes); byte += 16 * 32) {
        ptx::store_shared_zero16(tile + panel * Traits::kKvPanelBytes + byte);
      }
    }
  };
  clear(0, rows.begin);
  clear(rows.end, Traits::kKvTileRows);
}

/// The same in f8e4m3, where rows of K are bytes in each row of V.
template <typename Traits>
__device__ void clear_other_tokens(uint32_t tile, TileRows tokens) {
  if (tokens.begin == 0 && tokens.end == Traits::kKvTileRows) return;
  const int lane = ptx::lane_number();
  uint32_t keep = 0;
#pragma unroll
  for (int byte = 0; byte < 4; ++byte) {
    const int token = f8_token_of_slot(4 * lane + byte);
    if (token >= tokens.begin && token < tokens.end) keep |= 0xffu << 8 * byte;
  }
#pragma unroll 1
  for (int row = 0; row < Traits::kHeadDim; ++row) {
    const uint32_t at = tile + ptx::swizzle128(row * ptx::kPanelRowBytes + 4 * lane);
    ptx::store_shared(at, ptx::load_shared(at) & keep);
  }
}

/// Whether a V tile holds a NaN or Inf. Whole warp.
template <typename Traits>
__device__ bool has_non_finite(const uint8_t* tile) {
  const int lane = ptx::lane_number();
  const auto* chunks = reinterpret_cast<const uint4*>(tile);
  // Of 0 x values, or bits of NaN: 0 as long as all are finite. Four, because each waits for the
  // one before it.
  uint32_t sums[4] = {};
#pragma unroll 8
  for (uint32_t i = 0; i < Traits::kKvBytes / 16; i += 32) {
    const uint4 chunk = chunks[i + lane];
    const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (Traits::kIsF8) {
        sums[j] |= f8_nan_bits(words[j]);
      } else {
        sums[j] = ptx::multiply_add2<typename Traits::Element>(words[j], 0u, sums[j]);
      }
    }
  }
  return __any_sync(~0u, (sums[0] | sums[1] | sums[2] | sums[3]) != 0);
}

/// Warp 2: stands between load_kv() and the consumers wherever a tile is masked. Clears the V rows
/// that no query row sees; where only some see them, tells the consumers of NaN and Inf.
template <typename Traits>
__device__ void inspect_values(const PrefillParams& params, PrefillShared<Traits>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<Traits::kQSlots> slot;
  RingPosition<Traits::kStages> stage;
  uint32_t parities = 0;  // a bit for each v_loaded
  for (;;) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.row_full[slot.index()]), slot.parity());
    const RowInfo& row = shared.rows[slot.index()];  // not copied: this warp has few registers
    if (row.head < 0) return;
#pragma unroll 1
    for (int step = 0; step < row.walk.num_tiles; ++step) {
      if (row.walk.is_masked(step)) {
        const int at = stage.index();
        ptx::mbarrier_wait(ptx::shared_address(&shared.v_loaded[at]), parities >> at & 1);
        parities ^= 1u << at;
        // By the lane that hands V on; f8e4m3 has no registers for that.
        int tile_number = 0;
        if (Traits::kIsF8 || lane == 0) tile_number = shared.stages[stage.wide_index()].tile;
        if constexpr (!Traits::kIsF8) tile_number = ptx::uniform(tile_number);
        const TileRows rows = rows_in_reach<Traits>(params, row, tile_number);
        const uint32_t tile = ptx::shared_address(shared.v[at]);
        if constexpr (Traits::kIsF8) {
          clear_other_tokens<Traits>(tile, rows);
        } else {
          clear_other_rows<Traits>(tile, rows);
        }
        ptx::async_proxy_fence();
        __syncwarp();
        if constexpr (!Traits::kIsSplit) {
          const bool found = has_non_finite<Traits>(shared.v[at]);
          if (lane == 0) shared.has_non_finite[at] = found;
        }
        if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.v_full[at]));
      }
      stage.advance();
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.q_empty[slot.index()]));
    slot.advance();
  }
}

}  // namespace fovea::cuda
