#include "fovea/selector/cpu/cpu_selector.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "fovea/base/checked_math.h"
#include "fovea/base/cpu_features.h"
#include "fovea/base/parallel.h"
#include "fovea/selector/cpu/packed_blocks.h"
#include "fovea/selector/cpu/score_task.h"
#include "fovea/selector/selection_rules.h"

namespace fovea {
namespace {

// What one thread needs for one query block: linear in the number of KV blocks.
struct ThreadScratch {
  Tensor kernel;                   // score_scratch_floats()
  std::vector<float> score[2];     // per block
  std::vector<float> together[2];  // per block, of the q heads that share a list
  std::vector<float> uplift;       // per block
  std::vector<uint8_t> keep;       // per block
  std::vector<int32_t> order;      // per block

  void reserve(int64_t num_rows, int64_t head_dim, int64_t padded_blocks) {
    const int64_t num_floats = score_scratch_floats(num_rows, head_dim);
    if (kernel.size_bytes() < num_floats * dtype_bytes(DType::kF32)) {
      kernel = Tensor(DType::kF32, {num_floats});
    }
    const auto size = static_cast<size_t>(padded_blocks);
    if (uplift.size() >= size) return;
    for (auto& scores : score) scores.resize(size);
    for (auto& scores : together) scores.resize(size);
    uplift.resize(size);
    keep.resize(size);
    order.resize(size);
  }
};

// An integer that orders as the score does; both zeros are one.
int32_t order_of(float score) {
  const auto bits = std::bit_cast<int32_t>(score + 0.0f);
  return bits < 0 ? bits ^ std::numeric_limits<int32_t>::max() : bits;
}

// Keeps the `count` best of the candidates that are not kept yet; equals in order of their number.
//
// The least order of a kept one is found by halving its range: counting takes no branches, which
// for these few hundred numbers beats sorting some of them.
void keep_best(const std::vector<float>& score, const ForcedBlocks& range, int64_t count,
               ThreadScratch& scratch) {
  if (count <= 0) return;
  constexpr int32_t kKept = std::numeric_limits<int32_t>::min();  // below every score
  int32_t* const order = scratch.order.data();
  int64_t num_candidates = 0;
  for (int64_t b = range.sink_end; b < range.local_begin; ++b) {
    const auto i = static_cast<size_t>(b);
    const bool is_kept = scratch.keep[i] != 0;
    order[b] = is_kept ? kKept : order_of(score[i]);
    num_candidates += is_kept ? 0 : 1;
  }
  const auto num_from = [&](int32_t least) {
    int32_t num = 0;
    for (int64_t b = range.sink_end; b < range.local_begin; ++b) num += order[b] >= least ? 1 : 0;
    return num;
  };
  count = std::min(count, num_candidates);
  // At least `count` orders reach `low`, fewer reach `high`.
  int64_t low = kKept + int64_t{1}, high = int64_t{std::numeric_limits<int32_t>::max()} + 1;
  int64_t num_from_low = num_candidates, num_from_high = 0;
  while (num_from_low > count && high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const int64_t num = num_from(static_cast<int32_t>(middle));
    (num >= count ? low : high) = middle;
    (num >= count ? num_from_low : num_from_high) = num;
  }
  // Between the two all orders are equal, unless all of them are wanted.
  int64_t left = count - num_from_high;
  for (int64_t b = range.sink_end; b < range.local_begin; ++b) {
    if (order[b] < low || (order[b] < high && left-- <= 0)) continue;
    scratch.keep[static_cast<size_t>(b)] = 1;
  }
}

// Keeps the candidates that reach alpha times the best score.
void keep_above(const std::vector<float>& score, float alpha, const ForcedBlocks& candidates,
                int64_t first_in_maximum, int64_t end_in_maximum, const float* block_mask,
                ThreadScratch& scratch) {
  float best = -std::numeric_limits<float>::infinity();
  for (int64_t b = first_in_maximum; b < end_in_maximum; ++b) {
    if (block_mask[b] == 0) best = std::max(best, score[static_cast<size_t>(b)]);
  }
  const float least = best + std::log2(alpha);
  for (int64_t b = candidates.sink_end; b < candidates.local_begin; ++b) {
    if (score[static_cast<size_t>(b)] >= least) scratch.keep[static_cast<size_t>(b)] = 1;
  }
}

// log2(2^a + 2^b)
float log2_sum(float a, float b) {
  return std::max(a, b) + std::log2(1 + std::exp2(-std::abs(a - b)));
}

class CpuSelector final : public SelectorBackend {
 public:
  CpuSelector(std::string_view name, ScoreKernel kernel, bool CpuFeatures::*feature,
              int64_t bf16_multiple)
      : name_(name), kernel_(kernel), feature_(feature), bf16_multiple_(bf16_multiple) {}

