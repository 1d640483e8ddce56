#include <cuda_bf16.h>

#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/fill_random_cuda.h"
#include "fovea/tensor/random_value.h"

namespace fovea::cuda {
namespace {

template <typename T>
__global__ void fill_kernel(T* data, int64_t count, float bound, uint64_t seed,
                            uint64_t first_index) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    data[i] = T(bound * random_value(seed, first_index + static_cast<uint64_t>(i)));
  }
}

}  // namespace

void fill_random(const TensorView& tensor, float bound, uint64_t seed, uint64_t first_index,
                 const Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  constexpr int kCtas = 1024;
  constexpr int kThreads = 256;
  if (tensor.dtype == DType::kF32) {
    fill_kernel<<<kCtas, kThreads, 0, stream>>>(tensor.as<float>(), tensor.num_elements(), bound,
                                                seed, first_index);
  } else {
    fill_kernel<<<kCtas, kThreads, 0, stream>>>(tensor.as<__nv_bfloat16>(), tensor.num_elements(),
                                                bound, seed, first_index);
  }
  check_cuda(cudaGetLastError(), "launching fill_random");
}

}  // namespace fovea::cuda
