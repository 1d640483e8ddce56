// Split KV, for decode: few query rows, each over many keys.
//
// A unit is one query row with one KV head; the heads of its group are the rows of the query tile,
// so that K and V are read once a group. The KV tiles of all units are laid end to end and cut into
// as many equal runs as there are busy CTAs; where a run enters another unit a new piece begins. So
// no CTA waits for another, whatever the lengths, and piece number = CTA number + unit number. Each
// piece leaves a normalised f32 output and an lse; combine_kernel joins them.
//
// With chunk_tiles a unit is cut into chunks of as many tiles whatever the batch, and each chunk is
// a piece: "tiles" below are then chunks, and piece number = chunk number.
#pragma once

#include "fovea/attention/cuda/prefill_shared.cuh"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

/// Last index i in [0, count) with values[i] <= target; values ascend from values[0] <= target.
template <typename T>
__device__ int last_at_most(const T* values, int count, int64_t target) {
  int low = 0;
  int high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (values[middle] <= target) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Sequence that owns row `q_row`.
__device__ inline int sequence_of_row(const PrefillParams& params, int q_row) {
  return last_at_most(params.q_offsets, params.batch_size, q_row);
}

/// KV tiles of one query row, or chunks of them.
__device__ inline int split_count(const PrefillParams& params, const KvTileRange& range) {
  const int tiles = range.end - range.first;
  return params.chunk_tiles > 0 ? (tiles + params.chunk_tiles - 1) / params.chunk_tiles : tiles;
}

/// KV tiles, or chunks, of query row `q_row`, per KV head.
__device__ inline int tiles_of_row(const PrefillParams& params, int q_row, int kv_tile_rows) {
  const int seq = sequence_of_row(params, q_row);
  const SequenceShape shape = sequence_shape(params, seq);
  const int position = shape.first_position() + q_row - static_cast<int>(params.q_offsets[seq]);
  return split_count(params, row_tile_range(shape, position, kv_tile_rows));
}

/// Those of the rows before `q_row`. A single row needs no plan.
__device__ inline int tiles_before_row(const PrefillParams& params, int q_row, int kv_tile_rows) {
  if (params.tile_offsets != nullptr) return params.tile_offsets[q_row];
  return q_row == 0 ? 0 : tiles_of_row(params, 0, kv_tile_rows);
}

/// CTAs that get tiles: where there are fewer tiles than CTAs, each of the first gets one.
__device__ inline int busy_ctas(int64_t num_tiles, int num_ctas) {
  return static_cast<int>(min(num_tiles, int64_t{num_ctas}));
}

/// First of the tiles of all units that CTA `cta` of `num_ctas` busy ones walks.
__device__ inline int64_t first_tile_of_cta(int64_t num_tiles, int cta, int num_ctas) {
  return num_tiles * cta / num_ctas;
}

/// Warp 1 in split mode: the pieces of this CTA, one after another.
template <typename Traits>
__device__ void hand_out_pieces(const PrefillMaps& maps, const PrefillParams& params,
                                PrefillShared<Traits>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_kv_heads = params.num_q_heads / params.group_size;
  const auto tiles_before = [&](int q_row) {
    return tiles_before_row(params, q_row, Traits::kKvTileRows);
  };
  const int64_t num_tiles = int64_t{tiles_before(params.total_q)} * num_kv_heads;
  const auto cta = static_cast<int>(blockIdx.x);
  const int num_ctas = busy_ctas(num_tiles, static_cast<int>(gridDim.x));
  int64_t at = cta < num_ctas ? first_tile_of_cta(num_tiles, cta, num_ctas) : 0;
  const int64_t end = cta < num_ctas ? first_tile_of_cta(num_tiles, cta + 1, num_ctas) : 0;
  RingPosition<Traits::kQSlots> slot;
  while (at < end) {
    const int q_row = params.tile_offsets == nullptr
                          ? 0
                          : last_at_most(params.tile_offsets, params.total_q, at / num_kv_heads);
    const int64_t row_begin = int64_t{tiles_before(q_row)} * num_kv_heads;
    const int tiles = tiles_before(q_row + 1) - tiles_before(q_row);
    const auto kv_head = static_cast<int>((at - row_begin) / tiles);
    const int64_t unit_begin = row_begin + int64_t{kv_head} * tiles;
    const auto from = static_cast<int>(at - unit_begin);
    const auto to =
        params.chunk_tiles > 0 ? from + 1 : static_cast<int>(min(end - unit_begin, int64_t{tiles}));

    RowInfo row;
    row.seq = sequence_of_row(params, q_row);
    const SequenceShape shape = sequence_shape(params, row.seq);
    row.head = kv_head * params.group_size;
    row.q_tile = shape.first_position() + q_row - static_cast<int>(params.q_offsets[row.seq]);
    row.kv_len = shape.kv_len;
    row.kv_offset = params.kv_offsets ? static_cast<int>(params.kv_offsets[row.seq]) : 0;
    row.first_row =
        params.chunk_tiles > 0 ? static_cast<int>(at) : cta + q_row * num_kv_heads + kv_head;
    row.valid_begin = 0;
    row.valid_end = params.group_size;
    KvTileRange range = row_tile_range(shape, row.q_tile, Traits::kKvTileRows);
    const int step = max(params.chunk_tiles, 1);
    range.end = min(range.first + to * step, range.end);
    range.first += from * step;
    row.walk = dense_walk(range);

    ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty[slot.index()]), slot.parity() ^ 1);
    if (lane == 0) shared.rows[slot.index()] = row;
    ptx::mbarrier_arrive(ptx::shared_address(&shared.row_full[slot.index()]));
    if (lane == 0) {
      const uint32_t q_full = ptx::shared_address(&shared.q_full[slot.index()]);
      ptx::mbarrier_arrive_expect(q_full, Traits::kQBytes);
      for (int panel = 0; panel < Traits::kPanels; ++panel) {
        ptx::tma_load(ptx::shared_address(shared.q[slot.index()]) + panel * Traits::kQPanelBytes,
                      &maps.q, q_full, {panel * Traits::kPanelColumns, 0, kv_head, q_row});
      }
    }
    slot.advance();
    at = unit_begin + to;
  }
  ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty[slot.index()]), slot.parity() ^ 1);
  if (lane == 0) shared.rows[slot.index()].head = -1;
  ptx::mbarrier_arrive(ptx::shared_address(&shared.row_full[slot.index()]));
  if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared.q_full[slot.index()]));
}

}  // namespace fovea::cuda
