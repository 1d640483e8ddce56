// The Hopper backend of attention; includes no CUDA header. Built with FOVEA_CUDA only.
#pragma once

#include "fovea/attention/attention.h"

namespace fovea {

/// "cuda_sm90": all pointers of AttentionParams are memory of the context's GPU, those of the
/// batch, the page table and the selection too, except the structs themselves. Nothing waits for
/// the GPU: errors of a running kernel surface at the caller's next synchronisation. Lengths and
/// lists are read on the device and trusted.
const AttentionBackend& cuda_attention_backend();

}  // namespace fovea
