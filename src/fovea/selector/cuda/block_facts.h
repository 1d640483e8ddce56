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
  bool has_quantiles = false;  // the method uses them
  bool has_uplift = false;     // the method uses radii: blocks of a tile are laid out by theirs
};

/// Fills params.facts for every sequence.
void launch_block_facts(const SelectParams& params, const StatsSource& source, int head_dim,
                        bool is_bf16, const FactsSettings& settings, cudaStream_t stream);

}  // namespace fovea::cuda
