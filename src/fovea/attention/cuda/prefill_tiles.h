// Which KV tiles a query tile walks: one function for the scheduler, the kernel and the tests.
//
// Query tiles sit at absolute multiples of kQTileRows of their sequence, like query blocks. So a
// row meets the same tiles in the same order whatever chunk it comes in, and its bits do not depend
// on it. The price is one partly filled tile for a chunk that starts inside one.
#pragma once

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea::cuda {

constexpr int kQTileRows = 128;

/// Floor of a / b for b > 0.
FOVEA_HOST_DEVICE constexpr int floor_div(int a, int b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

/// One sequence of the batch, in rows of q and tokens of its own.
struct SequenceShape {
  int q_len = 0;
  int kv_len = 0;
  bool causal = true;
  int window_left = -1;  // -1: none

  /// Absolute position of the first query row; negative when there are more queries than keys.
  FOVEA_HOST_DEVICE constexpr int first_position() const { return kv_len - q_len; }
  FOVEA_HOST_DEVICE constexpr int first_q_tile() const {
    return floor_div(first_position(), kQTileRows);
  }
  FOVEA_HOST_DEVICE constexpr int end_q_tile() const {
    return q_len > 0 ? floor_div(kv_len + kQTileRows - 1, kQTileRows) : first_q_tile();
  }
};

/// KV tiles [first, end) of some query rows, walked from the last to the first. Tiles from
/// `first_masked_high` on need their mask (diagonal, end of the keys), and those before
/// `end_masked_low` (left edge of the window); the others are seen whole by every row.
struct KvTileRange {
  int first = 0;
  int end = 0;
  int first_masked_high = 0;
  int end_masked_low = 0;
};

/// Of query rows at positions [low, low + num_rows): a tile's, or those of a smaller query block.
FOVEA_HOST_DEVICE constexpr KvTileRange kv_tile_range(const SequenceShape& shape, int low,
                                                      int num_rows, int kv_tile_rows) {
  const int high = low + num_rows;
  KvTileRange range;
  const int end_key = shape.causal && high < shape.kv_len ? high : shape.kv_len;
  range.end = end_key > 0 ? (end_key + kv_tile_rows - 1) / kv_tile_rows : 0;
  // The first key that the tile's first row does not see, and the first tile it lies in.
  const int unseen = shape.causal && low + 1 < shape.kv_len ? low + 1 : shape.kv_len;
  range.first_masked_high = floor_div(unseen, kv_tile_rows);
  if (shape.window_left >= 0) {
    const int first_key = low - shape.window_left;
    range.first = first_key > 0 ? first_key / kv_tile_rows : 0;
    // Tiles that start before the window of the tile's last row.
    const int last_first_key = high - 1 - shape.window_left;
    range.end_masked_low = floor_div(last_first_key + kv_tile_rows - 1, kv_tile_rows);
  }
  return range;
}

/// The same for a single query row at `position`, which needs no mask but at the ends.
FOVEA_HOST_DEVICE constexpr KvTileRange row_tile_range(const SequenceShape& shape, int position,
                                                       int kv_tile_rows) {
  KvTileRange range;
  const int end_key = shape.causal && position + 1 < shape.kv_len ? position + 1 : shape.kv_len;
  range.end = end_key > 0 ? (end_key + kv_tile_rows - 1) / kv_tile_rows : 0;
  range.first_masked_high = end_key > 0 ? end_key / kv_tile_rows : 0;
  const int first_key = shape.window_left >= 0 ? position - shape.window_left : 0;
  if (first_key > 0) {
    range.first = first_key / kv_tile_rows;
    range.end_masked_low = (first_key + kv_tile_rows - 1) / kv_tile_rows;
  }
  if (range.first > range.end) range.first = range.end;
  return range;
}

/// Tiles [first, end) of block means that a query tile walks before its keys: they hold the blocks
/// before its query block that the window of its first row at `low`, the widest, covers whole.
struct MeanTileRange {
  int first = 0;
  int end = 0;
};
FOVEA_HOST_DEVICE constexpr MeanTileRange mean_tile_range(const SequenceShape& shape, int low,
                                                          int block_size, int tile_rows) {
  const int q_block = low / block_size;
  MeanTileRange range;
  range.end = (q_block + tile_rows - 1) / tile_rows;
  if (shape.window_left >= 0 && low > shape.window_left) {
    const int first_block = (low - shape.window_left + block_size - 1) / block_size;
    range.first = first_block / tile_rows;
    if (first_block >= q_block) range.first = range.end;
  }
  return range;
}

}  // namespace fovea::cuda
