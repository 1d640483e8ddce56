#include "fovea/selector/cpu/packed_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "fovea/base/checked_math.h"
#include "fovea/base/parallel.h"
#include "fovea/selector/cpu/score_task.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea {
namespace {

float read(const TensorView& tensor, int64_t index) {
  return tensor.dtype == DType::kF32 ? tensor.as<float>()[index]
                                     : to_float(tensor.as<BFloat16>()[index]);
}

// Where representative `rep` of a block lies.
struct RepAddress {
  const TensorView* tensor;
  int64_t offset;
};

RepAddress rep_address(const SelectorParams& params, const SequencePlan& plan, int64_t kv_head,
                       int64_t block, int64_t rep) {
  const BlockStatsView& stats = params.stats;
  const KvView& kv = params.kv;
  const int64_t entry = stats_entry(params, plan.seq, block);
  auto in = [&](const TensorView& tensor, int64_t row) -> RepAddress {
    return {&tensor, entry * tensor.stride[0] + row * tensor.stride[1]};
  };
  switch (params.settings.method) {
    case SelectorMethod::kWitness:
      return rep < stats.num_witnesses ? in(stats.witness, kv_head * stats.num_witnesses + rep)
                                       : in(stats.rest_mean, kv_head);
    case SelectorMethod::kOracle:
      if (kv.is_paged()) {
        return {&kv.k, entry * kv.k.stride[0] + kv_head * kv.k.stride[1] + rep * kv.k.stride[2]};
      }
      return {&kv.k, (kv.kv_offsets[plan.seq] + block * stats.block_size + rep) * kv.k.stride[0] +
                         kv_head * kv.k.stride[1]};
    default:
      return in(stats.centroid, kv_head);
  }
}

int64_t reps_of(const SelectorParams& params) {
  if (params.settings.method == SelectorMethod::kWitness) return params.settings.num_witnesses + 1;
  return params.settings.method == SelectorMethod::kOracle ? params.settings.block_size : 1;
}

// Linear interpolation at quantile * (n - 1), as interpolated_quantile.
double quantile_of_sorted(const std::vector<float>& sorted, double quantile) {
  const double rank = quantile * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const double value = sorted[low];
  if (low + 1 >= sorted.size()) return value;
  return value + (rank - static_cast<double>(low)) * (static_cast<double>(sorted[low + 1]) - value);
}

}  // namespace

PackedBlocks::PackedBlocks(const SelectorParams& params, const SequencePlan& plan, bool in_bf16,
                           const Context& context)
    : in_bf16_(in_bf16),
      first_block_(plan.first_block),
      num_q_blocks_(plan.num_q_blocks()),
      num_blocks_(plan.end_block - 1),
      num_groups_(ceil_div(num_blocks_, kGroupBlocks)),
      padded_blocks_(num_groups_ * kGroupBlocks),
      num_reps_(reps_of(params)),
      rep_bias_(static_cast<size_t>(num_reps_), 0.0f) {
  const int64_t num_kv_heads = params.kv.num_kv_heads(), head_dim = params.kv.head_dim();
  const int64_t reps = checked_mul(padded_blocks_, num_reps_, "representatives");
  packed_ = Tensor(in_bf16 ? DType::kBF16 : DType::kF32, {num_kv_heads, reps, head_dim});
  head_bytes_ = reps * head_dim * dtype_bytes(packed_.view().dtype);
  if (params.settings.method == SelectorMethod::kWitness) {
    // The last representative is the mean of all keys that are no witnesses, and counts for all.
    rep_bias_.back() =
        std::log2(static_cast<float>(params.settings.block_size - params.settings.num_witnesses));
  }
  const auto entries = static_cast<size_t>(num_kv_heads * padded_blocks_);
  block_mask_.resize(entries);
  radius_.resize(entries);
  largest_key_.resize(entries);
  if (params.settings.method == SelectorMethod::kRescue) {
    quantiles_.resize(static_cast<size_t>(num_kv_heads * num_q_blocks_));
  }
  parallel_for(context, num_kv_heads, [&](int64_t kv_head, int32_t) {
    read_blocks(params, plan, kv_head);
    if (params.settings.method == SelectorMethod::kRescue) take_quantiles(params, plan, kv_head);
  });
  parallel_for(context, num_kv_heads * num_groups_, [&](int64_t task, int32_t) {
    pack_group(params, plan, task / num_groups_, task % num_groups_);
  });
}

void PackedBlocks::read_blocks(const SelectorParams& params, const SequencePlan& plan,
                               int64_t kv_head) {
  const BlockStatsView& stats = params.stats;
  double largest = 0;
  for (int64_t b = 0; b < num_blocks_; ++b) {
    const int64_t entry = stats_entry(params, plan.seq, b);
    const auto i = static_cast<size_t>(kv_head * padded_blocks_ + b);
    const bool non_finite =
        stats.non_finite.as<int32_t>()[entry * stats.non_finite.stride[0] +
                                       kv_head * stats.non_finite.stride[1]] != 0;
    block_mask_[i] = non_finite ? kMasked : 0.0f;
    if (!non_finite) {
      radius_[i] =
          stats.radius
              .as<float>()[entry * stats.radius.stride[0] + kv_head * stats.radius.stride[1]];
      const int64_t centroid =
          entry * stats.centroid.stride[0] + kv_head * stats.centroid.stride[1];
      double square = 0;
      for (int64_t c = 0; c < params.kv.head_dim(); ++c) {
        const auto x = static_cast<double>(read(stats.centroid, centroid + c));
        square += x * x;
      }
      largest = std::max(largest, std::sqrt(square) + static_cast<double>(radius_[i]));
    }
    largest_key_[i] = largest;
  }
}

