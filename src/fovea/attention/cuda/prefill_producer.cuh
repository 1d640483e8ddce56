// The producer warps of the prefill kernel.
#pragma once

#include "fovea/attention/cuda/prefill_shared.cuh"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

/// Page of key `key`. Past the last page that the sequence owns: one that does not exist, whose
/// rows arrive as zeros. Contiguous K/V is one page.
__device__ inline int page_of_key(const PrefillParams& params, const RowInfo& row, int key) {
  if (params.page_size == 0) return 0;
  const int64_t table_row = row.seq * params.page_table_stride;
  return key < row.kv_len ? params.page_table[table_row + key / params.page_size]
                          : params.num_pages;
}

/// Loads one 128-byte wide panel after another of a K or V tile, box by box.
template <typename Traits>
__device__ void load_kv_tile(const CUtensorMap* map, const PrefillParams& params,
                             const RowInfo& row, int kv_head, int tile, uint32_t destination,
                             uint32_t barrier) {
  const int first_key = tile * Traits::kKvTileRows;
  for (int done = 0; done < Traits::kKvTileRows; done += params.box_rows) {
    const int key = first_key + done;
    ptx::BoxCoordinates at{0, row.kv_offset + key, kv_head, 0};
    if (params.page_size > 0) {
      at.row = key % params.page_size;
      at.page = page_of_key(params, row, key);
    }
    for (int panel = 0; panel < Traits::kPanels; ++panel) {
      at.column = panel * Traits::kPanelColumns;
      ptx::tma_load(destination + panel * Traits::kKvPanelBytes + done * ptx::kPanelRowBytes, map,
                    barrier, at);
    }
  }
}

/// The same for a tile of packed means.
template <typename Traits>
__device__ void load_mean_tile(const CUtensorMap* map, const PrefillParams& params,
                               const RowInfo& row, int mean_tile, uint32_t destination,
                               uint32_t barrier) {
  const int first_row = first_mean_row(params, row) + mean_tile * Traits::kKvTileRows;
  for (int panel = 0; panel < Traits::kPanels; ++panel) {
    ptx::tma_load(destination + panel * Traits::kKvPanelBytes, map, barrier,
                  {panel * Traits::kPanelColumns, first_row, 0, 0});
  }
}

/// Warp 0: K and V of every tile of every row.
template <typename Traits>
__device__ void load_kv(const PrefillMaps& maps, const PrefillParams& params,
                        PrefillShared<Traits>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<Traits::kQSlots> slot;
  RingPosition<Traits::kStages> stage;  // of K and of V: they advance together
  for (;;) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.row_full[slot.index()]), slot.parity());
    const RowInfo& row = shared.rows[slot.index()];  // not copied: this warp has few registers
    if (row.head < 0) return;
    const int kv_head = row.head / params.group_size;
    TileWalker walker(row.walk, params.list_blocks, params.tiles_per_block, lane,
                      shared.first_entries[slot.index()][lane]);
    const int num_tiles = row.walk.num_tiles;  // after the last tile the row may be another
    for (int step = 0; step < num_tiles; ++step) {
      const int tile = walker.next();
      ptx::mbarrier_wait(ptx::shared_address(&shared.k_empty[stage.index()]), stage.parity() ^ 1);
      if (lane == 0) {
        shared.stages[stage.wide_index()].tile = tile;
        const uint32_t k_full = ptx::shared_address(&shared.k_full[stage.index()]);
        ptx::mbarrier_arrive_expect(k_full, Traits::kKvBytes);
        const uint32_t k_tile = ptx::shared_address(shared.k[stage.index()]);
        if (is_mean_tile(tile)) {
          load_mean_tile<Traits>(&maps.k_mean, params, row, mean_tile_number(tile), k_tile, k_full);
        } else {
          load_kv_tile<Traits>(&maps.k, params, row, kv_head, tile, k_tile, k_full);
        }
      }
      ptx::mbarrier_wait(ptx::shared_address(&shared.v_empty[stage.index()]), stage.parity() ^ 1);
      if (lane == 0) {
        const uint32_t loaded = row.walk.is_masked(step)
                                    ? ptx::shared_address(&shared.v_loaded[stage.index()])
                                    : ptx::shared_address(&shared.v_full[stage.index()]);
        ptx::mbarrier_arrive_expect(loaded, Traits::kKvBytes);
        const uint32_t v_tile = ptx::shared_address(shared.v[stage.index()]);
        if (is_mean_tile(tile)) {
          load_mean_tile<Traits>(&maps.v_mean, params, row, mean_tile_number(tile), v_tile, loaded);
        } else {
          load_kv_tile<Traits>(&maps.v, params, row, kv_head, tile, v_tile, loaded);
        }
      }
      stage.advance();
    }
    slot.advance();
  }
}

