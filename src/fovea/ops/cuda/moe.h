// A mixture of experts on a GPU: routing, one product with all experts' matrices at once, and the
// weighted sum. Few rows, as decode has them, take a shorter way without sorting.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fovea/base/context.h"
#include "fovea/ops/cuda/cuda_matmul.h"
#include "fovea/ops/row_ops.h"

namespace fovea::cuda {

constexpr int64_t kMaxExperts = 256;
constexpr int64_t kMaxTopK = 16;

/// `task` has been checked: bf16 memory of the context's device, sizes within the limits above.
/// Nothing waits, and a row's result depends on no other row as long as there are more rows than
/// CudaMatmul::kMaxSplitRows.
void run_moe(const MoeTask& task, CudaMatmul& matmul, const Context& context);

// The launches of run_moe().

/// Rows of an expert are cut into tiles of this many, the last one filled up with rows that nobody
/// reads.
constexpr int64_t kRowsPerTile = 128;

/// Who goes where; GPU memory.
struct MoeRoutes {
  int64_t rows = 0, num_experts = 0, top_k = 0;
  int32_t* experts = nullptr;  // [rows, top_k], the likeliest first
  float* weights = nullptr;    // [rows, top_k]

  // Not for few rows:
  int32_t* ranks = nullptr;           // [rows, top_k], among the rows of the same expert
  int32_t* counts = nullptr;          // [num_experts], rows of each; zeros at first
  int32_t* first_tile = nullptr;      // [num_experts + 1]; the last is the number of all tiles
  int32_t* expert_of_tile = nullptr;  // [max_tiles()]
  int64_t max_tiles() const {
    const int64_t chosen = rows * top_k;
    return chosen < num_experts ? chosen : chosen / kRowsPerTile + num_experts;
  }
};

/// Experts and weights from logits f32 [rows, num_experts]; ranks and counts when there are counts.
void launch_route(const float* logits, bool normalise, const MoeRoutes& routes,
                  cudaStream_t stream);
/// Tiles from counts.
void launch_tiles(const MoeRoutes& routes, cudaStream_t stream);
/// out [max_tiles * kRowsPerTile, dim]: each row where its experts' tiles have it.
void launch_gather(const TensorView& in, const MoeRoutes& routes, void* out, cudaStream_t stream);
/// residual += the weighted outputs of each row's experts, the likeliest first.
void launch_combine(const void* outputs, const MoeRoutes& routes, const TensorView& residual,
                    cudaStream_t stream);

/// Rows of tiles times their experts' matrices.
struct GroupedProduct {
  const void* in = nullptr;  // bf16 [max_tiles * kRowsPerTile, depth]
  int64_t depth = 0;
  TensorView weights;   // bf16 [num_experts * rows of each, depth]
  void* out = nullptr;  // bf16 [max_tiles * kRowsPerTile, columns]
  int64_t columns = 0;
  /// Weights hold gates first and then as many values; out = function(gate) * value.
  bool is_gated = false;
  GateFunction function = GateFunction::kSilu;
};
void launch_grouped_product(const GroupedProduct& product, const MoeRoutes& routes,
                            const Context& context);

/// The way for few rows: activated [rows, top_k, expert_dim], then onto the residual stream.
void launch_few_gate_up(const MoeTask& task, const MoeRoutes& routes, void* activated,
                        cudaStream_t stream);
void launch_few_down(const MoeTask& task, const MoeRoutes& routes, const void* activated,
                     cudaStream_t stream);

}  // namespace fovea::cuda