  std::string_view name() const override { return name_; }

  std::string why_unsupported(const SelectorParams& params, const Context& context) const override {
    if (context.device.type != DeviceType::kCpu) return "runs on the CPU only";
    const SelectorMethod method = params.settings.method;
    if (method == SelectorMethod::kAll || method == SelectorMethod::kStreaming) {
      return "the method scores nothing";
    }
    if (is_lab(params.settings)) return "the lab has the method, or the variant of it";
    if (feature_ != nullptr && !(cpu_features().*feature_)) {
      return "the processor lacks the instructions";
    }
    if (in_bf16()) {
      if (params.q.dtype != DType::kBF16) return "takes bf16 only";
      if (params.q.shape[2] % bf16_multiple_ != 0) {
        return fmt::format("needs head_dim in multiples of {}", bf16_multiple_);
      }
    }
    return "";
  }

  void run(const SelectorParams& params, const Context& context,
           BlockSelection& selection) const override {
    const std::vector<SequencePlan> plans = plan_sequences(params);
    const int32_t num_threads = resolve_num_threads(context);
    SelectionBuilder builder(params, plans, num_threads);
    std::vector<ThreadScratch> scratch(static_cast<size_t>(num_threads));
    for (const SequencePlan& plan : plans) {
      const int64_t num_blocks = plan.num_q_blocks();
      if (num_blocks == 0) continue;
      const PackedBlocks packed(params, plan, in_bf16(), context);
      const int64_t num_heads =
          params.settings.lists_per_kv_head ? params.kv.num_kv_heads() : params.q.shape[1];
      const int64_t sharing = params.q.shape[1] / num_heads;
      // Late query blocks are the long tasks: they start first.
      parallel_for(context, num_blocks * num_heads, [&](int64_t task, int32_t thread) {
        const int64_t q_block = plan.end_block - 1 - task / num_heads;
        const HeadRange heads{task % num_heads * sharing, sharing};
        select_one(params, plan, packed, heads, q_block, thread,
                   scratch[static_cast<size_t>(thread)], builder);
      });
    }
    builder.build(selection);
  }

 private:
  // Q heads that share a list; mostly one.
  struct HeadRange {
    int64_t first = 0, count = 1;
  };

  bool in_bf16() const { return bf16_multiple_ > 0; }

