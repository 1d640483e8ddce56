// Root-mean-square normalisation.
#pragma once

#include "fovea/tensor/tensor.h"

namespace fovea {

/// out = x / sqrt(mean(x^2) + eps) * weight over the last dimension, by the calling thread.
///
/// x: f32 [rows, dim] or [rows, heads, dim], any strides but the last, which is 1; weight: f32
/// [dim]; out: f32 or bf16, shape of x; may be x itself when f32. Returns whether all of x was
/// finite. Throws kInvalidArgument on shapes that do not fit. Source: arXiv 1910.07467.
bool rms_norm(const TensorView& x, const TensorView& weight, float eps, const TensorView& out);

}  // namespace fovea
