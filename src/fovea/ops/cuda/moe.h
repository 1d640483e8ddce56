// A mixture of experts on a GPU: routing, one product with all experts' matrices at once, and the
// weighted sum. Few rows, as decode has them, take a shorter way without sorting.
#pragma once

#include <cuda_runtime_api.h>

#include "fovea/base/context.h"
#include "fovea/ops/cuda/cuda_matmul.h"
#include "fovea/ops/cuda/moe_routes.h"
#include "fovea/ops/row_ops.h"

namespace fovea::cuda {

/// `task` has been checked: memory of the context's device, sizes within the limits of MoeRoutes.
/// Nothing waits, and a row's result depends on no other row as long as there are more rows than
/// CudaMatmul::kMaxSplitRows.
void run_moe(const MoeTask& task, CudaMatmul& matmul, const Context& context);

/// Bytes that run_moe() takes for a moment.
int64_t moe_scratch_bytes(const RowScratchShape& shape);

// The launches of run_moe().

/// Experts and weights from logits f32 [rows, num_experts] and a bias of each expert, or null;
/// ranks and counts when there are counters.
void launch_route(const float* logits, const float* bias, bool normalise, const MoeRoutes& routes,
                  cudaStream_t stream);
/// Tiles from counts; in_rows [max_slots()]: at each slot that is filled, its row.
void launch_list_rows(const MoeRoutes& routes, int32_t* in_rows, cudaStream_t stream);
/// residual += the weighted outputs of each row's experts, the likeliest first; `bias`
/// [num_experts, dim], or null, belongs to the outputs.
void launch_combine(const void* outputs, const float* bias, const MoeRoutes& routes,
                    const TensorView& residual, cudaStream_t stream);

/// The way for few rows: activated [rows, top_k, expert_dim], then onto the residual stream.
void launch_few_gate_up(const MoeTask& task, const MoeRoutes& routes, void* activated,
                        cudaStream_t stream);
void launch_few_down(const MoeTask& task, const MoeRoutes& routes, const void* activated,
                     cudaStream_t stream);

}  // namespace fovea::cuda
