// From logits to a token.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "fovea/ops/sampling_rule.h"

namespace fovea {

/// How a token is drawn. The default is greedy. Tokens as probable as the last one that a cut keeps
/// are kept with it.
struct SamplingSettings {
  float temperature = 0;  // 0: greedy, the highest logit, ties to the lower id
  int32_t top_k = 0;      // keep the k most probable tokens; 0: all
  float top_p = 1;        // keep the smallest set that reaches this probability, in (0, 1]
  float min_p = 0;        // drop tokens under this share of the best one's probability, in [0, 1]
  uint64_t seed = 0;
};

/// Throws kInvalidArgument naming the first rule that `settings` breaks, in the order of its
/// members.
void check_sampling_settings(const SamplingSettings& settings);

/// Index of the highest logit, the lower one on a tie. Throws kInvalidArgument when `logits` is
/// empty or holds a NaN.
int32_t argmax(std::span<const float> logits);

/// Weights of tokens, see sampling_rule.h; kept from draw to draw because it is large.
struct DrawScratch {
  std::vector<uint64_t> weights, sorted;
};

/// Draws a token as `draw` says from logits [vocab_size]: temperature, then top_k, top_p, min_p in
/// this order. Throws as argmax() does.
int32_t draw_token(std::span<const float> logits, const Draw& draw, DrawScratch& scratch);

/// Draws tokens; the same seed and logits give the same tokens on any machine.
class Sampler {
 public:
  /// Throws as check_sampling_settings does.
  explicit Sampler(const SamplingSettings& settings);

  /// What decides the next token, wherever it is drawn.
  Draw next();
  /// Draws the next token from logits [vocab_size], see draw_token().
  int32_t sample(std::span<const float> logits) { return draw_token(logits, next(), scratch_); }

 private:
  SamplingSettings settings_;
  std::mt19937_64 random_;
  DrawScratch scratch_;
};

}  // namespace fovea
