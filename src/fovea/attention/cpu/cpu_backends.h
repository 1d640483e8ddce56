// Attention on the CPU, one backend per instruction set.
#pragma once

#include <span>

#include "fovea/attention/attention.h"

namespace fovea {

/// cpu_amx_bf16, cpu_avx512_bf16, cpu_avx512, cpu_avx2, cpu_portable: those that this build has for
/// its processor family, fastest first. head_dim must be a multiple of 16 up to 256.
std::span<const AttentionBackend* const> cpu_attention_backends();

}  // namespace fovea