void PackedBlocks::take_quantiles(const SelectorParams& params, const SequencePlan& plan,
                                  int64_t kv_head) {
  const SelectorSettings& settings = params.settings;
  std::vector<float> sorted;
  auto add = [&](int64_t b) {
    if (non_finite(kv_head, b)) return;
    const float r = radius(kv_head, b);
    sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), r), r);
  };
  auto quantiles = [&]() -> RadiusQuantiles {
    if (sorted.empty()) return {};
    return {quantile_of_sorted(sorted, static_cast<double>(settings.quantile_low)),
            quantile_of_sorted(sorted, static_cast<double>(settings.quantile_high)),
            settings.uplift_clamp > 0
                ? quantile_of_sorted(sorted, static_cast<double>(settings.uplift_clamp))
                : std::numeric_limits<double>::infinity()};
  };
  const auto row = quantiles_.begin() + kv_head * num_q_blocks_;
  if (settings.quantiles == QuantileMode::kPrompt) {
    for (int64_t b = 0; b < num_blocks_; ++b) add(b);
    const int64_t last = plan.kv_len / settings.block_size - 1;
    if (last == num_blocks_) {  // complete, though no query block scores it
      const int64_t entry = stats_entry(params, plan.seq, last);
      const BlockStatsView& stats = params.stats;
      if (stats.non_finite.as<int32_t>()[entry * stats.non_finite.stride[0] +
                                         kv_head * stats.non_finite.stride[1]] == 0) {
        const float r =
            stats.radius
                .as<float>()[entry * stats.radius.stride[0] + kv_head * stats.radius.stride[1]];
        sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), r), r);
      }
    }
    std::fill(row, row + num_q_blocks_, quantiles());
    return;
  }
  for (int64_t b = 0; b < first_block_; ++b) add(b);
  for (int64_t i = 0; i < num_q_blocks_; ++i) {
    row[i] = quantiles();
    if (i + 1 < num_q_blocks_) add(first_block_ + i);
  }
}

void PackedBlocks::pack_group(const SelectorParams& params, const SequencePlan& plan,
                              int64_t kv_head, int64_t group) {
  const int64_t head_dim = params.kv.head_dim();
  const int64_t end = std::min(kGroupBlocks, num_blocks_ - group * kGroupBlocks);
  for (int64_t rep = 0; rep < num_reps_; ++rep) {
    const int64_t first =
        ((kv_head * num_groups_ + group) * num_reps_ + rep) * head_dim * kGroupBlocks;
    for (int64_t lane = 0; lane < end; ++lane) {
      const int64_t block = group * kGroupBlocks + lane;
      if (non_finite(kv_head, block)) continue;  // stays zero, and is masked
      const auto [tensor, offset] = rep_address(params, plan, kv_head, block, rep);
      if (in_bf16_) {
        const BFloat16* from = tensor->as<BFloat16>() + offset;
        BFloat16* to = packed_.as<BFloat16>() + first + lane * 2;
        for (int64_t c = 0; c < head_dim; c += 2) {
          to[c * kGroupBlocks] = from[c];
          to[c * kGroupBlocks + 1] = from[c + 1];
        }
      } else {
        float* to = packed_.as<float>() + first + lane;
        for (int64_t c = 0; c < head_dim; ++c) to[c * kGroupBlocks] = read(*tensor, offset + c);
      }
    }
  }
}

void PackedBlocks::rescue_uplift(int64_t kv_head, int64_t q_block, float* uplift) const {
  const RadiusQuantiles& quantiles =
      quantiles_[static_cast<size_t>(kv_head * num_q_blocks_ + q_block - first_block_)];
  const double width = quantiles.high - quantiles.low;
  const int64_t padded = ceil_div(q_block, kGroupBlocks) * kGroupBlocks;
  for (int64_t b = 0; b < padded; ++b) {
    if (b >= q_block || non_finite(kv_head, b)) {
      uplift[b] = 0;
      continue;
    }
    const double r = radius(kv_head, b);
    const double beta = width > 0 ? std::clamp((r - quantiles.low) / width, 0.0, 1.0)
                                  : (r > quantiles.low ? 1.0 : 0.0);
    uplift[b] = static_cast<float>(beta * std::min(r, quantiles.most));
  }
}

void PackedBlocks::bound_uplift(int64_t kv_head, int64_t q_block, float* uplift) const {
  const int64_t padded = ceil_div(q_block, kGroupBlocks) * kGroupBlocks;
  for (int64_t b = 0; b < padded; ++b) {
    uplift[b] = b < q_block && !non_finite(kv_head, b) ? radius(kv_head, b) : 0.0f;
  }
}

}  // namespace fovea
