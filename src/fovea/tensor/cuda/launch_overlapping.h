// How kernels are launched that may begin before the one in front of them has ended.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fovea/tensor/cuda/check.h"

namespace fovea::cuda {

/// Launches a kernel each of whose threads calls ptx::wait_for_previous_grid() before it touches
/// memory that kernels in front of it use. Throws kDevice naming `what`.
template <typename... Params, typename... Args>
void launch_overlapping(void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared_bytes,
                        cudaStream_t stream, const char* what, const Args&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), what);
}

}  // namespace fovea::cuda
