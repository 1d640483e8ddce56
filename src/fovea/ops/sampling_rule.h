// What makes a draw the same on every machine: weights of tokens are whole numbers, made one
// operation at a time, so that their sums are the same in any order.
#pragma once

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea {

/// What a token is drawn by, beside logits.
struct Draw {
  double random = 0;      // in [0, 1)
  float temperature = 0;  // this and the rest as SamplingSettings has them
  float top_p = 1, min_p = 0;
  int32_t top_k = 0;

  FOVEA_HOST_DEVICE bool is_greedy() const { return temperature == 0 || top_k == 1; }
};

/// The most probable token's weight. What is less probable by more than that is not drawn.
constexpr uint64_t kTopSamplingWeight = uint64_t{1} << 40;

/// kTopSamplingWeight * exp((logit - top) / temperature) to within 6e-9 of it, rounded down; `top`
/// is the highest logit and finite.
FOVEA_HOST_DEVICE uint64_t sampling_weight(float logit, float top, float temperature) {
  constexpr float kLog2E = 1.44269504f;
  const float exponent = (logit - top) / temperature;
  if (!(exponent > -30)) return 0;
  const auto power = static_cast<int64_t>(exponent * (kLog2E * 0x1p24f));  // of 2, times 2^24
  const auto halvings = static_cast<int>(-(power >> 24));
  const uint64_t fraction = static_cast<uint64_t>(power & 0xffffff) << 8;  // times 2^32
  // 2^fraction by the polynomial that meets it at Chebyshev's points; coefficients times 2^32.
  constexpr uint64_t kCoefficients[] = {0xb17217ce, 0x3d7f87b2, 0xe34fcc6,
                                        0x27890f6,  0x532dec,   0xda4ab};
  uint64_t sum = 0;
  for (int i = 5; i >= 0; --i) sum = kCoefficients[i] + (sum * fraction >> 32);
  return (kTopSamplingWeight + (sum * fraction >> 24)) >> halvings;
}

/// `share` of a sum of weights, rounded down.
FOVEA_HOST_DEVICE uint64_t share_of_weight(double share, uint64_t sum) {
  return static_cast<uint64_t>(share * static_cast<double>(sum));
}

}  // namespace fovea
