// The middle of a gated mlp.
#pragma once

#include "fovea/tensor/tensor.h"

namespace fovea {

enum class GateFunction {
  kSilu,
  kGeluTanh,
  kClampedSwiglu,  // gpt-oss: g sigmoid(1.702 g) (u + 1), g at most 7, u within +-7
};

/// out = function(gate) * up (kClampedSwiglu: see there), by the calling thread.
///
/// gate_up: f32 [rows, 2 * mlp_dim], gates first; out: f32 or bf16 [rows, mlp_dim]; last strides 1.
/// Throws kInvalidArgument on shapes that do not fit. Source: arXiv 2002.05202.
void gated_activation(GateFunction function, const TensorView& gate_up, const TensorView& out);

}  // namespace fovea