/// Query blocks of a query tile, each a row of its own: 2 where they are smaller.
template <typename Traits>
__device__ int blocks_per_q_tile(const PrefillParams& params) {
  const bool is_smaller = params.list_begin != nullptr && params.block_size < kQTileRows;
  return !Traits::kIsF8 && is_smaller ? 2 : 1;
}

/// Describes row number `work` of the launch: KV heads one after another, so that their K and V
/// stay in L2; in each, query tiles from the longest to the shortest, the group's heads side by
/// side. `first_entry` gets this lane's entry for the TileWalker.
template <typename Traits>
__device__ RowInfo describe_row(const PrefillParams& params, int work, int lane, int& first_entry) {
  const int parts = blocks_per_q_tile<Traits>(params);
  const int rows_per_q_tile = params.group_size * parts;
  const int rows_per_kv_head = *params.plan.num_tiles * rows_per_q_tile;
  const int kv_head = work / rows_per_kv_head;
  const int rest = work - kv_head * rows_per_kv_head;
  const QTile q_tile = params.plan.tiles[rest / rows_per_q_tile];
  const int part_rows = kQTileRows / parts;
  const int part_begin = rest % parts * part_rows;  // in the tile

  RowInfo row;
  row.head = kv_head * params.group_size + rest % rows_per_q_tile / parts;
  row.q_tile = q_tile.q_tile;
  row.seq = q_tile.seq;
  const int64_t q_begin = params.q_offsets[row.seq];
  const SequenceShape shape = sequence_shape(params, row.seq);
  row.kv_len = shape.kv_len;
  row.kv_offset = params.kv_offsets ? static_cast<int>(params.kv_offsets[row.seq]) : 0;
  const int before_tile = row.q_tile * kQTileRows - shape.first_position();
  row.first_row = static_cast<int>(q_begin) + before_tile;
  row.valid_begin = max(part_begin, -before_tile);
  row.valid_end = min(part_begin + part_rows, shape.q_len - before_tile);
  if (row.valid_begin >= row.valid_end) return row;  // of the part: the tile has some

  const int low = row.q_tile * kQTileRows + part_begin;
  const KvTileRange range = kv_tile_range(shape, low, part_rows, Traits::kKvTileRows);
  if (params.list_begin == nullptr) {
    row.walk = dense_walk(range);
    return row;
  }
  const int first_q_block = shape.first_position() / params.block_size;
  row.q_block = low / params.block_size;
  const int64_t list = row.head * params.num_q_blocks + params.q_block_offsets[row.seq] +
                       row.q_block - first_q_block;
  const int64_t begin = params.list_begin[list];
  const int len = params.list_len[list];
  first_entry = list_entry(params.list_blocks, begin + len, 0, lane);
  row.walk = list_walk(range, params.list_blocks, begin, len, __shfl_sync(~0u, first_entry, 0),
                       params.tiles_per_block);
  if (row.walk.list_end != begin + len) {
    first_entry = list_entry(params.list_blocks, row.walk.list_end, 0, lane);
  }
  if (Traits::kHasMeans && params.max_means > 0) {
    row.walk.prepend_means(mean_tile_range(shape, low, params.block_size, Traits::kKvTileRows));
  }
  return row;
}

