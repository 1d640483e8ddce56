// Launchers of the selection's kernels; the scoring kernel has one per type and head_dim, each
// compiled in instances/.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "fovea/selector/cuda/select_params.h"

namespace fovea::cuda {

/// Query rows of one product. Query blocks of 64 leave half of them empty, those of 256 take two.
constexpr int kSelectQueryRows = 128;

struct SelectMaps {
  CUtensorMap q;     // 128 rows
  CUtensorMap rows;  // facts: 64 rows of a tile; "row" runs over all tiles
};

/// Scores and lists. `has_uplift`: logits with an uplift by the radius as a second branch.
using SelectLauncher = void (*)(const SelectMaps&, const SelectParams&, bool has_uplift,
                                int num_multiprocessors, cudaStream_t);
void launch_select_bf16_d64(const SelectMaps&, const SelectParams&, bool, int, cudaStream_t);
void launch_select_bf16_d128(const SelectMaps&, const SelectParams&, bool, int, cudaStream_t);
void launch_select_bf16_d256(const SelectMaps&, const SelectParams&, bool, int, cudaStream_t);
void launch_select_f16_d64(const SelectMaps&, const SelectParams&, bool, int, cudaStream_t);
void launch_select_f16_d128(const SelectMaps&, const SelectParams&, bool, int, cudaStream_t);
void launch_select_f16_d256(const SelectMaps&, const SelectParams&, bool, int, cudaStream_t);

/// Upper bound of the query blocks of `total_q` rows in `batch_size` sequences.
constexpr int64_t max_query_blocks(int64_t total_q, int64_t batch_size, int64_t block_size) {
  return total_q / block_size + 2 * batch_size;
}

/// Before the scoring: fills params.plan and params.q_block_offsets, whose entries past the batch
/// (up to `max_batch_size`) repeat the end, writes 0, 1, 2 ... to the head of the pool, and clears
/// the counters.
void launch_select_plan(const SelectParams& params, int64_t max_batch_size, int64_t max_blocks,
                        cudaStream_t stream);

}  // namespace fovea::cuda
