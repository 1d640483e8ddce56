// Launches of the kernels of CudaRowOps, which has checked the arguments. Rows are read 16 bytes at
// a time: widths and strides are multiples of 8 elements, pointers of 16 bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "fovea/ops/row_ops.h"

namespace fovea::cuda {

/// CTAs for `count` things, `per_block` each.
constexpr unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

/// Elements of a row that norms hold in registers at most.
constexpr int64_t kMaxNormDim = 16384;

/// out = rows of a bf16 table times scale; rows of tokens that are not in the table are NaN.
void launch_embed(const int32_t* tokens, const TensorView& table, float scale,
                  const TensorView& out, cudaStream_t stream);

/// `noted` becomes the least of itself and `layer` when x is not finite; null: nothing is noted.
void launch_norm(const TensorView& x, const TensorView& weight, float eps, int32_t layer,
                 int32_t* noted, const TensorView& out, cudaStream_t stream);

void launch_add_normed(const TensorView& x, const TensorView& weight, float eps,
                       const TensorView& residual, cudaStream_t stream);

/// gate_up has fewer than 2^35 elements.
void launch_activate(GateFunction function, const TensorView& gate_up, const TensorView& out,
                     cudaStream_t stream);

/// rows += bias; f32, fewer than 2^34 elements.
void launch_add_bias(const TensorView& bias, const TensorView& rows, cudaStream_t stream);

void launch_finish_qkv(const QkvTask& task, cudaStream_t stream);
/// Its K and V, where the task has statistics.
void launch_finish_pages(const QkvTask& task, cudaStream_t stream);
/// What launch_finish_pages() can do.
bool has_finish_pages(int64_t head_dim, int64_t page_size);

/// See fill_rope_table().
void launch_rope_table(std::span<const double> frequencies, const int64_t* first_position,
                       int64_t num_rows, float* cos, float* sin, cudaStream_t stream);

}  // namespace fovea::cuda
