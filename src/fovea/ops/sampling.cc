#include "fovea/ops/sampling.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/ops/cpu/row_kernels.h"

namespace fovea {

void check_sampling_settings(const SamplingSettings& settings) {
  check_argument(std::isfinite(settings.temperature) && settings.temperature >= 0,
                 "temperature must be a number of at least 0, got {}", settings.temperature);
  check_argument(settings.top_k >= 0, "top_k must not be negative, got {}", settings.top_k);
  check_argument(settings.top_p > 0 && settings.top_p <= 1, "top_p must be in (0, 1], got {}",
                 settings.top_p);
  check_argument(settings.min_p >= 0 && settings.min_p <= 1, "min_p must be in [0, 1], got {}",
                 settings.min_p);
}

int32_t argmax(std::span<const float> logits) {
  check_argument(!logits.empty(), "logits must not be empty");
  // The highest of each block first: element by element a vocabulary of 150,000 takes 130
  // microseconds, which a decode step on a GPU would wait for.
  constexpr size_t kBlock = 4096;
  const cpu::RowKernels& kernels = cpu::row_kernels();
  float best = logits[0];
  size_t best_block = 0;
  for (size_t block = 0; block < logits.size(); block += kBlock) {
    const auto size = static_cast<int64_t>(std::min(kBlock, logits.size() - block));
    const float highest = kernels.highest(logits.data() + block, size);
    check_argument(!std::isnan(highest), "logits of tokens {} ... {} hold a NaN", block,
                   block + static_cast<size_t>(size) - 1);
    if (highest > best) {
      best = highest;
      best_block = block;
    }
  }
  const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(best_block);
  return static_cast<int32_t>(std::find(begin, logits.end(), best) - logits.begin());
}

Sampler::Sampler(const SamplingSettings& settings) : settings_(settings), random_(settings.seed) {
  check_sampling_settings(settings);
}

int32_t Sampler::sample(std::span<const float> logits) {
  const int32_t best = argmax(logits);
  if (settings_.temperature == 0 || settings_.top_k == 1) return best;

  // Weights relative to the best token's; the best first, so that every cut below is a prefix.
  const float top = logits[static_cast<size_t>(best)];
  if (!std::isfinite(top)) return best;
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float weight = std::exp((logits[i] - top) / settings_.temperature);
    if (weight > 0) candidates_.push_back({weight, static_cast<int32_t>(i)});
  }
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.token < b.token);
  };
  if (settings_.top_k > 0 && static_cast<size_t>(settings_.top_k) < candidates_.size()) {
    const auto end = candidates_.begin() + settings_.top_k;
    std::nth_element(candidates_.begin(), end - 1, candidates_.end(), better);
    candidates_.erase(end, candidates_.end());
  }
  std::sort(candidates_.begin(), candidates_.end(), better);

  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double kept = 0;
  size_t count = 0;
  while (count < candidates_.size() && kept < settings_.top_p * total &&
         candidates_[count].weight >= settings_.min_p) {
    kept += candidates_[count++].weight;
  }

  // 53 random bits make a double in [0, 1); std's distributions differ between libraries.
  double left = static_cast<double>(random_() >> 11) * 0x1.0p-53 * kept;
  for (size_t i = 0; i + 1 < count; ++i) {
    left -= candidates_[i].weight;
    if (left < 0) return candidates_[i].token;
  }
  return candidates_[count - 1].token;
}

}  // namespace fovea
