// The bulk tensor copy engine: boxes of a tensor map to and from shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea::ptx {

/// Coordinates of a box, fastest dimension first: column, row, head, page. Elements outside the
/// tensor, negative ones too, arrive as zeros and are not stored.
struct BoxCoordinates {
  int column = 0;
  int row = 0;
  int head = 0;
  int page = 0;
};

/// Loads a box into `destination` (shared); its bytes count at `barrier`.
FOVEA_DEVICE void tma_load(uint32_t destination, const CUtensorMap* map, uint32_t barrier,
                           BoxCoordinates at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.page)
      : "memory");
}

/// An L2 policy for data that is touched once: it leaves before K and V do.
FOVEA_DEVICE uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Loads `bytes` that lie one after another, a multiple of 16 at addresses that are multiples
/// of 16.
FOVEA_DEVICE void bulk_load(uint32_t destination, const void* source, uint32_t bytes,
                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
FOVEA_DEVICE void bulk_load(uint32_t destination, const void* source, uint32_t bytes,
                            uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

FOVEA_DEVICE void tma_load(uint32_t destination, const CUtensorMap* map, uint32_t barrier,
                           BoxCoordinates at, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.page), "l"(policy)
      : "memory");
}

/// Stores a box from `source` (shared), which must have been fenced with async_proxy_fence().
FOVEA_DEVICE void tma_store(const CUtensorMap* map, uint32_t source, BoxCoordinates at,
                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint "
      "[%0, {%2, %3, %4, %5}], [%1], %6;" ::"l"(map),
      "r"(source), "r"(at.column), "r"(at.row), "r"(at.head), "r"(at.page), "l"(policy)
      : "memory");
}
FOVEA_DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until the committed stores of this thread have read their shared memory.
FOVEA_DEVICE void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// Orders this thread's ordinary stores to shared memory before reads by TMA or wgmma.
FOVEA_DEVICE void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// The same of stores to global memory.
FOVEA_DEVICE void global_async_proxy_fence() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace fovea::ptx
