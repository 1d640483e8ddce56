// A query tile's walk over KV tiles, dense or along a list: set up by the warp that hands out rows,
// followed by the warp that loads K and V.
#pragma once

#include "fovea/attention/cuda/prefill_tiles.h"

namespace fovea::cuda {

/// First the tiles of block means, from the last to the first. Then, dense: KV tile `last`, `last`
/// - 1 and so on. Along a list: the steps run through its entries from the end, each block from its
/// last tile to its first, and begin `last` tiles into the last block.
struct TileWalk {
  int num_tiles = 0;         // steps, those over means included; 0: no row of the tile sees a key
  int num_masked_first = 0;  // leading steps that need their mask
  int num_masked_last = 0;   // trailing ones
  int last = 0;
  int64_t list_end = -1;  // one past the last used entry in the pool; -1: dense
  int list_len = 0;       // entries before it that belong to the list
  MeanTileRange means;

  /// Whether some row of the query tile does not see all of step `step`'s keys.
  __device__ bool is_masked(int step) const {
    return step < num_masked_first || step >= end_plain();
  }
  /// One past the last step that is not.
  __device__ int end_plain() const { return num_tiles - num_masked_last; }

  /// Puts the tiles of means in front. All of them need their mask.
  __device__ void prepend_means(const MeanTileRange& range) {
    means = range;
    num_tiles += range.end - range.first;
    num_masked_first += range.end - range.first;
  }
};

/// How a tile of means is told from a KV tile: tile numbers are not negative.
__device__ inline int mean_tile_number(int tile) { return ~tile; }
__device__ inline bool is_mean_tile(int tile) { return tile < 0; }

__device__ inline TileWalk dense_walk(const KvTileRange& range) {
  TileWalk walk;
  walk.num_tiles = max(range.end - range.first, 0);
  walk.last = range.end - 1;
  walk.num_masked_first = max(range.end - range.first_masked_high, 0);
  walk.num_masked_last = max(range.end_masked_low - range.first, 0);
  return walk;
}

/// Entries of an ascending list that are < bound.
__device__ inline int count_below(const int32_t* list, int len, int bound) {
  int low = 0;
  while (low < len) {
    const int middle = (low + len) / 2;
    if (list[middle] < bound) {
      low = middle + 1;
    } else {
      len = middle;
    }
  }
  return low;
}

/// `last_entry` is the value of the list's last entry, already at hand; `tiles_per_block` KV tiles
/// make a block. What lies outside `range` is left out: whole blocks before the window, single
/// tiles at the end.
__device__ inline TileWalk list_walk(const KvTileRange& range, const int32_t* pool, int64_t begin,
                                     int len, int last_entry, int tiles_per_block) {
  TileWalk walk;
  const int32_t* list = pool + begin;
  while (len > 0 && last_entry * tiles_per_block >= range.end) {
    if (--len > 0) last_entry = list[len - 1];
  }
  walk.list_len = len;
  walk.list_end = begin + len;
  if (len == 0) return walk;
  const int skipped = range.first > 0 ? count_below(list, len, range.first / tiles_per_block) : 0;
  const int end_of_list = (last_entry + 1) * tiles_per_block;
  const int end_tile = min(end_of_list, range.end);
  walk.last = end_of_list - end_tile;
  walk.num_tiles = max((len - skipped) * tiles_per_block - walk.last, 0);
  walk.num_masked_first = max(end_tile - range.first_masked_high, 0);
  if (range.end_masked_low > 0) {
    const int edge_block = (range.end_masked_low + tiles_per_block - 1) / tiles_per_block;
    walk.num_masked_last = (count_below(list, len, edge_block) - skipped) * tiles_per_block;
  }
  return walk;
}

/// Entry number `from + lane` of a list counted from its end. Lanes past its start read entries of
/// other lists, which nobody uses.
__device__ inline int list_entry(const int32_t* pool, int64_t list_end, int from, int lane) {
  const int64_t at = list_end - 1 - from - lane;
  return at >= 0 ? pool[at] : 0;
}

/// Hands out the tiles of a walk to a whole warp, list entries 32 at a time and one batch ahead.
class TileWalker {
 public:
  /// `walk` must outlive this; `first_entry` is list_entry(..., 0, lane).
  __device__ TileWalker(const TileWalk& walk, const int32_t* pool, int tiles_per_block, int lane,
                        int first_entry)
      : walk_(walk),
        pool_(pool),
        tiles_per_block_(tiles_per_block),
        lane_(lane),
        mean_(walk.means.end),
        sub_(walk.last),
        ahead_(first_entry) {}

  /// The tile of the next step. Call at most num_tiles times, with the whole warp.
  __device__ int next() {
    if (mean_ > walk_.means.first) return mean_tile_number(--mean_);
    if (walk_.list_end < 0) return walk_.last - step_++;
    if ((step_ & 31) == 0 && step_ == next_batch_) {
      batch_ = ahead_;
      next_batch_ = step_ + 32;
      ahead_ = list_entry(pool_, walk_.list_end, next_batch_, lane_);
    }
    const int block = __shfl_sync(~0u, batch_, step_ & 31);
    const int tile = (block + 1) * tiles_per_block_ - 1 - sub_;
    if (++sub_ == tiles_per_block_) {
      sub_ = 0;
      ++step_;
    }
    return tile;
  }

 private:
  const TileWalk& walk_;
  const int32_t* pool_;
  int tiles_per_block_;
  int lane_;
  int mean_;      // one past the next tile of means
  int sub_;       // tiles already handed out of the current block
  int step_ = 0;  // dense: tiles handed out; list: blocks
  int next_batch_ = 0;
  int batch_ = 0;
  int ahead_;
};

}  // namespace fovea::cuda
