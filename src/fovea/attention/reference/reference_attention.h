// The oracle: what attention means, in plain loops and double precision. Never optimised.
#pragma once

#include "fovea/attention/attention.h"

namespace fovea {

/// "reference": f32, bf16 and f8e4m3 on the CPU, any head_dim, everything the contract allows.
const AttentionBackend& reference_attention_backend();

}  // namespace fovea