  void select_one(const SelectorParams& params, const SequencePlan& plan,
                  const PackedBlocks& packed, HeadRange heads, int64_t q_block, int32_t thread,
                  ThreadScratch& scratch, SelectionBuilder& builder) const {
    const SelectorSettings& settings = params.settings;
    const ForcedBlocks forced = forced_blocks(settings, plan, q_block);
    std::vector<int32_t>& pool = builder.pool(thread);
    const auto begin = static_cast<int64_t>(pool.size());
    int64_t non_finite = 0;
    if (forced.sink_end < forced.local_begin) {
      scratch.reserve(plan.num_rows(q_block, settings.block_size), params.q.shape[2],
                      packed.num_groups() * kGroupBlocks);
      const int64_t kv_head = heads.first / (params.q.shape[1] / params.kv.num_kv_heads());
      const bool judged = score_heads(params, plan, packed, heads, kv_head, q_block, scratch);
      non_finite = decide(params, plan, packed, kv_head, q_block, forced, judged, scratch);
    }
    for (int64_t b = 0; b < forced.sink_end; ++b) pool.push_back(static_cast<int32_t>(b));
    for (int64_t b = forced.sink_end; b < forced.local_begin; ++b) {
      if (scratch.keep[static_cast<size_t>(b)] != 0) pool.push_back(static_cast<int32_t>(b));
    }
    for (int64_t b = forced.local_begin; b <= q_block; ++b) {
      pool.push_back(static_cast<int32_t>(b));
    }
    for (int64_t h = heads.first; h < heads.first + heads.count; ++h) {
      builder.finish_list(plan, h, q_block, thread, begin, forced.count(q_block), non_finite);
    }
  }

  // Fills scratch.score for all heads together; false when one of their queries cannot be judged.
  bool score_heads(const SelectorParams& params, const SequencePlan& plan,
                   const PackedBlocks& packed, HeadRange heads, int64_t kv_head, int64_t q_block,
                   ThreadScratch& scratch) const {
    const int num_branches = params.settings.method == SelectorMethod::kRescue ? 2 : 1;
    if (!score(params, plan, packed, heads.first, kv_head, q_block, scratch)) return false;
    for (int64_t i = 1; i < heads.count; ++i) {
      for (int x = 0; x < num_branches; ++x) std::swap(scratch.score[x], scratch.together[x]);
      if (!score(params, plan, packed, heads.first + i, kv_head, q_block, scratch)) return false;
      for (int x = 0; x < num_branches; ++x) {
        for (size_t b = 0; b < static_cast<size_t>(q_block); ++b) {
          float& score = scratch.score[x][b];
          score = params.settings.aggregation == Aggregation::kSum
                      ? log2_sum(score, scratch.together[x][b])
                      : std::max(score, scratch.together[x][b]);
        }
      }
    }
    return true;
  }

  // Fills scratch.score; false when the query cannot be judged.
  bool score(const SelectorParams& params, const SequencePlan& plan, const PackedBlocks& packed,
             int64_t q_head, int64_t kv_head, int64_t q_block, ThreadScratch& scratch) const {
    const SelectorSettings& settings = params.settings;
    const int64_t row = plan.first_row(q_block, settings.block_size);
    ScoreTask task;
    task.q = params.q.as<char>() +
             (row * params.q.stride[0] + q_head * params.q.stride[1]) * dtype_bytes(params.q.dtype);
    task.q_stride = params.q.stride[0];
    task.q_is_bf16 = params.q.dtype == DType::kBF16;
    task.num_rows = plan.num_rows(q_block, settings.block_size);
    task.head_dim = params.q.shape[2];
    task.num_blocks = q_block;
    if (task.num_rows == 1) {
      task.rep_rows = packed.rows(kv_head);
    } else {
      task.packed = packed.packed(kv_head);
    }
    task.num_reps = packed.num_reps();
    task.rep_bias = packed.rep_bias();
    task.block_mask = packed.block_mask(kv_head);
    const float softmax_scale = params.softmax_scale > 0
                                    ? params.softmax_scale
                                    : 1 / std::sqrt(static_cast<float>(task.head_dim));
    task.scale = softmax_scale * std::numbers::log2e_v<float>;
    task.aggregation = settings.aggregation;
    if (settings.aggregation == Aggregation::kMaxOverMeans &&
        settings.method == SelectorMethod::kWitness) {
      task.first_normaliser_rep = task.num_reps - 1;  // the mean of the rest
    }
    task.largest_key = packed.largest_key(kv_head, q_block) *
                       std::max(1.0, static_cast<double>(params.softmax_scale));
    task.score[0] = scratch.score[0].data();
    task.scratch = scratch.kernel.as<float>();
    if (settings.method == SelectorMethod::kBound) {
      packed.bound_uplift(kv_head, q_block, scratch.uplift.data());
      task.uplift[0] = scratch.uplift.data();
    } else if (settings.method == SelectorMethod::kRescue) {
      packed.rescue_uplift(kv_head, q_block, scratch.uplift.data());
      task.num_branches = 2;
      task.uplift[1] = scratch.uplift.data();
      task.score[1] = scratch.score[1].data();
    }
    return kernel_(task);
  }

