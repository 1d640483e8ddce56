#include "fovea/selector/lab/own_witnesses.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/attention/append_kv.h"
#include "fovea/base/parallel.h"
#include "fovea/selector/lab/method.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea::lab {
namespace {

// Sums run over 16 lanes in a fixed order, so that the same keys give the same witnesses.
float dot(const float* a, const float* b, int64_t size) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t c = 0;
  for (; c + kLanes <= size; c += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] += a[c + i] * b[c + i];
  }
  for (int64_t i = 0; c < size; ++c, ++i) lanes[i] += a[c] * b[c];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

// The keys of one block, in f32.
class BlockKeys {
 public:
  BlockKeys(const Sequence& sequence, int64_t kv_head, int64_t block)
      : num_keys_(sequence.block_size),
        head_dim_(sequence.head_dim),
        keys_(static_cast<size_t>((num_keys_ + 1) * head_dim_)) {
    for (int64_t t = 0; t < num_keys_; ++t) {
      sequence.read_key(kv_head, block * num_keys_ + t, keys_.data() + t * head_dim_);
    }
    sequence.read_statistic(sequence.params.stats.centroid, block, kv_head,
                            keys_.data() + num_keys_ * head_dim_);
  }

  const float* key(int64_t t) const { return keys_.data() + t * head_dim_; }

  std::vector<int64_t> choose(WitnessChoice choice, int64_t count) const {
    const float* const centroid = key(num_keys_);
    std::vector<float> distance(static_cast<size_t>(num_keys_));
    for (int64_t t = 0; t < num_keys_; ++t) {
      distance[static_cast<size_t>(t)] = distance_of(choice, key(t), centroid);
    }
    std::vector<int64_t> chosen;
    while (std::ssize(chosen) < count) {
      const auto farthest = std::max_element(distance.begin(), distance.end());
      chosen.push_back(farthest - distance.begin());
      *farthest = -std::numeric_limits<float>::infinity();
      if (choice == WitnessChoice::kFar) continue;
      for (int64_t t = 0; t < num_keys_; ++t) {
        float& nearest = distance[static_cast<size_t>(t)];
        nearest = std::min(nearest, distance_of(choice, key(t), key(chosen.back())));
      }
    }
    return chosen;
  }

  std::vector<float> mean_without(const std::vector<int64_t>& left_out) const {
    std::vector<float> mean(static_cast<size_t>(head_dim_));
    for (int64_t t = 0; t < num_keys_; ++t) {
      if (std::find(left_out.begin(), left_out.end(), t) != left_out.end()) continue;
      for (int64_t c = 0; c < head_dim_; ++c) mean[static_cast<size_t>(c)] += key(t)[c];
    }
    const auto count = static_cast<float>(num_keys_ - std::ssize(left_out));
    for (float& value : mean) value /= count;
    return mean;
  }

 private:
  float distance_of(WitnessChoice choice, const float* key, const float* from) const {
    const float square = dot(key, key, head_dim_), product = dot(key, from, head_dim_);
    if (choice == WitnessChoice::kNorm)
      return square > 0 ? (square - product) / std::sqrt(square) : 0;
    return square - 2 * product + dot(from, from, head_dim_);
  }

  int64_t num_keys_, head_dim_;
  std::vector<float> keys_;  // [num_keys + 1, head_dim], the centroid last
};

// As f8e4m3 with one scale, a power of two.
void round_to_f8(std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const float scale = f8_growing_scale(largest);
  for (float& value : values) value = to_float(to_float8_e4m3(value / scale)) * scale;
}

void store(const std::vector<float>& values, int64_t first, int64_t count, const TensorView& to,
           int64_t at) {
  for (int64_t c = 0; c < count; ++c) {
    const float value = values[static_cast<size_t>(first + c)];
    if (to.dtype == DType::kF32) {
      to.as<float>()[at + c] = value;
    } else {
      to.as<BFloat16>()[at + c] = to_bfloat16(value);
    }
  }
}

