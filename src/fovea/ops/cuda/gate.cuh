// The functions of gates.
#pragma once

#include <type_traits>

#include "fovea/ops/gated_activation.h"
#include "fovea/tensor/cuda/ptx/math.h"

namespace fovea::cuda {

/// gate / (1 + exp(-x)). `kIsRough`: to within 2^-12 of gate, for half of the time in the special
/// function units.
template <bool kIsRough>
__device__ inline float times_sigmoid(float gate, float x) {
  if constexpr (kIsRough) {
    const float half = 0.5f * gate;
    return fmaf(half, ptx::tanh_approx(0.5f * x), half);
  }
  return gate * __fdividef(1.0f, 1.0f + __expf(-x));
}

/// function(gate) * up, see GateFunction; rough for what is rounded to 4 bits.
template <GateFunction kFunction, bool kIsRough = false>
__device__ inline float gated(float gate, float up) {
  if constexpr (kFunction == GateFunction::kSilu) {
    return times_sigmoid<kIsRough>(gate, gate) * up;
  } else if constexpr (kFunction == GateFunction::kClampedSwiglu) {
    gate = fminf(gate, 7.0f);
    return times_sigmoid<kIsRough>(gate, 1.702f * gate) * (fminf(fmaxf(up, -7.0f), 7.0f) + 1.0f);
  } else {
    // 0.5 g (1 + tanh(u)) = g sigmoid(2u), u = sqrt(2 / pi) (g + 0.044715 g^3).
    return times_sigmoid<kIsRough>(gate, gate * (1.5957691216f + 0.0713548162726f * gate * gate)) *
           up;
  }
}

__device__ inline float gated(GateFunction function, float gate, float up) {
  switch (function) {
    case GateFunction::kSilu:
      return gated<GateFunction::kSilu>(gate, up);
    case GateFunction::kGeluTanh:
      return gated<GateFunction::kGeluTanh>(gate, up);
    default:
      return gated<GateFunction::kClampedSwiglu>(gate, up);
  }
}

/// Calls launch with a constant of type std::integral_constant<GateFunction, function>.
template <typename Launch>
void with_gate_function(GateFunction function, Launch launch) {
  switch (function) {
    case GateFunction::kSilu:
      return launch(std::integral_constant<GateFunction, GateFunction::kSilu>());
    case GateFunction::kGeluTanh:
      return launch(std::integral_constant<GateFunction, GateFunction::kGeluTanh>());
    case GateFunction::kClampedSwiglu:
      return launch(std::integral_constant<GateFunction, GateFunction::kClampedSwiglu>());
  }
}

}  // namespace fovea::cuda
