// Products of a few rows with a matrix, as decode has them: a warp per output feature streams its
// row of weights once for all rows of the input, which stay in the L1 cache.
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/vectors.cuh"
#include "fovea/tensor/cuda/check.h"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 8;

struct ProductParams {
  const __nv_bfloat16* in;
  int64_t in_stride;
  const __nv_bfloat16* weights;  // [out_features, in_features]
  int in_features, out_features;
  void* out;
  int64_t out_stride;
  bool add;
};

template <int kRows, typename Out>
__global__ __launch_bounds__(kWarps * 32) void row_product_kernel(const ProductParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int feature = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (feature >= p.out_features) return;
  const __nv_bfloat16* weights = p.weights + int64_t{feature} * p.in_features;
  float sums[kRows] = {};
#pragma unroll 4
  for (int at = lane * 8; at < p.in_features; at += 32 * 8) {
    const Floats<8> w = widened(__ldcs(reinterpret_cast<const uint4*>(weights + at)));
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const Floats<8> x = load<8>(p.in + row * p.in_stride + at);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[row] = fmaf(w.values[i], x.values[i], sums[row]);
    }
  }
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float sum = sums[row];
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane != 0) continue;
    Out* out = static_cast<Out*>(p.out) + row * p.out_stride + feature;
    if constexpr (std::is_same_v<Out, float>) {
      *out = p.add ? *out + sum : sum;
    } else {
      *out = __float2bfloat16(sum);
    }
  }
}

template <int kRows>
void launch(const ProductParams& p, DType out_dtype, cudaStream_t stream) {
  const unsigned grid = blocks_for(p.out_features, kWarps);
  if (out_dtype == DType::kF32) {
    row_product_kernel<kRows, float><<<grid, kWarps * 32, 0, stream>>>(p);
  } else {
    row_product_kernel<kRows, __nv_bfloat16><<<grid, kWarps * 32, 0, stream>>>(p);
  }
}

}  // namespace

void launch_row_product(const TensorView& in, const TensorView& weights, const TensorView& out,
                        bool add, cudaStream_t stream) {
  const ProductParams p{in.as<const __nv_bfloat16>(),
                        in.stride[0],
                        weights.as<const __nv_bfloat16>(),
                        static_cast<int>(weights.shape[1]),
                        static_cast<int>(weights.shape[0]),
                        out.data,
                        out.stride[0],
                        add};
  if (in.shape[0] == 1) launch<1>(p, out.dtype, stream);
  if (in.shape[0] == 2) launch<2>(p, out.dtype, stream);
  if (in.shape[0] == 3) launch<3>(p, out.dtype, stream);
  if (in.shape[0] == 4) launch<4>(p, out.dtype, stream);
  check_cuda(cudaGetLastError(), "launching row_product_kernel");
}

}  // namespace fovea::cuda
