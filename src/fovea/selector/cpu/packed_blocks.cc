#include "fovea/selector/cpu/packed_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "fovea/base/checked_math.h"
#include "fovea/base/parallel.h"
#include "fovea/selector/cpu/score_task.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea {
namespace {

using fovea::to_float;
float to_float(float value) { return value; }

// Four chains of additions, or their latency would rule.
template <typename T>
double norm(const T* values, int64_t count) {
  double squares[4] = {};
  const auto add = [&](int64_t c, int64_t chain) {
    const auto x = static_cast<double>(to_float(values[c]));
    squares[chain] += x * x;
  };
  int64_t c = 0;
  for (; c + 4 <= count; c += 4) {
    for (int64_t i = 0; i < 4; ++i) add(c + i, i);
  }
  for (; c < count; ++c) add(c, 0);
  return std::sqrt((squares[0] + squares[1]) + (squares[2] + squares[3]));
}

double norm(const TensorView& tensor, int64_t offset, int64_t count) {
  return tensor.dtype == DType::kF32 ? norm(tensor.as<float>() + offset, count)
                                     : norm(tensor.as<BFloat16>() + offset, count);
}

// to[i * kGroupBlocks + lane] = rows[lane][i] for i in [0, count), elements of 32 bits.
void interleave(const void* const* rows, int64_t count, void* to) {
  typedef uint32_t Bits4 __attribute__((vector_size(16)));
  const auto load = [&](int64_t lane, int64_t i) {
    Bits4 quad;
    std::memcpy(&quad, static_cast<const char*>(rows[lane]) + 4 * i, sizeof(quad));
    return quad;
  };
  auto* const out = static_cast<uint32_t*>(to);
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int64_t lane = 0; lane < kGroupBlocks; lane += 4) {
      const Bits4 a = load(lane, i), b = load(lane + 1, i);
      const Bits4 c = load(lane + 2, i), d = load(lane + 3, i);
      const Bits4 ab_low = __builtin_shuffle(a, b, Bits4{0, 4, 1, 5});
      const Bits4 ab_high = __builtin_shuffle(a, b, Bits4{2, 6, 3, 7});
      const Bits4 cd_low = __builtin_shuffle(c, d, Bits4{0, 4, 1, 5});
      const Bits4 cd_high = __builtin_shuffle(c, d, Bits4{2, 6, 3, 7});
      const Bits4 columns[] = {__builtin_shuffle(ab_low, cd_low, Bits4{0, 1, 4, 5}),
                               __builtin_shuffle(ab_low, cd_low, Bits4{2, 3, 6, 7}),
                               __builtin_shuffle(ab_high, cd_high, Bits4{0, 1, 4, 5}),
                               __builtin_shuffle(ab_high, cd_high, Bits4{2, 3, 6, 7})};
      for (int64_t j = 0; j < 4; ++j) {
        std::memcpy(out + (i + j) * kGroupBlocks + lane, &columns[j], sizeof(Bits4));
      }
    }
  }
  for (; i < count; ++i) {
    for (int64_t lane = 0; lane < kGroupBlocks; ++lane) {
      std::memcpy(out + i * kGroupBlocks + lane, static_cast<const char*>(rows[lane]) + 4 * i,
                  sizeof(uint32_t));
    }
  }
}

// Where representative `rep` of a block lies; of the type of q.
const void* rep_row(const SelectorParams& params, const SequencePlan& plan, int64_t kv_head,
                    int64_t block, int64_t rep) {
  const BlockStatsView& stats = params.stats;
  const KvView& kv = params.kv;
  const int64_t entry = stats_entry(params, plan.seq, block);
  const auto at = [](const TensorView& tensor, int64_t offset) -> const void* {
    return tensor.as<char>() + offset * dtype_bytes(tensor.dtype);
  };
  const auto in = [&](const TensorView& tensor, int64_t row) {
    return at(tensor, entry * tensor.stride[0] + row * tensor.stride[1]);
  };
  switch (params.settings.method) {
    case SelectorMethod::kWitness:
      return rep < stats.num_witnesses ? in(stats.witness, kv_head * stats.num_witnesses + rep)
                                       : in(stats.rest_mean, kv_head);
    case SelectorMethod::kOracle:
      if (kv.is_paged()) {
        return at(kv.k, entry * kv.k.stride[0] + kv_head * kv.k.stride[1] + rep * kv.k.stride[2]);
      }
      return at(kv.k, (kv.kv_offsets[plan.seq] + block * stats.block_size + rep) * kv.k.stride[0] +
                          kv_head * kv.k.stride[1]);
    default:
      return in(stats.centroid, kv_head);
  }
}

bool is_non_finite(const BlockStatsView& stats, int64_t entry, int64_t kv_head) {
  const TensorView& flags = stats.non_finite;
  return flags.as<int32_t>()[entry * flags.stride[0] + kv_head * flags.stride[1]] != 0;
}