/// Sets the bits of the blocks that a row does not see as means: those of its list, and those from
/// its query block on. Whole warp.
__device__ inline void mark_hidden_means(const PrefillParams& params, const RowInfo& row,
                                         uint32_t* hidden, int lane) {
#pragma unroll 1  // unrolled, this warp's few registers spill
  for (int word = lane; word < params.max_means / 32; word += 32) {
    const int num_seen = row.q_block - word * 32;
    hidden[word] = num_seen >= 32 ? 0u : num_seen <= 0 ? ~0u : ~0u << num_seen;
  }
  __syncwarp();
#pragma unroll 1
  for (int i = lane; i < row.walk.list_len; i += 32) {
    const int block = params.list_blocks[row.walk.list_end - 1 - i];
    atomicOr(&hidden[block / 32], 1u << block % 32);
  }
  __syncwarp();
}

/// Output of a row that sees nothing: 0, and lse -inf or the sink.
template <typename Traits>
__device__ void write_empty_row(const PrefillParams& params, const RowInfo& row) {
  const int lane = ptx::lane_number();
  using Element = typename Traits::OutElement;
  const float lse = params.sinks ? params.sinks[row.head * params.sinks_stride] : -INFINITY;
#pragma unroll 1
  for (int r = row.valid_begin; r < row.valid_end; ++r) {
    const int64_t q_row = row.first_row + r;
    auto* out = static_cast<Element*>(params.out) + q_row * params.out_row_stride +
                row.head * params.out_head_stride;
    for (int column = 8 * lane; column < Traits::kHeadDim; column += 8 * 32) {
      *reinterpret_cast<uint4*>(out + column) = uint4{0, 0, 0, 0};
    }
    if (params.lse != nullptr && lane == 0) {
      params.lse[row.head * params.lse_head_stride + q_row * params.lse_row_stride] = lse;
    }
  }
}

/// Warp 1: hands out rows and loads their Q, one row ahead of the consumers. The next row's
/// description is read while they work.
template <typename Traits>
__device__ void hand_out_rows(const PrefillMaps& maps, const PrefillParams& params,
                              PrefillShared<Traits>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<Traits::kQSlots> slot;
  for (auto work = static_cast<int>(blockIdx.x);
       work < *params.plan.num_tiles * params.num_q_heads * blocks_per_q_tile<Traits>(params);) {
    int taken = 0;  // by lane 0, beside the reads below
    if (lane == 0) taken = atomicAdd(params.plan.next_work, 1);
    int first_entry = 0;
    const RowInfo next = describe_row<Traits>(params, work, lane, first_entry);
    if (next.walk.num_tiles == 0) {
      write_empty_row<Traits>(params, next);
    } else {
      ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty[slot.index()]), slot.parity() ^ 1);
      shared.first_entries[slot.index()][lane] = first_entry;
      if (lane == 0) shared.rows[slot.index()] = next;
      ptx::mbarrier_arrive(ptx::shared_address(&shared.row_full[slot.index()]));
      __syncwarp();
      const RowInfo& row = shared.rows[slot.index()];  // this warp has few registers
      if (Traits::kHasMeans && params.max_means > 0) {
        mark_hidden_means(params, row, shared.hidden_means(slot.index(), params), lane);
      }
      if (lane == 0) {
        const uint32_t q_full = ptx::shared_address(&shared.q_full[slot.index()]);
        ptx::mbarrier_arrive_expect(q_full, Traits::kQBytes);
        for (int panel = 0; panel < Traits::kPanels; ++panel) {
          ptx::tma_load(ptx::shared_address(shared.q[slot.index()]) + panel * Traits::kQPanelBytes,
                        &maps.q, q_full,
                        {panel * Traits::kPanelColumns, row.first_row, row.head, 0},
                        ptx::evict_first_policy());
        }
      } else if constexpr (Traits::kQArrivals > 1) {
        ptx::mbarrier_arrive(ptx::shared_address(&shared.q_full[slot.index()]));
      }
      slot.advance();
    }
    work = __shfl_sync(~0u, taken, 0) + ptx::num_ctas();
  }
  ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty[slot.index()]), slot.parity() ^ 1);
  if (lane == 0) shared.rows[slot.index()].head = -1;
  ptx::mbarrier_arrive(ptx::shared_address(&shared.row_full[slot.index()]));
  if (lane < Traits::kQArrivals) {
    ptx::mbarrier_arrive(ptx::shared_address(&shared.q_full[slot.index()]));
  }
}

}  // namespace fovea::cuda
