// Packs the block means of the periphery into one sequence per (sequence, KV head), so that the
// prefill kernel streams them like keys: pages scatter them, and a tile of 128 rows of 128 pages
// would take 128 copies.
#pragma once

#include <cuda_runtime_api.h>

#include "fovea/attention/cuda/prefill_params.h"

namespace fovea::cuda {

/// Strided means as the caller holds them, see Periphery; strides in elements of 16 bits.
struct MeanSource {
  const void* k_mean = nullptr;
  const void* v_mean = nullptr;
  int64_t k_strides[2] = {};  // entry, KV head
  int64_t v_strides[2] = {};
  const int64_t* block_offsets = nullptr;  // contiguous K/V; paged: params.page_table
};

/// Where they go: [batch * num_kv_heads, params.max_means, head_dim]; zeros where there is no
/// complete block.
struct PackedMeans {
  void* k = nullptr;
  void* v = nullptr;
  int32_t tile_rows = 0;
};

void launch_pack_means(const PrefillParams& params, const MeanSource& source,
                       const PackedMeans& packed, int head_dim, cudaStream_t stream);

}  // namespace fovea::cuda
