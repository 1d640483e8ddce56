// Copies from global to shared memory that a thread asks for and does not wait for: unlike the copy
// engine's, each goes its own way. Those of 16 bytes pass the L1 cache by, so that what is in
// flight is bound by shared memory alone.
#pragma once

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea::ptx {

/// Zeros where `is_there` does not hold; `source` is then not read. `policy`: of the L2 cache.
FOVEA_DEVICE void copy_16(uint32_t destination, const void* source, bool is_there,
                          uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(destination),
      "l"(source), "r"(is_there ? 16 : 0), "l"(policy)
      : "memory");
}
FOVEA_DEVICE void copy_16(uint32_t destination, const void* source, bool is_there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(is_there ? 16 : 0)
               : "memory");
}
FOVEA_DEVICE void copy_16(uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}
FOVEA_DEVICE void copy_4(uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source)
               : "memory");
}
/// Asks for a line of memory to come into the L1 cache.
FOVEA_DEVICE void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}
/// Arrives at `barrier` when all copies that this thread has asked for have landed. What they wrote
/// is ordinary memory: who reads it through the tensor cores calls async_proxy_fence() first.
FOVEA_DEVICE void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Makes a group of the copies that this thread has asked for since the last one.
FOVEA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until of this thread's groups at most the last `kPending` are under way.
template <int kPending>
FOVEA_DEVICE void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fovea::ptx
