// The warp that streams f8e4m3 pages: K and V of a tile are one copy each.
#pragma once

#include "fovea/attention/cuda/prefill_producer.cuh"

namespace fovea::cuda {

/// Tells what is to be told of a KV tile, or one of means, and returns the page that it is in.
template <typename Traits>
__device__ int describe_f8_tile(const PrefillParams& params, const RowInfo& row, int tile,
                                StageInfo& info) {
  const int kv_head = row.head / params.group_size;
  const bool is_mean = Traits::kHasMeans && is_mean_tile(tile);
  const int page =
      is_mean
          ? row.seq * (params.max_means / Traits::kKvTileRows) + mean_tile_number(tile)
          : params.page_table[row.seq * params.page_table_stride + tile / params.tiles_per_page];
  const F8Scale& k_scale = is_mean ? params.k_mean_scale : params.k_scale;
  const F8Scale& v_scale = is_mean ? params.v_mean_scale : params.v_scale;
  float logit_scale = params.scale_log2;
  if (!Traits::kIsSplit && params.q_scale != nullptr) logit_scale *= params.q_scale[row.head];
  info = {tile, logit_scale * k_scale.at(page, kv_head), v_scale.at(page, kv_head)};
  return page;
}

/// Warp 0: K and V of every tile of every row. What a tile is is found out while the tile before it
/// is on its way: reads of memory that wait for each other would be felt in every tile.
template <typename Traits>
__device__ void load_kv_f8(const PrefillMaps& maps, const PrefillParams& params,
                           PrefillShared<Traits>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<Traits::kQSlots> slot;
  RingPosition<Traits::kStages> stage;  // of K and of V: they advance together
  for (;;) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.row_full[slot.index()]), slot.parity());
    const RowInfo& row = shared.rows[slot.index()];  // not copied: this warp has few registers
    if (row.head < 0) return;
    TileWalker walker(row.walk, params.list_blocks, params.tiles_per_block, lane,
                      shared.first_entries[slot.index()][lane]);
    int page = 0;
    const auto describe_next = [&] {
      const int tile = walker.next();
      if (lane == 0) {
        page = describe_f8_tile<Traits>(params, row, tile, shared.stages[stage.wide_index()]);
      }
    };
    describe_next();
    __syncwarp();
    const int num_tiles = row.walk.num_tiles;  // after the last tile the row may be another
#pragma unroll 1
    for (int step = 0; step < num_tiles; ++step) {
      const int tile = shared.stages[stage.wide_index()].tile;
      const bool is_mean = Traits::kHasMeans && is_mean_tile(tile);
      // Of its page; a tile of means is one.
      const int first_token = is_mean ? 0 : tile % params.tiles_per_page * Traits::kKvTileRows;
      const int kv_head = row.head / params.group_size;
      ptx::mbarrier_wait(ptx::shared_address(&shared.k_empty[stage.index()]), stage.parity() ^ 1);
      if (lane == 0) {
        const uint32_t k_full = ptx::shared_address(&shared.k_full[stage.index()]);
        ptx::mbarrier_arrive_expect(k_full, Traits::kKvBytes);
        ptx::tma_load(ptx::shared_address(shared.k[stage.index()]),
                      is_mean ? &maps.k_mean : &maps.k, k_full, {0, first_token, kv_head, page});
      }
      ptx::mbarrier_wait(ptx::shared_address(&shared.v_empty[stage.index()]), stage.parity() ^ 1);
      if (lane == 0) {
        const uint32_t loaded = row.walk.is_masked(step)
                                    ? ptx::shared_address(&shared.v_loaded[stage.index()])
                                    : ptx::shared_address(&shared.v_full[stage.index()]);
        ptx::mbarrier_arrive_expect(loaded, Traits::kKvBytes);
        ptx::tma_load(ptx::shared_address(shared.v[stage.index()]),
                      is_mean ? &maps.v_mean : &maps.v, loaded, {first_token, 0, kv_head, page});
      }
      stage.advance();
      if (step + 1 < num_tiles) describe_next();
      __syncwarp();
    }
    slot.advance();
  }
}

}  // namespace fovea::cuda
