// Scores every block before a query block for one q head, and writes the list of those it keeps.
//
// Persistent, three or four CTAs per SM where shared memory allows, so that one's exponentials run
// beside another's products. In each, a warpgroup scores tiles of 64 blocks, and a loader warp
// streams Q and tiles and writes the list of the row before. Nothing of size blocks x blocks or
// tokens x blocks ever reaches memory.
//
// `witness` has several rows a block, and query blocks of 256 two products a row: their sums add
// up.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fovea/selector/cuda/select_loader.cuh"
#include "fovea/selector/cuda/select_scorer.cuh"
#include "fovea/tensor/cuda/check.h"

namespace fovea::cuda {

template <typename Traits>
__global__ __launch_bounds__(kSelectThreads, Traits::kCtas) void select_kernel(
    const __grid_constant__ SelectMaps maps, const __grid_constant__ SelectParams params,
    const __grid_constant__ SelectLayout layout) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t raw_shared[];
  const SelectMemory<Traits> memory(raw_shared, layout);
  SelectShared& shared = memory.shared();
  if (threadIdx.x == 0) shared.init_barriers();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kSelectBins; i += kSelectThreads) {
    shared.best.bins[i / kSelectBins][i % kSelectBins] = 0;
  }
  __syncthreads();
  if (threadIdx.x < kSelectScorers) {
    SelectScorer<Traits>(params, memory).run();
  } else {
    SelectLoader<Traits>(maps, params, memory).run();
  }
#endif
}

/// Two tiles in flight where that costs no CTA of an SM.
template <typename Traits>
void launch_select_kernel(const SelectMaps& maps, const SelectParams& params,
                          int num_multiprocessors, cudaStream_t stream) {
  SelectLayout layout;
  layout.q_parts = (params.block_size + kSelectQueryRows - 1) / kSelectQueryRows;
  layout.max_blocks = params.facts.max_blocks;
  int most = 0;
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
             "asking for the shared memory of a CTA");
  check_cuda(cudaFuncSetAttribute(select_kernel<Traits>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, most),
             "configuring select_kernel");
  int ctas[kMaxStages + 1] = {};
  for (int stages = 1; stages <= kMaxStages; ++stages) {
    layout.num_stages = stages;
    const int bytes = SelectMemory<Traits>::bytes(layout);
    if (bytes > most) continue;
    check_cuda(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas[stages], select_kernel<Traits>,
                                                      kSelectThreads, static_cast<size_t>(bytes)),
        "sizing select_kernel");
  }
  layout.num_stages = ctas[2] >= ctas[1] ? 2 : 1;
  const int bytes = SelectMemory<Traits>::bytes(layout);
  const auto num_ctas = static_cast<unsigned>(num_multiprocessors * ctas[layout.num_stages]);
  select_kernel<Traits>
      <<<num_ctas, kSelectThreads, static_cast<size_t>(bytes), stream>>>(maps, params, layout);
  check_cuda(cudaGetLastError(), "launching select_kernel");
}

}  // namespace fovea::cuda

/// Defines one launcher of select_launch.h.
#define FOVEA_SELECT_INSTANCE(name, Element, kHeadDim)                                           \
  void fovea::cuda::name(const SelectMaps& maps, const SelectParams& params, bool has_uplift,    \
                         int num_multiprocessors, cudaStream_t stream) {                         \
    if (has_uplift) {                                                                            \
      launch_select_kernel<SelectTraits<Element, kHeadDim, true>>(maps, params,                  \
                                                                  num_multiprocessors, stream);  \
    } else {                                                                                     \
      launch_select_kernel<SelectTraits<Element, kHeadDim, false>>(maps, params,                 \
                                                                   num_multiprocessors, stream); \
    }                                                                                            \
  }
