// Packs block statistics for the scoring kernel and computes their prefix quantities.
#pragma once

#include <cuda_runtime_api.h>

#include "fovea/selector/cuda/select_params.h"

namespace fovea::cuda {

struct FactsSettings {
  float quantile_low = 0;
  float quantile_high = 0;
  float uplift_clamp = 0;    // 0: none
  bool over_prompt = false;  // quantiles over all complete blocks, not those before the query block
};

/// Fills params.facts for every sequence. `needs_order` when the method uses quantiles.
void launch_block_facts(const SelectParams& params, const StatsSource& source, int head_dim,
                        const FactsSettings& settings, bool needs_order, cudaStream_t stream);

}  // namespace fovea::cuda
