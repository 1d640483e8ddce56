// What the kernels of launch_grouped_product() are given; see grouped_product.h.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "fovea/ops/gated_activation.h"

namespace fovea::cuda {

struct GroupedParams {
  const int32_t* first_tile;  // [num_experts + 1]; null: one matrix, row_tiles tiles
  const int32_t* expert_of_tile;
  const int32_t* rows_of_expert;
  int32_t* next_tile;  // see GroupedProduct
  int num_experts, row_tiles;
  int rows, columns;     // of out
  int weight_rows;       // of an expert
  int column_tiles;      // of an expert
  int columns_per_tile;  // of out
  int second_half;       // from the first 128 rows of weights of a tile to its other 128
  int depth_per_step;    // elements in 128 bytes
  int num_steps;
  // Rows of a gated product are copied one by one.
  const void* in;
  int64_t in_stride_bytes;
  int depth_bytes;
  const int32_t* in_rows;  // that lies at each row of a tile
  void* out;
  int64_t out_stride;
  const float* bias;  // of each row of weights, see gated_sum()
  // f8 only
  const float* in_scales;  // [num_steps, in_scale_stride]
  int64_t in_scale_stride;
  const float* weight_scales;  // [weight rows / 128, num_steps]
  float* out_scales;           // [columns / 128, out_scale_stride]
  int64_t out_scale_stride;
};

struct GroupedLaunch {
  CUtensorMap in, weights;
  GroupedParams params;
  int num_ctas;
  cudaStream_t stream;
};

enum class GroupedOutput { kBf16, kF32, kAddF32 };

void launch_grouped_bf16(const GroupedLaunch& launch);
void launch_grouped_bf16_gated(const GroupedLaunch& launch, GateFunction function);
void launch_grouped_f8(const GroupedLaunch& launch, GroupedOutput output);
void launch_grouped_f8_gated(const GroupedLaunch& launch, GateFunction function);

}  // namespace fovea::cuda
