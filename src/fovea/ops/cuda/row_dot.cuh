// A warp's product of one row with one row of a matrix, bound by reading the matrix.
#pragma once

#include "fovea/ops/cuda/vectors.cuh"

namespace fovea::cuda {

/// Adds up what the lanes have; every lane gets it.
__device__ inline float warp_sum(float sum) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  return sum;
}

/// Sum of weights[i] * x[i] over `size` elements, a multiple of 8; every lane gets it. The weights
/// are read once and not kept, x comes from the L1 cache.
__device__ inline float row_dot(const __nv_bfloat16* weights, const __nv_bfloat16* x, int size) {
  constexpr int kLoads = 8;      // of 16 bytes, that a thread has in flight
  constexpr int kStep = 32 * 8;  // elements that a warp reads at once
  float sum = 0;
  for (int first = static_cast<int>(threadIdx.x) % 32 * 8; first < size; first += kLoads * kStep) {
    uint4 bits[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * kStep;
      bits[i] = at < size ? __ldcs(reinterpret_cast<const uint4*>(weights + at)) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * kStep;
      if (at >= size) break;
      const Floats<8> w = widened(bits[i]);
      const Floats<8> terms = load<8>(x + at);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum = fmaf(w.values[j], terms.values[j], sum);
    }
  }
  return warp_sum(sum);
}

/// The same of f8, `size` and the matrix's rows multiples of 128; `scales`: of the row, each of 128
/// elements.
__device__ inline float row_dot(const Float8E4M3* weights, const float* scales,
                                const __nv_bfloat16* x, int size) {
  constexpr int kLoads = 4;       // of 16 bytes
  constexpr int kStep = 32 * 16;  // elements that a warp reads at once
  float sum = 0;
  for (int first = static_cast<int>(threadIdx.x) % 32 * 16; first < size; first += kLoads * kStep) {
    uint4 codes[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * kStep;
      codes[i] = at < size ? __ldcs(reinterpret_cast<const uint4*>(weights + at)) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * kStep;
      if (at >= size) break;
      const Floats<8> w[2] = {widened_e4m3(codes[i].x, codes[i].y),
                              widened_e4m3(codes[i].z, codes[i].w)};
      float terms = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Floats<8> factors = load<8>(x + at + 8 * half);
#pragma unroll
        for (int j = 0; j < 8; ++j) terms = fmaf(w[half].values[j], factors.values[j], terms);
      }
      sum = fmaf(terms, scales[at / 128], sum);
    }
  }
  return warp_sum(sum);
}

}  // namespace fovea::cuda
