// What stands for the blocks of one sequence, as the score kernels want it.
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/selector/selection_rules.h"

namespace fovea {

/// Representatives, masks and uplifts of the blocks that a sequence's query blocks may score, for
/// every KV head. As large as the statistics it is made of (for `oracle`, as the keys): linear in
/// the sequence, whatever the number of queries.
class PackedBlocks {
 public:
  /// `in_bf16` packs pairs of bf16, else f32. Query blocks of one row, as decode
  /// has them, read the representatives where they lie: nothing is packed for them.
  PackedBlocks(const SelectorParams& params, const SequencePlan& plan, bool in_bf16,
               const Context& context);

  int64_t num_groups() const { return num_groups_; }
  int64_t num_reps() const { return num_reps_; }
  const float* rep_bias() const { return rep_bias_.data(); }
  const void* packed(int64_t kv_head) const { return packed_.as<char>() + kv_head * head_bytes_; }
  /// For a query block of one row: addresses of the representatives, [padded blocks, num_reps].
  const void* const* rows(int64_t kv_head) const {
    return rows_.data() + kv_head * padded_blocks_ * num_reps_;
  }
  const float* block_mask(int64_t kv_head) const {
    return block_mask_.data() + kv_head * padded_blocks_;
  }
  bool non_finite(int64_t kv_head, int64_t block) const { return block_mask(kv_head)[block] != 0; }
  float radius(int64_t kv_head, int64_t block) const {
    return radius_[static_cast<size_t>(kv_head * padded_blocks_ + block)];
  }
  /// Bound on the norms of all finite keys of blocks [0, num_blocks), num_blocks > 0.
  double largest_key(int64_t kv_head, int64_t num_blocks) const;
  /// Writes beta_b r_b of blocks [0, q_block) for the rescue branch, zeros up to a full group.
  void rescue_uplift(int64_t kv_head, int64_t q_block, float* uplift) const;
  /// Writes r_b, for the bound.
  void bound_uplift(int64_t kv_head, int64_t q_block, float* uplift) const;

 private:
  struct RadiusQuantiles {
    double low = 0, high = 0, most = 0;
  };
  void read_group(const SelectorParams& params, const SequencePlan& plan, int64_t kv_head,
                  int64_t group);
  void pack_group(const SelectorParams& params, const SequencePlan& plan, int64_t kv_head,
                  int64_t group);
  void list_rows(const SelectorParams& params, const SequencePlan& plan, int64_t kv_head,
                 int64_t group);
  void take_quantiles(const SelectorParams& params, const SequencePlan& plan, int64_t kv_head);

  bool in_bf16_;
  int64_t first_block_, num_q_blocks_, num_blocks_, num_groups_, padded_blocks_, num_reps_;
  int64_t head_bytes_ = 0;
  Tensor packed_;
  std::vector<float> rep_bias_, block_mask_, radius_;
  std::vector<const void*> rows_;
  std::vector<float> zeros_;                // a representative of masked blocks and past the end
  std::vector<double> largest_key_;         // bound on the norms of each block's keys
  std::vector<RadiusQuantiles> quantiles_;  // [kv head, query block], rescue only
};

}  // namespace fovea