// Blocks whose radius is under the quantile of the blocks before them; bad ones do not count.
std::vector<uint8_t> calm_blocks(const Sequence& sequence, int64_t kv_head) {
  const BlockStatsView& stats = sequence.params.stats;
  const float quantile = sequence.params.settings.calm_quantile;
  std::vector<uint8_t> calm(static_cast<size_t>(sequence.num_blocks));
  std::vector<float> before;
  for (int64_t b = 0; b < sequence.num_blocks && quantile > 0; ++b) {
    if (sequence.is_bad(kv_head, b)) continue;
    const int64_t entry = stats_entry(sequence.params, sequence.plan.seq, b);
    const float radius =
        stats.radius.as<float>()[entry * stats.radius.stride[0] + kv_head * stats.radius.stride[1]];
    if (!before.empty()) {
      const double limit = interpolated_quantile(before, static_cast<double>(quantile));
      calm[static_cast<size_t>(b)] = static_cast<double>(radius) < limit ? 1 : 0;
    }
    before.push_back(radius);
  }
  return calm;
}

}  // namespace

OwnWitnesses::OwnWitnesses(const SelectorParams& params, std::span<const SequencePlan> plans,
                           const Context& context)
    : params_(params) {
  const SelectorSettings& asked = params.settings;
  BlockStatsView& stats = params_.stats;
  const int64_t num_witnesses = stats.num_witnesses, head_dim = params.kv.head_dim();
  const int64_t entries = stats.centroid.shape[0], num_kv_heads = params.kv.num_kv_heads();
  witness_ = Tensor(params.q.dtype, {entries, num_kv_heads * num_witnesses, head_dim});
  rest_mean_ = Tensor(params.q.dtype, {entries, num_kv_heads, head_dim});
  stats.witness = witness_.view();
  stats.rest_mean = rest_mean_.view();
  params_.settings.witness_choice = WitnessChoice::kSpread;
  params_.settings.f8_witnesses = false;
  params_.settings.calm_quantile = 0;

  for (const SequencePlan& plan : plans) {
    if (plan.num_q_blocks() == 0) continue;
    const Sequence sequence(params, plan, context);
    std::vector<std::vector<uint8_t>> calm;
    for (int64_t h = 0; h < num_kv_heads; ++h) calm.push_back(calm_blocks(sequence, h));
    parallel_for(context, sequence.num_blocks * num_kv_heads, [&](int64_t task, int32_t) {
      const int64_t block = task / num_kv_heads, head = task % num_kv_heads;
      if (sequence.is_bad(head, block)) return;
      const BlockKeys keys(sequence, head, block);
      const bool is_calm = calm[static_cast<size_t>(head)][static_cast<size_t>(block)] != 0;
      const std::vector<int64_t> chosen =
          keys.choose(asked.witness_choice, is_calm ? 0 : num_witnesses);
      // The mean of the rest stands in the places that no witness takes: in a sum that is as if it
      // had been counted for those keys too.
      std::vector<float> rows;
      const std::vector<float> mean = keys.mean_without(chosen);
      for (const int64_t t : chosen) rows.insert(rows.end(), keys.key(t), keys.key(t) + head_dim);
      while (std::ssize(rows) < (num_witnesses + 1) * head_dim) {
        rows.insert(rows.end(), mean.begin(), mean.end());
      }
      if (asked.f8_witnesses) round_to_f8(rows);
      const int64_t entry = stats_entry(params, plan.seq, block);
      for (int64_t w = 0; w < num_witnesses; ++w) {
        store(
            rows, w * head_dim, head_dim, stats.witness,
            entry * stats.witness.stride[0] + (head * num_witnesses + w) * stats.witness.stride[1]);
      }
      store(rows, num_witnesses * head_dim, head_dim, stats.rest_mean,
            entry * stats.rest_mean.stride[0] + head * stats.rest_mean.stride[1]);
    });
  }
}

}  // namespace fovea::lab
