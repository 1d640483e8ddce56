// One block of one KV head, as the kernels of block_stats_kernel.h see it.
#pragma once

#include <cstdint>

#include "fovea/selector/block_stats.h"

namespace fovea {

/// Strides in elements. The pointers are to f32, or to bf16 when `is_bf16`.
struct BlockStatsTask {
  bool is_bf16 = false;
  int64_t block_size = 0, head_dim = 0, num_witnesses = 0;
  const void* keys = nullptr;    // [block_size, head_dim]
  const void* values = nullptr;  // [block_size, head_dim]
  int64_t key_stride = 0, value_stride = 0;
  void* centroid = nullptr;  // [head_dim], as v_mean and rest_mean
  void* v_mean = nullptr;
  void* witness = nullptr;  // [num_witnesses, head_dim]
  int64_t witness_stride = 0;
  void* rest_mean = nullptr;
  float* radius = nullptr;
  int32_t* non_finite = nullptr;
  float* scratch = nullptr;  // [block_size]
};

using BlockStatsKernel = void (*)(const BlockStatsTask& task);

void block_stats_portable(const BlockStatsTask& task);
void block_stats_avx2(const BlockStatsTask& task);
void block_stats_avx512(const BlockStatsTask& task);

}  // namespace fovea
