// Rows and matrices in f8e4m3, each block with a scale of its own: its largest value over 448.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fovea/tensor/tensor.h"

namespace fovea::cuda {

/// out = f8 [rows, dim], scales [dim / 128, scale_stride] of bf16 rows.
void launch_quantize_rows(const TensorView& in, void* out, float* scales, int64_t scale_stride,
                          cudaStream_t stream);
/// out = f8 [rows, columns], scales [rows / 128, columns / 128] of a bf16 matrix.
void launch_quantize_matrix(const TensorView& in, void* out, float* scales, cudaStream_t stream);

}  // namespace fovea::cuda
