#include "fovea/ops/cuda/quantize.h"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/vectors.cuh"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/float8.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline float scale_of(float largest) {
  return largest > 0 ? largest / kMaxFloat8E4M3 : 1.0f;
}

__device__ inline float largest_of(const Floats<8>& x) {
  float largest = 0;
#pragma unroll
  for (const float value : x.values) largest = fmaxf(largest, fabsf(value));
  return largest;
}

__device__ inline uint2 packed(const Floats<8>& x, float inverse) {
  const auto& v = x.values;
  return {ptx::pack_e4m3(v[0] * inverse, v[1] * inverse, v[2] * inverse, v[3] * inverse),
          ptx::pack_e4m3(v[4] * inverse, v[5] * inverse, v[6] * inverse, v[7] * inverse)};
}

struct QuantizeParams {
  const __nv_bfloat16* in;
  int64_t in_stride;
  int dim;
  uint8_t* out;
  float* scales;
  int64_t scale_stride;
};

/// 16 threads hold a block of 128 columns.
__global__ __launch_bounds__(kThreads) void quantize_rows_kernel(const QuantizeParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const int64_t row = blockIdx.x;
  for (int at = static_cast<int>(threadIdx.x) * 8; at < p.dim; at += kThreads * 8) {
    const Floats<8> x = load<8>(p.in + row * p.in_stride + at);
    float largest = largest_of(x);
#pragma unroll
    for (int o = 8; o > 0; o /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(__activemask(), largest, o));
    }
    const float scale = scale_of(largest);
    *reinterpret_cast<uint2*>(p.out + row * p.dim + at) = packed(x, 1 / scale);
    if (threadIdx.x % 16 == 0) p.scales[at / 128 * p.scale_stride + row] = scale;
  }
}

/// A CTA per block, in two passes over it.
__global__ __launch_bounds__(kThreads) void quantize_matrix_kernel(const QuantizeParams p) {
  __shared__ float partial[kThreads / 32];
  const int column = static_cast<int>(blockIdx.x) * 128 + static_cast<int>(threadIdx.x) % 16 * 8;
  const int64_t first_row = int64_t{blockIdx.y} * 128 + threadIdx.x / 16;
  constexpr int kRowStep = kThreads / 16;
  const auto row_at = [&](int i) {
    return load<8>(p.in + (first_row + i * kRowStep) * p.in_stride + column);
  };
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 128 / kRowStep; ++i) largest = fmaxf(largest, largest_of(row_at(i)));
#pragma unroll
  for (int o = 16; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = largest;
  __syncthreads();
  for (const float other : partial) largest = fmaxf(largest, other);
  const float scale = scale_of(largest);
#pragma unroll
  for (int i = 0; i < 128 / kRowStep; ++i) {
    *reinterpret_cast<uint2*>(p.out + (first_row + i * kRowStep) * p.dim + column) =
        packed(row_at(i), 1 / scale);
  }
  if (threadIdx.x == 0) p.scales[blockIdx.y * p.scale_stride + blockIdx.x] = scale;
}

QuantizeParams params_of(const TensorView& in, void* out, float* scales, int64_t scale_stride) {
  return {in.as<const __nv_bfloat16>(), in.stride[0], static_cast<int>(in.shape[1]),
          static_cast<uint8_t*>(out),   scales,       scale_stride};
}

}  // namespace

void launch_quantize_rows(const TensorView& in, void* out, float* scales, int64_t scale_stride,
                          cudaStream_t stream) {
  launch_overlapping(quantize_rows_kernel, static_cast<unsigned>(in.shape[0]), kThreads, 0, stream,
                     "launching quantize_rows_kernel", params_of(in, out, scales, scale_stride));
}

void launch_quantize_matrix(const TensorView& in, void* out, float* scales, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(in.shape[1] / 128),
                  static_cast<unsigned>(in.shape[0] / 128));
  quantize_matrix_kernel<<<grid, kThreads, 0, stream>>>(
      params_of(in, out, scales, in.shape[1] / 128));
  check_cuda(cudaGetLastError(), "launching quantize_matrix_kernel");
}

}  // namespace fovea::cuda
