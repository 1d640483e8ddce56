#include "fovea/selector/lab/lab_selector.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/parallel.h"
#include "fovea/selector/cpu/cpu_selector.h"
#include "fovea/selector/lab/method.h"
#include "fovea/selector/lab/own_witnesses.h"

namespace fovea {
namespace {

using lab::kRowsAtOnce;

using MakeMethod = std::unique_ptr<lab::Method> (*)(const lab::Sequence&);

MakeMethod find_method(SelectorMethod method) {
  switch (method) {
    case SelectorMethod::kMinMax:
      return lab::make_minmax;
    case SelectorMethod::kAntidiagonal:
      return lab::make_antidiagonal;
    case SelectorMethod::kVerticalSlash:
      return lab::make_vertical_slash;
    case SelectorMethod::kQueryAware:
      return lab::make_query_aware;
    case SelectorMethod::kSelfSimilar:
      return lab::make_self_similar;
    case SelectorMethod::kNearest:
      return lab::make_nearest;
    case SelectorMethod::kMass:
      return lab::make_mass;
    case SelectorMethod::kPeak:
      return lab::make_peak;
    case SelectorMethod::kWitness:
      return lab::make_skip_by_bound;
    default:
      return nullptr;
  }
}

// What one thread needs for one query block.
struct ThreadScratch {
  lab::Scratch scratch;
  lab::Verdict verdict;
  std::vector<int32_t> order;
};

// Reads the rows of a query block; false when they cannot be judged.
bool read_rows(const lab::Sequence& sequence, lab::QueryBlock& block, lab::Scratch& scratch) {
  const int64_t d = sequence.head_dim;
  const int64_t padded = (block.num_rows + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
  scratch.queries.assign(static_cast<size_t>(padded * d), 0.0f);
  const double scale = std::max(1.0, static_cast<double>(sequence.params.softmax_scale));
  const double largest_key = sequence.largest_key(block.kv_head, block.index) * scale;
  for (int64_t r = 0; r < block.num_rows; ++r) {
    float* const row = scratch.queries.data() + r * d;
    sequence.read_query(block.q_head, block.first_position - sequence.first_position() + r, row);
    double square = 0;
    for (int64_t c = 0; c < d; ++c)
      square += static_cast<double>(row[c]) * static_cast<double>(row[c]);
    // Both are false for NaN.
    if (!(square <= kLargestLogit)) return false;
    if (!(std::sqrt(square) * largest_key <= kLargestLogit)) return false;
  }
  block.rows = scratch.queries.data();
  return true;
}

class LabSelector final : public SelectorBackend {
 public:
  std::string_view name() const override { return "cpu_lab"; }

  std::string why_unsupported(const SelectorParams& params, const Context& context) const override {
    if (context.device.type != DeviceType::kCpu) return "runs on the CPU only";
    return is_lab(params.settings) ? "" : "the method has kernels of its own";
  }

  void run(const SelectorParams& params, const Context& context,
           BlockSelection& selection) const override {
    const std::vector<SequencePlan> plans = plan_sequences(params);
    if (varies_witnesses(params.settings)) {
      const lab::OwnWitnesses own(params, plans, context);
      run_on(own.params(), plans, context, selection);
    } else {
      run_on(params, plans, context, selection);
    }
  }

 private:
  static void run_on(const SelectorParams& params, const std::vector<SequencePlan>& plans,
                     const Context& context, BlockSelection& selection) {
    if (!is_lab(params.settings)) {  // `witness`, and nothing is left to do but to score
      for (const SelectorBackend* backend : cpu_selectors()) {
        if (backend->why_unsupported(params, context).empty()) {
          backend->run(params, context, selection);
          return;
        }
      }
    }
    const int32_t num_threads = resolve_num_threads(context);
    SelectionBuilder builder(params, plans, num_threads);
    std::vector<ThreadScratch> scratch(static_cast<size_t>(num_threads));
    const MakeMethod make_method = find_method(params.settings.method);
    for (const SequencePlan& plan : plans) {
      if (plan.num_q_blocks() == 0) continue;
      const lab::Sequence sequence(params, plan, context);
      const std::unique_ptr<lab::Method> method = make_method(sequence);
      // Late query blocks are the long tasks: they start first.
      parallel_for(context, plan.num_q_blocks() * sequence.num_q_heads,
                   [&](int64_t task, int32_t thread) {
                     const int64_t q_block = plan.end_block - 1 - task / sequence.num_q_heads;
                     select_one(sequence, *method, task % sequence.num_q_heads, q_block, thread,
                                scratch[static_cast<size_t>(thread)], builder);
                   });
    }
    builder.build(selection);
  }

  static void select_one(const lab::Sequence& sequence, const lab::Method& method, int64_t q_head,
                         int64_t q_block, int32_t thread, ThreadScratch& scratch,
                         SelectionBuilder& builder) {
    const SequencePlan& plan = sequence.plan;
    lab::QueryBlock block;
    block.q_head = q_head;
    block.kv_head = sequence.kv_head(q_head);
    block.index = q_block;
    block.first_position = std::max(q_block * sequence.block_size, sequence.first_position());
    block.num_rows = plan.num_rows(q_block, sequence.block_size);
    block.forced = forced_blocks(sequence.params.settings, plan, q_block);
    std::vector<int32_t>& pool = builder.pool(thread);
    const auto begin = static_cast<int64_t>(pool.size());
    int64_t non_finite = 0, skipped = 0;
    if (block.forced.sink_end < block.forced.local_begin) {
      non_finite = decide(sequence, method, block, scratch);
      skipped = scratch.verdict.num_skipped;
    }
    for (int64_t b = 0; b <= q_block; ++b) {
      const bool is_forced = b < block.forced.sink_end || b >= block.forced.local_begin;
      if (is_forced || scratch.verdict.keep[static_cast<size_t>(b)] != 0) {
        pool.push_back(static_cast<int32_t>(b));
      }
    }
    builder.finish_list(plan, q_head, q_block, thread, begin, block.forced.count(q_block),
                        non_finite, skipped);
  }

  // Fills scratch.verdict.keep; returns the blocks before the query block that are kept because a
  // number is not finite.
  static int64_t decide(const lab::Sequence& sequence, const lab::Method& method,
                        lab::QueryBlock& block, ThreadScratch& scratch) {
    lab::Verdict& verdict = scratch.verdict;
    const auto size = static_cast<size_t>(block.index);
    verdict.score.assign(size, 0.0f);
    verdict.keep.assign(size, 0);
    verdict.num_skipped = 0;
    const bool judged = read_rows(sequence, block, scratch.scratch);
    if (judged) method.judge(block, scratch.scratch, verdict);
    int64_t non_finite = 0;
    bool all_finite = judged;
    std::vector<int32_t>& candidates = scratch.order;
    candidates.clear();
    for (int64_t b = 0; b < block.index; ++b) {
      const bool is_forced = b < block.forced.sink_end || b >= block.forced.local_begin;
      if (sequence.is_bad(block.kv_head, b)) {
        ++non_finite;
        verdict.keep[static_cast<size_t>(b)] = 1;
      } else if (!is_forced) {
        candidates.push_back(static_cast<int32_t>(b));
        all_finite = all_finite && std::isfinite(verdict.score[static_cast<size_t>(b)]);
      }
    }
    if (!all_finite) {
      std::fill(verdict.keep.begin(), verdict.keep.end(), uint8_t{1});
      return block.index;
    }
    if (sequence.params.settings.density > 0) {
      keep_budget(sequence, block, scratch);
    }
    return non_finite;
  }

  // Keeps the best of the candidates in scratch.order, as many as the budget leaves.
  static void keep_budget(const lab::Sequence& sequence, const lab::QueryBlock& block,
                          ThreadScratch& scratch) {
    const auto num_candidates = static_cast<int64_t>(scratch.order.size());
    const int64_t unforced = block.forced.local_begin - block.forced.sink_end;
    const int64_t left = sequence.plan.budget[static_cast<size_t>(block.index)] -
                         block.forced.count(block.index) - (unforced - num_candidates);
    lab::sort_by_score(scratch.verdict.score, scratch.order);
    for (int64_t i = 0; i < num_candidates; ++i) {
      scratch.verdict.keep[static_cast<size_t>(scratch.order[static_cast<size_t>(i)])] =
          i < left ? 1 : 0;
    }
  }
};

}  // namespace

const SelectorBackend& lab_selector() {
  static const LabSelector selector;
  return selector;
}

}  // namespace fovea
