// Barriers in shared memory that count arrivals and bytes, and the named barriers of a CTA.
//
// cuda::ptx of the toolkit has the same; it costs more compile time than the kernels themselves.
#pragma once

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea::ptx {

FOVEA_DEVICE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

FOVEA_DEVICE void mbarrier_init(uint32_t barrier, int num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals));
}
/// Makes mbarrier_init visible to the copy engine; the CTA still needs its own barrier.
FOVEA_DEVICE void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
FOVEA_DEVICE void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives and announces `bytes` of copies that must complete in this phase as well.
FOVEA_DEVICE void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Waits until the phase of this parity has completed. A fresh barrier is in phase 0, so waiting
/// for parity 1 returns at once: producers start with 1, consumers with 0.
FOVEA_DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Named barrier `id` (1 ... 15; 0 is __syncthreads) over `num_threads`, whole warps.
FOVEA_DEVICE void named_barrier_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
FOVEA_DEVICE void named_barrier_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

}  // namespace fovea::ptx
