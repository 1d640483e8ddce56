// The product of one row with a matrix, as decode has it, bound by reading the matrix: a warp per
// output feature streams its row of weights; the input stays in the L1 cache.
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/vectors.cuh"
#include "fovea/tensor/cuda/check.h"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kLoads = 8;  // of 16 bytes, that a thread has in flight

struct ProductParams {
  const __nv_bfloat16* in;
  const __nv_bfloat16* weights;  // [out_features, in_features]
  int in_features, out_features;
  void* out;
  bool add;
};

template <typename Out>
__global__ __launch_bounds__(kWarps * 32) void row_product_kernel(const ProductParams p) {
  constexpr int kStep = 32 * 8;  // elements that a warp reads at once
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int feature = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (feature >= p.out_features) return;
  const __nv_bfloat16* weights = p.weights + int64_t{feature} * p.in_features;
  float sum = 0;
  for (int first = lane * 8; first < p.in_features; first += kLoads * kStep) {
    uint4 bits[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * kStep;
      bits[i] = at < p.in_features ? __ldcs(reinterpret_cast<const uint4*>(weights + at)) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * kStep;
      if (at >= p.in_features) break;
      const Floats<8> w = widened(bits[i]);
      const Floats<8> x = load<8>(p.in + at);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum = fmaf(w.values[j], x.values[j], sum);
    }
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (lane != 0) return;
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
