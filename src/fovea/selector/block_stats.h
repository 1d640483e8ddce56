// What a page keeps beside its keys so that a selector can judge it without reading it.
#pragma once

#include <cstdint>
#include <span>

#include "fovea/attention/kv_view.h"
#include "fovea/base/context.h"
#include "fovea/tensor/block_stats_view.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

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
