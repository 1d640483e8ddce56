// Copies from global to shared memory that a thread asks for and does not wait for: unlike the
// copy engine's, each goes its own way.
#pragma once

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea::ptx {

/// 16 bytes, past the L1 cache; zeros, and nothing is read, where `is_there` is false.
FOVEA_DEVICE void copy_async16(uint32_t destination, const void* source, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(is_there ? 16 : 0)
               : "memory");
}
FOVEA_DEVICE void copy_async4(uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source)
               : "memory");
}
/// Arrives at `barrier` when all copies that this thread has asked for have landed. What they wrote
/// is ordinary memory: who reads it through the tensor cores calls async_proxy_fence() first.
FOVEA_DEVICE void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace fovea::ptx
