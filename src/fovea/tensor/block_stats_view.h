// What a page keeps beside its keys: filled by who writes them or by a pass, read by selectors.
#pragma once

#include <cstdint>

#include "fovea/tensor/tensor.h"

namespace fovea {

/// Most witness keys that a page keeps.
constexpr int64_t kMaxWitnesses = 8;

/// Statistics of complete KV blocks, indexed like pages (see Periphery::block_offsets for
/// contiguous K/V). Sums run in f32 or wider in a fixed order: the same keys give the same bits, on
/// any thread count.
struct BlockStatsView {
  int64_t block_size = 0;
  TensorView centroid;  // [num_pages, num_kv_heads, head_dim], type of K: mean of the block's keys
  TensorView radius;    // f32 [num_pages, num_kv_heads]: max over keys of ||k - centroid||_2, the
                        // centroid as stored, so that q.k <= q.centroid + ||q|| radius holds
  TensorView v_mean;  // [num_pages, num_kv_heads, head_dim], type of V: mean of the block's values
  TensorView
      witness;  // [num_pages, num_kv_heads * num_witnesses, head_dim], type of K; may be empty
  TensorView rest_mean;   // [num_pages, num_kv_heads, head_dim], type of K: mean of the other keys
  TensorView non_finite;  // i32 [num_pages, num_kv_heads]: 1 when a key is NaN or Inf, or so large
                          // that a statistic left f32; the other entries then mean nothing
  int64_t num_witnesses = 0;  // W, 0 ... 8
};

}  // namespace fovea
