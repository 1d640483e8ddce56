// RowOps of a GPU's stream.
#pragma once

#include <memory>

#include "fovea/ops/row_ops.h"

namespace fovea {

/// Compute type bf16. After a shape's first matmul() nothing allocates, and nothing but
/// non_finite_layer() waits, so that a step can be captured. Rows of embed() whose token is not in
/// the table are NaN. Widths are multiples of 8 (heads of at most 256), and so are strides of rows;
/// pointers are of 16 bytes.
///
/// Throws kDevice when the GPU cannot be used, kUnsupported on another type or without cuBLASLt.
std::unique_ptr<RowOps> make_cuda_row_ops(DType compute_dtype, const Context& context);

/// See row_scratch_bytes().
int64_t cuda_row_scratch_bytes(const RowScratchShape& shape);

}  // namespace fovea
