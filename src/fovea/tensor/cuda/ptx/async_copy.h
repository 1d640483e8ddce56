// Copies of 16 bytes from global to shared memory that a thread asks for and takes up later. They
// pass the L1 cache by: what is in flight is bound by shared memory alone.
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
FOVEA_DEVICE void copy_16(uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}
/// Makes a group of the copies that this thread has asked for since the last one.
FOVEA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until of this thread's groups at most the last `kPending` are under way.
template <int kPending>
FOVEA_DEVICE void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fovea::ptx
