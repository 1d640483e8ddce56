#include "fovea/selector/selection_rules.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/checked_math.h"

namespace fovea {

std::vector<SequencePlan> plan_sequences(const SelectorParams& params) {
  const SelectorSettings& settings = params.settings;
  const int64_t block_size = settings.block_size;
  std::vector<SequencePlan> plans(static_cast<size_t>(params.batch.batch_size));
  int64_t q_block_offset = 0, longest = 0;
  for (size_t s = 0; s < plans.size(); ++s) {
    SequencePlan& plan = plans[s];
    plan.seq = static_cast<int64_t>(s);
    plan.q_row = params.batch.q_offsets[s];
    plan.q_len = params.batch.q_offsets[s + 1] - plan.q_row;
    plan.kv_len = params.batch.kv_lens[s];
    plan.first_block = first_q_block(plan.q_len, plan.kv_len, block_size);
    plan.end_block = plan.q_len > 0 ? end_q_block(plan.kv_len, block_size) : plan.first_block;
    plan.q_block_offset = q_block_offset;
    q_block_offset += plan.num_q_blocks();
    longest = std::max(longest, plan.end_block);

    const int64_t prompt_len = params.prompt_lens != nullptr ? params.prompt_lens[s] : plan.kv_len;
    const int64_t prompt_blocks = ceil_div(prompt_len, block_size);
    plan.dense_from = std::max<int64_t>(0, prompt_blocks - settings.dense_tail_blocks);
    if (prompt_len < settings.min_sparse_len) plan.dense_from = 0;
  }
  if (settings.density > 0) {
    const std::vector<int32_t> budget = budget_counts(settings, longest);
    for (SequencePlan& plan : plans) {
      plan.budget.assign(budget.begin(), budget.begin() + plan.end_block);
    }
  }
  return plans;
}

ForcedBlocks forced_blocks(const SelectorSettings& settings, const SequencePlan& plan,
                           int64_t q_block) {
  const int64_t end = q_block + 1;
  if (settings.method == SelectorMethod::kAll || q_block >= plan.dense_from) return {end, end};
  int64_t sink = settings.sink_blocks, local = settings.local_blocks;
  if (settings.method == SelectorMethod::kStreaming) {
    // The block's first row looks back furthest: local - 1 keys before itself.
    sink = ceil_div(settings.streaming_sink_tokens, settings.block_size);
    local = ceil_div(settings.streaming_local_tokens - 1, settings.block_size) + 1;
  }
  const int64_t sink_end = std::min(sink, end);
  return {sink_end, std::max(sink_end, end - local)};
}

std::vector<int32_t> budget_counts(const SelectorSettings& settings, int64_t num_q_blocks) {
  std::vector<int32_t> counts(static_cast<size_t>(num_q_blocks));
  const double density = settings.density;
  int64_t kept = 0;
  for (int64_t i = 0; i < num_q_blocks; ++i) {
    const int64_t causal = i + 1;
    const int64_t forced = std::min(causal, settings.sink_blocks + settings.local_blocks);
    const double want = density * static_cast<double>(causal);
    const double free = std::max(0.0, want - static_cast<double>(forced));
    // Early rows keep their forced blocks although the budget allows fewer. Later rows pay that
    // back, each at most a quarter of its free blocks; the same term carries rounding errors on.
    const double debt = static_cast<double>(kept) -
                        density * (static_cast<double>(i) * static_cast<double>(causal) / 2);
    const auto count = static_cast<int64_t>(std::lround(want - std::min(debt, free / 4)));
    counts[static_cast<size_t>(i)] =
        static_cast<int32_t>(std::min(causal, std::max(forced, count)));
    kept += counts[static_cast<size_t>(i)];
  }
  return counts;
}

int64_t most_kept_blocks(const SelectorSettings& settings, int64_t num_blocks) {
  const bool is_streaming = settings.method == SelectorMethod::kStreaming;
  if (!is_streaming && settings.density == 0) return num_blocks;
  SequencePlan plan;
  plan.dense_from = num_blocks;
  int64_t most = forced_blocks(settings, plan, num_blocks - 1).count(num_blocks - 1);
  if (!is_streaming) {
    // A row may pay for rounding before it: one block more than its share, rounded up.
    const double share = static_cast<double>(settings.density) * static_cast<double>(num_blocks);
    most = std::max(most, static_cast<int64_t>(std::ceil(share)) + 1);
  }
  return std::min(most, num_blocks);
}

double interpolated_quantile(std::span<float> values, double quantile) {
  const double rank = quantile * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(low);
  std::nth_element(values.begin(), nth, values.end());
  const double low_value = *nth;
  if (low + 1 >= values.size()) return low_value;
  const double high_value = *std::min_element(nth + 1, values.end());
  return low_value + (rank - static_cast<double>(low)) * (high_value - low_value);
}

SelectionBuilder::SelectionBuilder(const SelectorParams& params,
                                   std::span<const SequencePlan> plans, int32_t num_threads)
    : block_size_(params.settings.block_size),
      num_q_heads_(params.q.shape[1]),
      pools_(static_cast<size_t>(num_threads)) {
  for (const SequencePlan& plan : plans) {
    q_block_offsets_.push_back(plan.q_block_offset);
    num_q_blocks_ += plan.num_q_blocks();
    for (int64_t i = plan.first_block; i < plan.end_block; ++i) causal_pairs_per_head_ += i + 1;
  }
  q_block_offsets_.push_back(num_q_blocks_);
  lists_.resize(static_cast<size_t>(checked_mul(num_q_heads_, num_q_blocks_, "number of lists")));
}

void SelectionBuilder::finish_list(const SequencePlan& plan, int64_t q_head, int64_t q_block,
                                   int32_t thread, int64_t begin, int64_t forced,
                                   int64_t non_finite, int64_t skipped) {
  const int64_t row = q_head * num_q_blocks_ + plan.q_block_offset + (q_block - plan.first_block);
  const auto end = static_cast<int64_t>(pool(thread).size());
  lists_[static_cast<size_t>(row)] = {
      thread, static_cast<int32_t>(end - begin), begin, forced, non_finite, skipped};
}

void SelectionBuilder::build(BlockSelection& selection) {
  selection.block_size = block_size_;
  selection.num_q_heads = num_q_heads_;
  selection.num_q_blocks = num_q_blocks_;
  selection.q_block_offsets = q_block_offsets_;
  selection.causal_pairs = causal_pairs_per_head_ * num_q_heads_;
  selection.kept_pairs = selection.forced_pairs = selection.non_finite_pairs = 0;
  selection.skipped_pairs = 0;
  selection.begin.resize(lists_.size());
  selection.len.resize(lists_.size());
  for (size_t r = 0; r < lists_.size(); ++r) {
    selection.begin[r] = selection.kept_pairs;
    selection.len[r] = lists_[r].len;
    selection.kept_pairs += lists_[r].len;
    selection.forced_pairs += lists_[r].forced;
    selection.non_finite_pairs += lists_[r].non_finite;
    selection.skipped_pairs += lists_[r].skipped;
  }
  selection.blocks.resize(static_cast<size_t>(selection.kept_pairs));
  for (size_t r = 0; r < lists_.size(); ++r) {
    const auto from = pool(lists_[r].thread).begin() + lists_[r].begin;
    std::copy(from, from + lists_[r].len, selection.blocks.begin() + selection.begin[r]);
  }
}

}  // namespace fovea
