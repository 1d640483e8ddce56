// Launchers of the scoring kernel, one per head_dim; each is compiled in instances/.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "fovea/selector/cuda/select_params.h"

namespace fovea::cuda {

/// Branches that a method scores: logits alone, logits with an uplift by the radius, or both.
enum class Branches { kBase, kUplift, kBoth };

struct SelectMaps {
  CUtensorMap q;     // 128 rows
  CUtensorMap rows;  // facts: 64 rows of a tile; "row" runs over all tiles
};

using SelectLauncher = void (*)(const SelectMaps&, const SelectParams&, Branches,
                                int num_multiprocessors, cudaStream_t);
void launch_select_d64(const SelectMaps&, const SelectParams&, Branches, int, cudaStream_t);
void launch_select_d128(const SelectMaps&, const SelectParams&, Branches, int, cudaStream_t);
void launch_select_d256(const SelectMaps&, const SelectParams&, Branches, int, cudaStream_t);

/// Writes 0, 1, 2 ... to the head of the pool, clears the counters, and fills q_block_offsets,
/// which has batch_size + 1 entries (params.batch_size may be less).
void launch_pool_reset(const SelectParams& params, int64_t* q_block_offsets, int64_t batch_size,
                       cudaStream_t stream);

}  // namespace fovea::cuda
