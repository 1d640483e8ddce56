// Rotary position embedding over the halves of a head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fovea/base/context.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// Cosines and sines of a run of positions: the angle of pair (i, i + head_dim / 2) at position p
/// is p * theta^(-2 i / head_dim) / factors[i]. Source: arXiv 2104.09864.
class RopeTable {
 public:
  RopeTable() = default;
  /// `factors` has head_dim / 2 divisors or is empty. Throws kInvalidArgument when head_dim is odd
  /// or not positive, theta or a factor not positive, or `factors` of another size.
  RopeTable(int64_t head_dim, double theta, std::span<const float> factors);

  /// Fills rows for positions [first_position, first_position + num_rows). Exact to f32 rounding at
  /// any position: angles are reduced in double.
  void fill(int64_t first_position, int64_t num_rows, const Context& context);

  int64_t head_dim() const { return 2 * half_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t size_bytes() const { return 2 * num_rows_ * half_ * 4; }
  const float* cos(int64_t row) const { return cos_.data() + row * half_; }
  const float* sin(int64_t row) const { return sin_.data() + row * half_; }

 private:
  int64_t half_ = 0;
  int64_t num_rows_ = 0;
  std::vector<double> frequencies_;
  std::vector<float> cos_, sin_;  // [num_rows, half]
};

/// Rotates every head of x; row r takes row first_row + r of `table`; by the calling thread.
///
/// x: f32 [rows, heads, head_dim], out: f32 or bf16 of the same shape, any strides but the last,
/// which is 1; out must not overlap x. Throws kInvalidArgument on shapes that do not fit.
void rope(const TensorView& x, const RopeTable& table, int64_t first_row, const TensorView& out);

}  // namespace fovea
