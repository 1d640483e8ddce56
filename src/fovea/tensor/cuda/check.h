// Checks of CUDA calls, light enough for every .cu file.
#pragma once

#include <cuda_runtime_api.h>

namespace fovea::cuda {

/// Throws kDevice naming what failed, unless `status` is success.
void check_cuda(cudaError_t status, const char* what);

}  // namespace fovea::cuda
