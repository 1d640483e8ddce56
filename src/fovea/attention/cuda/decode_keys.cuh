// Which keys a decoded row sees, how they are cut, and where they lie.
#pragma once

#include "fovea/attention/cuda/decode.h"
#include "fovea/attention/cuda/split_kv.cuh"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

constexpr int kDecodeWarps = 8;

__device__ inline uint32_t word(const uint4& bits, int i) {
  return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w;
}

/// Keys [begin, end) that a row sees, in tiles that warps take, and how these are cut into runs.
template <int kTileKeys>
struct Splits {
  __device__ Splits(const DecodeParams& p, int q_row) : seq(sequence_of_row(p.common, q_row)) {
    const SequenceShape shape = sequence_shape(p.common, seq);
    const int position = shape.first_position() + q_row - static_cast<int>(p.common.q_offsets[seq]);
    begin = shape.window_left >= 0 ? max(position - shape.window_left, 0) : 0;
    end = shape.causal ? min(position + 1, shape.kv_len) : shape.kv_len;
    first_tile = begin / kTileKeys;
    num_tiles = max((end + kTileKeys - 1) / kTileKeys - first_tile, 0);
    tiles_each = max((num_tiles + p.max_splits - 1) / p.max_splits, kDecodeWarps);
  }
  __device__ int count() const { return (num_tiles + tiles_each - 1) / tiles_each; }
  /// Tiles before those that hold one of the last key's `together` keys.
  __device__ int tiles_before_last(int together) const {
    return max((end - 1) / together * together / kTileKeys - first_tile, 0);
  }
  /// First tile of a run, where the last run has all tiles from `num_apart` on.
  __device__ int run_begin(int run, int num_apart) const {
    return run == count() ? num_tiles : min(run * tiles_each, num_apart);
  }
  __device__ int first_key(int tile) const { return (first_tile + tile) * kTileKeys; }
  __device__ bool is_seen(int key) const { return begin <= key && key < end; }
  /// All of the tile's.
  __device__ bool are_seen(int first_key) const {
    return begin <= first_key && first_key + kTileKeys <= end;
  }

  int seq, begin, end;
  int first_tile, num_tiles, tiles_each;
};

/// Where the keys of one sequence and KV head lie.
class KeyPlaces {
 public:
  __device__ KeyPlaces(const PrefillParams& p, int seq, int kv_head)
      : page_size_(p.page_size),
        kv_head_(kv_head),
        kv_offset_(p.page_table != nullptr ? 0 : static_cast<int>(p.kv_offsets[seq])),
        page_table_(p.page_table != nullptr ? p.page_table + seq * p.page_table_stride : nullptr) {}

  /// Of a tile, whose keys share a page; `column`: of its rows.
  __device__ ptx::BoxCoordinates tile(int first_key, int column) const {
    if (page_table_ == nullptr) return {column, kv_offset_ + first_key, kv_head_, 0};
    return {column, first_key % page_size_, kv_head_, page_of(first_key)};
  }
  __device__ int page_of(int key) const { return page_table_[key / page_size_]; }
  __device__ int kv_head() const { return kv_head_; }

 private:
  int page_size_, kv_head_, kv_offset_;
  const int32_t* page_table_;
};

}  // namespace fovea::cuda
