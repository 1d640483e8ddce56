// What the kernel of launch_grouped_product() is given; see moe.h.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "fovea/ops/gated_activation.h"

namespace fovea::cuda {

struct GroupedParams {
  const int32_t* first_tile;  // [num_experts + 1]
  const int32_t* expert_of_tile;
  int num_experts;
  int weight_rows;         // of an expert
  int column_tiles;        // of an expert
  int columns_per_tile;    // of out
  int second_half;         // from the first 128 rows of weights of a tile to its other 128
  int columns, num_steps;  // of out; of 64 along the depth
  __nv_bfloat16* out;
};

void launch_grouped_kernel(const CUtensorMap& in, const CUtensorMap& weights,
                           const GroupedParams& params, bool is_gated, GateFunction function,
                           int num_ctas, cudaStream_t stream);

}  // namespace fovea::cuda
