// What every backend must agree on before a single score is computed: where query blocks sit, which
// blocks are forced, how many the budget allows, and how lists become a BlockSelection.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/selector/block_selector.h"

namespace fovea {

/// One sequence of a call.
struct SequencePlan {
  int64_t seq = 0;
  int64_t q_row = 0;  // its first row in q
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t first_block = 0;      // its first query block
  int64_t end_block = 0;        // one past its last query block
  int64_t q_block_offset = 0;   // where its query blocks start among those of all sequences
  int64_t dense_from = 0;       // query blocks from here on read everything: the dense tail, or all
  std::vector<int32_t> budget;  // blocks per query block, absolute index; empty without a budget

  int64_t num_q_blocks() const { return end_block - first_block; }
  /// Rows [first, first + count) of q that query block `block` owns.
  int64_t first_row(int64_t block, int64_t block_size) const {
    return q_row + (block - first_block) * block_size;
  }
  int64_t num_rows(int64_t block, int64_t block_size) const {
    const int64_t left = q_row + q_len - first_row(block, block_size);
    return left < block_size ? left : block_size;
  }
};

/// The call's sequences in order; those without queries have no blocks.
std::vector<SequencePlan> plan_sequences(const SelectorParams& params);

/// Forced blocks of a query block are [0, sink_end) and [local_begin, q_block + 1); the blocks
/// between, all of them complete, are the candidates.
struct ForcedBlocks {
  int64_t sink_end = 0;
  int64_t local_begin = 0;
  int64_t count(int64_t q_block) const { return sink_end + (q_block + 1 - local_begin); }
};
ForcedBlocks forced_blocks(const SelectorSettings& settings, const SequencePlan& plan,
                           int64_t q_block);

/// Budget mode: blocks that each of query blocks 0 ... num_q_blocks - 1 keeps, forced ones
/// included. Depends on the settings and the absolute block number alone; docs/selection.md gives
/// the rule.
std::vector<int32_t> budget_counts(const SelectorSettings& settings, int64_t num_q_blocks);

/// Blocks that a list of `num_blocks` causal ones, of which it does not keep all, has at most:
/// `num_blocks` where thresholds decide.
int64_t most_kept_blocks(const SelectorSettings& settings, int64_t num_blocks);

/// Of `budget` unforced blocks, those that the rescue branch chooses; the base branch chooses
/// first.
inline int64_t rescue_budget(const SelectorSettings& settings, int64_t budget) {
  return static_cast<int64_t>(static_cast<double>(settings.rescue_share) *
                              static_cast<double>(budget));
}

/// The value below which a share `quantile` of `values` lies, linearly interpolated between the two
/// nearest ranks at quantile * (n - 1), as torch.quantile does. Reorders `values`, which must hold
/// no NaN and at least one value.
double interpolated_quantile(std::span<float> values, double quantile);

/// Statistics entry of block `block` of sequence `seq`.
inline int64_t stats_entry(const SelectorParams& params, int64_t seq, int64_t block) {
  return params.kv.is_paged() ? params.kv.page_table[seq * params.kv.page_table_stride + block]
                              : params.block_offsets[seq] + block;
}

/// Above this, ||q||^2 or max(1, softmax_scale) ||q|| max ||k|| may leave f32: all blocks of such a
/// query block are kept, not judged.
constexpr double kLargestLogit = 1e37;

/// One finished list, waiting in the pool of the thread that made it.
struct PendingList {
  int32_t thread = 0;
  int32_t len = 0;
  int64_t begin = 0;
  int64_t forced = 0;
  int64_t non_finite = 0;
  int64_t skipped = 0;
};

/// Collects lists from many threads and lays them down in (q head, query block) order, so that the
/// result does not depend on which thread made which list.
class SelectionBuilder {
 public:
  SelectionBuilder(const SelectorParams& params, std::span<const SequencePlan> plans,
                   int32_t num_threads);
  /// The pool that thread `thread` appends block numbers to.
  std::vector<int32_t>& pool(int32_t thread) { return pools_[static_cast<size_t>(thread)]; }
  /// Declares the list of (q_head, q block of plan) to be what `thread` appended since `begin`.
  void finish_list(const SequencePlan& plan, int64_t q_head, int64_t q_block, int32_t thread,
                   int64_t begin, int64_t forced, int64_t non_finite, int64_t skipped = 0);
  /// Replaces `selection`.
  void build(BlockSelection& selection);

 private:
  int64_t block_size_, num_q_heads_, num_q_blocks_ = 0;
  std::vector<int64_t> q_block_offsets_;
  int64_t causal_pairs_per_head_ = 0;
  std::vector<std::vector<int32_t>> pools_;
  std::vector<PendingList> lists_;
};

}  // namespace fovea
