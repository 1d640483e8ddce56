// Matrices on a GPU from bf16 to f8.
#pragma once

#include "fovea/base/context.h"
#include "fovea/tensor/tensor.h"

namespace fovea::cuda {

/// `quantized`, f8e4m3, and `scales`, one for each 128 x 128 block, of a bf16 `matrix` whose sizes
/// are multiples of 128; in stream order.
void quantize_matrix(const TensorView& matrix, const TensorView& quantized,
                     const TensorView& scales, const Context& context);

}  // namespace fovea::cuda
