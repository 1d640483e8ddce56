// The product of one row with a matrix, as decode has it: a warp per output feature streams its row
// of weights.
#include "fovea/ops/cuda/row_dot.cuh"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/tensor/cuda/check.h"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 4;

struct ProductParams {
  const __nv_bfloat16* in;
  const __nv_bfloat16* weights;  // [out_features, in_features]
  int in_features, out_features;
  void* out;
  bool add;
};

template <typename Out>
__global__ __launch_bounds__(kWarps * 32) void row_product_kernel(const ProductParams p) {
  const int feature = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (feature >= p.out_features) return;
  const __nv_bfloat16* weights = p.weights + int64_t{feature} * p.in_features;
  const float sum = row_dot(weights, p.in, p.in_features);
  if (threadIdx.x % 32 != 0) return;
  Out* out = static_cast<Out*>(p.out) + feature;
  if constexpr (std::is_same_v<Out, float>) {
    *out = p.add ? *out + sum : sum;
  } else {
    *out = __float2bfloat16(sum);
  }
}

}  // namespace

void launch_row_product(const TensorView& in, const TensorView& weights, const TensorView& out,
                        bool add, cudaStream_t stream) {
  const ProductParams p{in.as<const __nv_bfloat16>(),
                        weights.as<const __nv_bfloat16>(),
                        static_cast<int>(weights.shape[1]),
                        static_cast<int>(weights.shape[0]),
                        out.data,
                        add};
  const unsigned grid = blocks_for(p.out_features, kWarps);
  if (out.dtype == DType::kF32) {
    row_product_kernel<float><<<grid, kWarps * 32, 0, stream>>>(p);
  } else {
    row_product_kernel<__nv_bfloat16><<<grid, kWarps * 32, 0, stream>>>(p);
  }
  check_cuda(cudaGetLastError(), "launching row_product_kernel");
}

}  // namespace fovea::cuda
