// Prefill attention for Hopper, dense and block-sparse: one persistent CTA per SM, 384 threads.
//
// Warpgroup 0 produces: its warp 0 streams K and V tiles, its warp 1 hands out rows ("row": one q
// head of one query tile) and loads their Q, its warp 2 looks at V where a tile is masked.
// Warpgroups 1 and 2 consume, 64 query rows each. The tiles of successive rows form one stream: the
// Q K^T of a row's first tile is issued together with the P V of the previous row's last, so that
// short rows do not drain the pipeline. The softmax of one warpgroup runs beside the products of
// the other (named barriers hand the tensor cores to and fro) and beside its own P V.
//
// A tile of P never goes through memory: accumulators are packed and used as the A operand. Row
// sums are added across the quad only in the end. The maximum moves only when it would grow by more
// than 2^8, so that O is seldom rescaled and P stays below 2^8. O is staged through the Q buffer of
// its own row and leaves by TMA, except where the tile has rows of other sequences.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fovea/attention/cuda/prefill_consumer.cuh"
#include "fovea/attention/cuda/prefill_inspector.cuh"
#include "fovea/attention/cuda/prefill_producer.cuh"
#include "fovea/attention/cuda/prefill_producer_f8.cuh"
#include "fovea/attention/cuda/split_kv.cuh"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {

template <typename Traits>
__global__ __launch_bounds__(kPrefillThreads,
                             1) void prefill_kernel(const __grid_constant__ PrefillMaps maps,
                                                    const __grid_constant__ PrefillParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t raw_shared[];
  auto& shared = *reinterpret_cast<PrefillShared<Traits>*>(raw_shared);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  if constexpr (Traits::kIsSplit) {  // see launch_prefill()
    ptx::let_next_grid_begin();
    ptx::wait_for_previous_grid();
  }

  // The reduction tells the compiler that the warpgroup's number is the same in the whole warp.
  const auto warpgroup = static_cast<int>(__reduce_or_sync(~0u, threadIdx.x / 128));
  if (warpgroup == 0) {
    ptx::release_registers<Traits::kProducerRegisters>();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (warp == 0) {
      if constexpr (Traits::kIsF8) {
        load_kv_f8<Traits>(maps, params, shared);
      } else {
        load_kv<Traits>(maps, params, shared);
      }
    }
    if (warp == 2) inspect_values<Traits>(params, shared);
    if (warp == 1) {
      if constexpr (Traits::kIsSplit) {
        hand_out_pieces<Traits>(maps, params, shared);
      } else {
        hand_out_rows<Traits>(maps, params, shared);
      }
    }
  } else {
    ptx::claim_registers<Traits::kConsumerRegisters>();
    PrefillConsumer<Traits>(maps, params, shared, warpgroup - 1).run();
  }
#endif
}

/// A decode step's may begin before the kernel in front of it has ended.
template <typename Traits>
void launch_prefill(const PrefillMaps& maps, const PrefillParams& params, int num_ctas,
                    cudaStream_t stream) {
  const int bytes = prefill_shared_bytes<Traits>(params);
  check_cuda(cudaFuncSetAttribute(prefill_kernel<Traits>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "configuring prefill_kernel");
  const auto grid = static_cast<unsigned>(num_ctas);
  if constexpr (Traits::kIsSplit) {
    launch_overlapping(prefill_kernel<Traits>, grid, kPrefillThreads, static_cast<size_t>(bytes),
                       stream, "launching prefill_kernel", maps, params);
  } else {
    prefill_kernel<Traits>
        <<<grid, kPrefillThreads, static_cast<size_t>(bytes), stream>>>(maps, params);
    check_cuda(cudaGetLastError(), "launching prefill_kernel");
  }
}

}  // namespace fovea::cuda

/// Defines one launcher of prefill_launch.h; what follows the name are arguments of PrefillTraits.
#define FOVEA_PREFILL_INSTANCE(name, ...)                                                    \
  void fovea::cuda::name(const PrefillMaps& maps, const PrefillParams& params, int num_ctas, \
                         cudaStream_t stream) {                                              \
    launch_prefill<PrefillTraits<__VA_ARGS__>>(maps, params, num_ctas, stream);              \
  }
