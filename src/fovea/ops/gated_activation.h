// The middle of a gated mlp.
#pragma once

#include "fovea/tensor/tensor.h"

namespace fovea {

enum class GateFunction { kSilu, kGeluTanh };

/// out = function(gate) * up, by the calling thread.
///
/// gate_up: f32 [rows, 2 * mlp_dim], gates first; out: f32 or bf16 [rows, mlp_dim]; last strides 1.
/// Throws kInvalidArgument on shapes that do not fit. Source: arXiv 2002.05202.
void gated_activation(GateFunction function, const TensorView& gate_up, const TensorView& out);

}  // namespace fovea
