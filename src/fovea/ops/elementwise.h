// Additions, conversions and a check of rows; all by the calling thread.
#pragma once

#include "fovea/tensor/tensor.h"

namespace fovea {

/// sum += x; both f32 [rows, dim], last strides 1. Throws kInvalidArgument on shapes that do not
/// fit.
void add_rows(const TensorView& x, const TensorView& sum);

/// Adds bias, f32 [dim], to every row of x, f32 [rows, dim], last strides 1. Throws
/// kInvalidArgument on shapes that do not fit.
void add_bias(const TensorView& bias, const TensorView& x);

/// out = x in out's type: f32 [rows, dim] or [rows, heads, dim] to f32 or bf16 of the same shape,
/// any strides but the last, which is 1. Throws kInvalidArgument on shapes that do not fit.
void convert_rows(const TensorView& x, const TensorView& out);

/// Whether every element of x, f32 [rows, dim] with last stride 1, is finite.
bool all_finite(const TensorView& x);

}  // namespace fovea
