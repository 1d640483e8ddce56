// A token is drawn where the logits are.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fovea/ops/sampling_rule.h"
#include "fovea/tensor/tensor.h"

namespace fovea::cuda {

/// Of launch_draw(): 0 where the weights of all tokens fit the shared memory of a cluster.
int64_t draw_scratch_bytes(int64_t vocab_size);

/// *token = what draw_token() draws from `logits`, f32 [1, vocab_size], dense, fewer than 2^31; -1
/// when they hold a NaN.
void launch_draw(const TensorView& logits, const Draw* draw, int32_t* token, uint64_t* scratch,
                 cudaStream_t stream);

}  // namespace fovea::cuda
