// The kernels before and after a split-KV launch: where tiles lie, and how pieces become outputs.
#pragma once

#include <cuda_runtime_api.h>

#include "fovea/attention/cuda/prefill_params.h"

namespace fovea::cuda {

/// Pieces that a launch of `num_ctas` may leave.
constexpr int64_t max_pieces(int64_t num_ctas, int64_t total_q, int64_t num_kv_heads) {
  return num_ctas + total_q * num_kv_heads;
}

/// Fills params.tile_offsets for tiles of `kv_tile_rows`.
void launch_split_plan(const PrefillParams& params, int kv_tile_rows, cudaStream_t stream);

/// Joins the pieces of a launch of `num_ctas` into params.out and params.lse.
template <typename Element>
void launch_split_combine(const PrefillParams& params, int head_dim, int num_ctas,
                          cudaStream_t stream);

}  // namespace fovea::cuda
