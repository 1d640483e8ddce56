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
  /// In memory of `device`. `factors` has head_dim / 2 divisors or is empty. Throws
  /// kInvalidArgument when head_dim is odd or not positive, or over 256 on a GPU, theta or a factor
  /// not positive, or `factors` of another size; kDevice or kUnsupported when the device cannot be
  /// used.
  RopeTable(int64_t head_dim, double theta, std::span<const float> factors, Device device = {});

  /// Makes room for tables of up to `num_rows` rows. Pointers to rows change. Throws kOutOfMemory.
  void reserve(int64_t num_rows);

  /// Fills rows for positions [*first_position, *first_position + num_rows), which must not be
  /// negative. Exact to f32 rounding at any position: angles are reduced in double. The position is
  /// memory of the table's device, so that a captured step follows it; on a GPU nothing waits, and
  /// nothing is allocated where there is room.
  void fill(const int64_t* first_position, int64_t num_rows, const Context& context);
  /// The same from a position that the caller has; of a table on the CPU.
  void fill(int64_t first_position, int64_t num_rows, const Context& context);

  Device device() const { return device_; }
  int64_t head_dim() const { return 2 * half_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t size_bytes() const { return cos_.size_bytes() + sin_.size_bytes(); }
  const float* cos(int64_t row) const { return cos_.as<float>() + row * half_; }
  const float* sin(int64_t row) const { return sin_.as<float>() + row * half_; }

 private:
  Device device_;
  int64_t half_ = 0;
  int64_t num_rows_ = 0;
  std::vector<double> frequencies_;
  Tensor cos_, sin_;  // f32 [rows there is room for, half]
};

/// Rotates every head of x; row r takes row first_row + r of `table`, on the CPU; by the calling
/// thread.
///
/// x: f32 [rows, heads, head_dim], out: f32 or bf16 of the same shape, any strides but the last,
/// which is 1; out must not overlap x. Throws kInvalidArgument on shapes that do not fit.
void rope(const TensorView& x, const RopeTable& table, int64_t first_row, const TensorView& out);

}  // namespace fovea