float radius_of(const BlockStatsView& stats, int64_t entry, int64_t kv_head) {
  return stats.radius
      .as<float>()[entry * stats.radius.stride[0] + kv_head * stats.radius.stride[1]];
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
      rep_bias_(static_cast<size_t>(num_reps_), 0.0f),
      zeros_(static_cast<size_t>(params.kv.head_dim())) {
  const int64_t num_kv_heads = params.kv.num_kv_heads(), head_dim = params.kv.head_dim();
  const bool packs = plan.q_len > 1;
  const bool lists_rows = plan.num_rows(plan.end_block - 1, params.settings.block_size) == 1;
  if (packs) {
    const int64_t reps = checked_mul(padded_blocks_, num_reps_, "representatives");
    packed_ = Tensor(in_bf16 ? DType::kBF16 : DType::kF32, {num_kv_heads, reps, head_dim});
    head_bytes_ = reps * head_dim * dtype_bytes(packed_.view().dtype);
  }
  if (lists_rows) {
    rows_.assign(static_cast<size_t>(num_kv_heads * padded_blocks_ * num_reps_), zeros_.data());
  }
  if (params.settings.method == SelectorMethod::kWitness) {
    // The last representative is the mean of all keys that are no witnesses, and counts for all.
    rep_bias_.back() =
        std::log2(static_cast<float>(params.settings.block_size - params.settings.num_witnesses));
  }
  const auto entries = static_cast<size_t>(num_kv_heads * padded_blocks_);
  block_mask_.resize(entries);
  radius_.resize(entries);
  largest_key_.resize(entries);
  const int64_t num_quantiles =
      params.settings.method == SelectorMethod::kRescue ? num_kv_heads : 0;
  quantiles_.resize(static_cast<size_t>(num_quantiles * num_q_blocks_));
  Context here = context;
  if (!packs) here.num_threads = 1;  // a round over the threads would take longer
  parallel_for(here, num_quantiles + num_kv_heads * num_groups_, [&](int64_t task, int32_t) {
    if (task < num_quantiles) {
      take_quantiles(params, plan, task);
      return;
    }
    const int64_t kv_head = (task - num_quantiles) / num_groups_;
    const int64_t group = (task - num_quantiles) % num_groups_;
    read_group(params, plan, kv_head, group);
    if (packs) pack_group(params, plan, kv_head, group);
    if (lists_rows) list_rows(params, plan, kv_head, group);
  });
}

double PackedBlocks::largest_key(int64_t kv_head, int64_t num_blocks) const {
  const auto first = largest_key_.begin() + kv_head * padded_blocks_;
  return *std::max_element(first, first + num_blocks);
}

void PackedBlocks::take_quantiles(const SelectorParams& params, const SequencePlan& plan,
                                  int64_t kv_head) {
  const SelectorSettings& settings = params.settings;
  std::vector<float> sorted;
  const auto append = [&](int64_t b) {
    const int64_t entry = stats_entry(params, plan.seq, b);
    if (is_non_finite(params.stats, entry, kv_head)) return false;
    sorted.push_back(radius_of(params.stats, entry, kv_head));
    return true;
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
  const bool causal = settings.quantiles == QuantileMode::kCausal;
  const int64_t num_first = causal ? first_block_ : plan.kv_len / settings.block_size;
  for (int64_t b = 0; b < num_first; ++b) append(b);
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < num_q_blocks_; ++i) {
    row[i] = quantiles();
    if (!causal || i + 1 == num_q_blocks_ || !append(first_block_ + i)) continue;
    const auto last = sorted.end() - 1;
    std::rotate(std::upper_bound(sorted.begin(), last, *last), last, sorted.end());
  }
}

void PackedBlocks::read_group(const SelectorParams& params, const SequencePlan& plan,
                              int64_t kv_head, int64_t group) {
  const BlockStatsView& stats = params.stats;
  const int64_t first = group * kGroupBlocks, end = std::min(first + kGroupBlocks, num_blocks_);
  for (int64_t b = first; b < end; ++b) {
    const int64_t entry = stats_entry(params, plan.seq, b);
    const auto i = static_cast<size_t>(kv_head * padded_blocks_ + b);
    if (is_non_finite(stats, entry, kv_head)) {
      block_mask_[i] = kMasked;
      continue;
    }
    radius_[i] = radius_of(stats, entry, kv_head);
    const int64_t centroid = entry * stats.centroid.stride[0] + kv_head * stats.centroid.stride[1];
    largest_key_[i] =
        norm(stats.centroid, centroid, params.kv.head_dim()) + static_cast<double>(radius_[i]);
  }
}

void PackedBlocks::pack_group(const SelectorParams& params, const SequencePlan& plan,
                              int64_t kv_head, int64_t group) {
  const int64_t head_dim = params.kv.head_dim();
  const int64_t first = group * kGroupBlocks, end = std::min(first + kGroupBlocks, num_blocks_);
  std::vector<float> widened(static_cast<size_t>(in_bf16_ ? 0 : kGroupBlocks * head_dim));
  for (int64_t rep = 0; rep < num_reps_; ++rep) {
    const void* rows[kGroupBlocks];
    std::fill_n(rows, kGroupBlocks, zeros_.data());
    for (int64_t b = first; b < end; ++b) {
      if (non_finite(kv_head, b)) continue;
      const void*& row = rows[b - first];
      row = rep_row(params, plan, kv_head, b, rep);
      if (in_bf16_ || params.q.dtype == DType::kF32) continue;
      float* const wide = widened.data() + (b - first) * head_dim;
      for (int64_t c = 0; c < head_dim; ++c) {
        wide[c] = to_float(static_cast<const BFloat16*>(row)[c]);
      }
      row = wide;
    }
    const int64_t bytes = head_dim * kGroupBlocks * dtype_bytes(packed_.view().dtype);
    interleave(rows, in_bf16_ ? head_dim / 2 : head_dim,
               packed_.as<char>() + ((kv_head * num_groups_ + group) * num_reps_ + rep) * bytes);
  }
}

void PackedBlocks::list_rows(const SelectorParams& params, const SequencePlan& plan,
                             int64_t kv_head, int64_t group) {
  const int64_t first = group * kGroupBlocks, end = std::min(first + kGroupBlocks, num_blocks_);
  for (int64_t b = first; b < end; ++b) {
    if (non_finite(kv_head, b)) continue;
    const auto row = rows_.begin() + (kv_head * padded_blocks_ + b) * num_reps_;
    for (int64_t rep = 0; rep < num_reps_; ++rep) row[rep] = rep_row(params, plan, kv_head, b, rep);
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