  // Fills scratch.keep for the candidates; returns the blocks before q_block that are kept because
  // a number is not finite.
  static int64_t decide(const SelectorParams& params, const SequencePlan& plan,
                        const PackedBlocks& packed, int64_t kv_head, int64_t q_block,
                        const ForcedBlocks& forced, bool judged, ThreadScratch& scratch) {
    const SelectorSettings& settings = params.settings;
    if (!judged) {
      std::fill_n(scratch.keep.begin(), q_block, uint8_t{1});
      return q_block;
    }
    const float* mask = packed.block_mask(kv_head);
    int64_t non_finite = 0, in_candidates = 0;
    for (int64_t b = 0; b < q_block; ++b) {
      const bool bad = mask[b] != 0;
      scratch.keep[static_cast<size_t>(b)] = bad ? 1 : 0;
      non_finite += bad ? 1 : 0;
      in_candidates += bad && b >= forced.sink_end && b < forced.local_begin ? 1 : 0;
    }
    if (settings.density > 0) {
      const int64_t candidates = forced.local_begin - forced.sink_end - in_candidates;
      const int64_t left = plan.budget[static_cast<size_t>(q_block)] - forced.count(q_block);
      const int64_t budget = std::clamp<int64_t>(left - in_candidates, 0, candidates);
      const bool two = settings.method == SelectorMethod::kRescue;
      const int64_t second = two ? rescue_budget(settings, budget) : 0;
      keep_best(scratch.score[0], forced, budget - second, scratch);
      if (two) keep_best(scratch.score[1], forced, second, scratch);
      return non_finite;
    }
    const int64_t first = settings.forced_in_maximum ? 0 : forced.sink_end;
    const int64_t end = settings.forced_in_maximum ? q_block : forced.local_begin;
    keep_above(scratch.score[0], settings.alpha_base, forced, first, end, mask, scratch);
    if (settings.method == SelectorMethod::kRescue) {
      keep_above(scratch.score[1], settings.alpha_rescue, forced, first, end, mask, scratch);
    }
    return non_finite;
  }

  std::string_view name_;
  ScoreKernel kernel_;
  bool CpuFeatures::*feature_;  // null: needs none
  int64_t bf16_multiple_;       // head_dim must be a multiple of it; 0: computes in f32
};

}  // namespace

std::span<const SelectorBackend* const> cpu_selectors() {
  static const CpuSelector kPortable("cpu_portable", score_portable, nullptr, 0);
#if defined(__x86_64__)
  static const CpuSelector kAmx("cpu_amx_bf16", score_amx_bf16, &CpuFeatures::amx_bf16, 32);
  static const CpuSelector kBf16("cpu_avx512_bf16", score_avx512_bf16, &CpuFeatures::avx512_bf16,
                                 2);
  static const CpuSelector kAvx512("cpu_avx512", score_avx512, &CpuFeatures::avx512, 0);
  static const CpuSelector kAvx2("cpu_avx2", score_avx2, &CpuFeatures::avx2, 0);
  static const std::array<const SelectorBackend*, 5> kAll = {&kAmx, &kBf16, &kAvx512, &kAvx2,
                                                             &kPortable};
#else
  static const std::array<const SelectorBackend*, 1> kAll = {&kPortable};
#endif
  return kAll;
}

}  // namespace fovea
