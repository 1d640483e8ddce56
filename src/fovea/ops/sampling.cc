#include "fovea/ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/ops/cpu/row_kernels.h"

namespace fovea {
namespace {

/// Of the weights of at least `least`.
uint64_t sum_from(uint64_t least, std::span<const uint64_t> weights) {
  uint64_t sum = 0;
  for (const uint64_t weight : weights) sum += weight >= least ? weight : 0;
  return sum;
}

/// The greatest weight such that it and those above it sum up to `need`, which all together do.
/// Leaves `weights` in another order.
uint64_t weight_that_reaches(uint64_t need, std::span<uint64_t> weights) {
  while (weights.size() > 1) {
    const size_t half = weights.size() / 2;
    const auto middle = weights.begin() + static_cast<std::ptrdiff_t>(half);
    std::nth_element(weights.begin(), middle, weights.end(), std::greater<>());
    const uint64_t sum = std::accumulate(weights.begin(), middle, uint64_t{0});
    if (sum >= need) {
      weights = weights.first(half);
    } else {
      need -= sum;
      weights = weights.subspan(half);
    }
  }
  return weights[0];
}

}  // namespace

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

int32_t draw_token(std::span<const float> logits, const Draw& draw, DrawScratch& scratch) {
  const int32_t best = argmax(logits);
  const float top = logits[static_cast<size_t>(best)];
  if (draw.is_greedy() || !std::isfinite(top)) return best;

  auto& [weights, sorted] = scratch;
  weights.clear();
  sorted.clear();
  for (const float logit : logits) {
    weights.push_back(sampling_weight(logit, top, draw.temperature));
    if (weights.back() > 0) sorted.push_back(weights.back());
  }
  uint64_t least = 1;  // of the weights that are kept
  if (draw.top_k > 0 && static_cast<size_t>(draw.top_k) < sorted.size()) {
    const auto last = sorted.begin() + draw.top_k - 1;
    std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
    least = *last;
    std::erase_if(sorted, [&](uint64_t weight) { return weight < least; });
  }
  if (draw.top_p < 1) {
    const uint64_t need = share_of_weight(draw.top_p, sum_from(least, sorted));
    least = std::max(least, weight_that_reaches(need, sorted));
  }
  least = std::max(least, share_of_weight(draw.min_p, kTopSamplingWeight));

  const uint64_t kept = sum_from(least, weights);
  uint64_t left = std::min(share_of_weight(draw.random, kept), kept - 1);
  size_t token = 0;
  for (; weights[token] < least || weights[token] <= left; ++token) {
    if (weights[token] >= least) left -= weights[token];
  }
  return static_cast<int32_t>(token);
}

Sampler::Sampler(const SamplingSettings& settings) : settings_(settings), random_(settings.seed) {
  check_sampling_settings(settings);
}

Draw Sampler::next() {
  Draw draw{.temperature = settings_.temperature,
            .top_p = settings_.top_p,
            .min_p = settings_.min_p,
            .top_k = settings_.top_k};
  // 53 random bits make a double in [0, 1); std's distributions differ between libraries.
  if (!draw.is_greedy()) draw.random = static_cast<double>(random_() >> 11) * 0x1.0p-53;
  return draw;
}

}  // namespace fovea
