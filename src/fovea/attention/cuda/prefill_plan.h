// The list of query tiles of a ragged batch, made on the device because lengths live there.
#pragma once

#include <cuda_runtime_api.h>

#include "fovea/attention/cuda/prefill_params.h"

namespace fovea::cuda {

/// Upper bound of the tiles of `total_q` rows in `batch_size` sequences.
constexpr int64_t max_q_tiles(int64_t total_q, int64_t batch_size) {
  return total_q / 128 + 2 * batch_size;
}

/// Fills params.plan, longest tiles first, and resets its counter.
void launch_prefill_plan(const PrefillParams& params, int64_t batch_size, int64_t total_q,
                         cudaStream_t stream);

}  // namespace fovea::cuda
