// What a page keeps beside its keys so that a selector can judge it without reading it.
#pragma once

#include <cstdint>
#include <span>

#include "fovea/attention/kv_view.h"
#include "fovea/base/context.h"
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

/// Owns the statistics of `num_pages` pages.
class BlockStats {
 public:
  BlockStats() = default;
  /// Throws kInvalidArgument when num_witnesses is outside 0 ... 8, and as Tensor does.
  BlockStats(DType dtype, int64_t num_pages, int64_t num_kv_heads, int64_t head_dim,
             int64_t block_size, int64_t num_witnesses, Device device = {});
  const BlockStatsView& view() const { return view_; }
  int64_t size_bytes() const;

 private:
  Tensor centroid_, radius_, v_mean_, witness_, rest_mean_, non_finite_;
  BlockStatsView view_;
};

/// Bytes that BlockStats takes for one page.
int64_t block_stats_bytes(DType dtype, int64_t num_kv_heads, int64_t head_dim,
                          int64_t num_witnesses);

/// Computes the statistics of blocks [first_block, end_block) of sequence `seq`, all of them
/// complete, on the context's device.
///
/// Paged K/V (page_size == block_size): writes entry page_table[seq][b]. Contiguous: entry
/// block_offset + b. Witnesses are the num_witnesses keys found by greedy farthest-point search
/// that starts from the centroid (ties go to the earlier key); rest_mean is the mean of all other
/// keys. Throws kInvalidArgument on shapes that do not fit, kUnsupported on what a GPU's kernel
/// lacks.
void compute_block_stats(const KvView& kv, int64_t seq, int64_t first_block, int64_t end_block,
                         int64_t block_offset, const BlockStatsView& stats, const Context& context);

}  // namespace fovea
