// The functions of gates.
#pragma once

#include "fovea/ops/gated_activation.h"

namespace fovea::cuda {

__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

/// function(gate) * up
template <GateFunction kFunction>
__device__ inline float gated(float gate, float up) {
  if constexpr (kFunction == GateFunction::kSilu) {
    return gate * sigmoid(gate) * up;
  } else {
    // 0.5 g (1 + tanh(u)) = g sigmoid(2u), u = sqrt(2 / pi) (g + 0.044715 g^3).
    return gate * sigmoid(gate * (1.5957691216f + 0.0713548162726f * gate * gate)) * up;
  }
}

}  // namespace fovea::cuda
