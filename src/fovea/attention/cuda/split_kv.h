// The kernels before and after a split-KV launch: where tiles lie, and how pieces become outputs.
#pragma once

#include <cuda_runtime_api.h>

#include "fovea/attention/cuda/prefill_params.h"

namespace fovea::cuda {

/// KV tiles of a chunk where the batch must not matter: few enough that a row of 4K keys with
/// 4 KV heads still keeps 32 processors busy, enough that joining the pieces costs little.
constexpr int32_t kChunkTiles = 4;

/// Pieces that a launch of `num_ctas` may leave without chunks.
constexpr int64_t max_pieces(int64_t num_ctas, int64_t total_q, int64_t num_kv_heads) {
  return num_ctas + total_q * num_kv_heads;
}
/// And with chunks, where a row has `max_tiles` KV tiles at most.
constexpr int64_t max_chunks(int64_t max_tiles, int64_t total_q, int64_t num_kv_heads) {
  return (max_tiles + kChunkTiles - 1) / kChunkTiles * total_q * num_kv_heads;
}

/// Fills params.tile_offsets for tiles of `kv_tile_rows`; a single row needs no offsets (null).
void launch_split_plan(const PrefillParams& params, int kv_tile_rows, cudaStream_t stream);

/// Joins the pieces of a launch of `num_ctas` into params.out and params.lse.
template <typename Element>
void launch_split_combine(const PrefillParams& params, int head_dim, int num_ctas, int kv_tile_rows,
                          cudaStream_t stream);

}  // namespace fovea::cuda
