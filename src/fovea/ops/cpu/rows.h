// How the operations walk a view row by row.
#pragma once

#include <cstdint>

#include "fovea/base/error.h"
#include "fovea/tensor/tensor.h"

namespace fovea::cpu {

/// Throws kInvalidArgument unless `view` has rank 2 or 3, a last stride of 1 and an allowed type.
inline void check_rows(const TensorView& view, const char* name, bool allow_bf16) {
  check_argument(view.dtype == DType::kF32 || (allow_bf16 && view.dtype == DType::kBF16),
                 "{} must be f32{}, got {}", name, allow_bf16 ? " or bf16" : "", view.describe());
  check_argument(view.rank == 2 || view.rank == 3, "{} must have rank 2 or 3, got {}", name,
                 view.describe());
  check_argument(view.shape[static_cast<size_t>(view.rank - 1)] == 0 ||
                     view.stride[static_cast<size_t>(view.rank - 1)] == 1,
                 "the last stride of {} must be 1, got {}", name,
                 view.stride[static_cast<size_t>(view.rank - 1)]);
}

inline void check_same_shape(const TensorView& a, const char* a_name, const TensorView& b,
                             const char* b_name) {
  bool same = a.rank == b.rank;
  for (int32_t i = 0; same && i < a.rank; ++i) {
    same = a.shape[static_cast<size_t>(i)] == b.shape[static_cast<size_t>(i)];
  }
  check_argument(same, "{} must have the shape of {}, got {} and {}", b_name, a_name, b.describe(),
                 a.describe());
}

/// Calls body(x_row, out_row) with element offsets of every row of two views of one shape.
template <typename Body>
void for_each_row(const TensorView& x, const TensorView& out, Body body) {
  const int64_t num_heads = x.rank == 3 ? x.shape[1] : 1;
  for (int64_t row = 0; row < x.shape[0]; ++row) {
    for (int64_t head = 0; head < num_heads; ++head) {
      const int64_t x_head = x.rank == 3 ? head * x.stride[1] : 0;
      const int64_t out_head = out.rank == 3 ? head * out.stride[1] : 0;
      body(row * x.stride[0] + x_head, row * out.stride[0] + out_head);
    }
  }
}

}  // namespace fovea::cpu
