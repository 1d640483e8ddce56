// Tensor maps: how the copy engine sees q, k, v and out.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "fovea/tensor/tensor.h"

namespace fovea::cuda {

/// Rows, heads and pages of a tensor of 8 or 16 bits, strides in elements; the last dimension is
/// dense.
struct TensorMapShape {
  int64_t columns = 0;
  int64_t rows = 0;
  int64_t row_stride = 0;
  int64_t heads = 0;
  int64_t head_stride = 0;
  int64_t pages = 1;
  int64_t page_stride = 0;
};

/// [rows, heads, columns] and [pages, heads, rows, columns] in this form.
TensorMapShape token_major_shape(const TensorView& view);
TensorMapShape paged_shape(const TensorView& view);

/// Empty when the copy engine can address the tensor, else the rule it breaks.
std::string why_no_tensor_map(const TensorView& view, const char* name);

/// A map with boxes of [box_rows][row_bytes], swizzled over so many bytes (128: one panel; or 32),
/// zeros outside. Throws kDevice when the driver has no such function or refuses.
CUtensorMap make_tensor_map(const TensorView& view, const TensorMapShape& shape, int32_t box_rows,
                            int32_t row_bytes = 128);

}  // namespace fovea::cuda
