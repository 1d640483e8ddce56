// Neighbouring elements of a row, in registers as f32: what a thread reads or writes at once.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "fovea/tensor/cuda/ptx/float8.h"
#include "fovea/tensor/float8.h"

namespace fovea::cuda {

template <int kCount>  // 4 or 8
struct Floats {
  float values[kCount];
};

/// Two floats rounded to nearest even; `low` in the lower half.
__device__ inline uint32_t rounded2(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline float lower(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float upper(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ inline Floats<8> widened(uint4 bits) {
  return {{lower(bits.x), upper(bits.x), lower(bits.y), upper(bits.y), lower(bits.z), upper(bits.z),
           lower(bits.w), upper(bits.w)}};
}

/// Four codes of E4M3 each.
__device__ inline Floats<8> widened_e4m3(uint32_t low, uint32_t high) {
  float halves[2][4];
  ptx::unpack_e4m3(low, halves[0]);
  ptx::unpack_e4m3(high, halves[1]);
  return {{halves[0][0], halves[0][1], halves[0][2], halves[0][3], halves[1][0], halves[1][1],
           halves[1][2], halves[1][3]}};
}

template <int kCount>
__device__ inline Floats<kCount> load(const float* from) {
  Floats<kCount> x;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 quad = *reinterpret_cast<const float4*>(from + i);
    x.values[i] = quad.x;
    x.values[i + 1] = quad.y;
    x.values[i + 2] = quad.z;
    x.values[i + 3] = quad.w;
  }
  return x;
}

template <int kCount>
__device__ inline Floats<kCount> load(const __nv_bfloat16* from) {
  if constexpr (kCount == 8) {
    return widened(*reinterpret_cast<const uint4*>(from));
  } else {
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    return {{lower(bits.x), upper(bits.x), lower(bits.y), upper(bits.y)}};
  }
}

template <int kCount>
__device__ inline Floats<kCount> load(const Float8E4M3* from) {
  static_assert(kCount == 8);
  const uint2 codes = *reinterpret_cast<const uint2*>(from);
  return widened_e4m3(codes.x, codes.y);
}

template <int kCount>
__device__ inline void store(const Floats<kCount>& x, float* to) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    *reinterpret_cast<float4*>(to + i) =
        make_float4(x.values[i], x.values[i + 1], x.values[i + 2], x.values[i + 3]);
  }
}

template <int kCount>
__device__ inline void store(const Floats<kCount>& x, __nv_bfloat16* to) {
  const uint2 low = {rounded2(x.values[0], x.values[1]), rounded2(x.values[2], x.values[3])};
  if constexpr (kCount == 8) {
    *reinterpret_cast<uint4*>(to) = make_uint4(low.x, low.y, rounded2(x.values[4], x.values[5]),
                                               rounded2(x.values[6], x.values[7]));
  } else {
    *reinterpret_cast<uint2*>(to) = low;
  }
}

template <int kCount>
__device__ inline float sum_of_squares(const Floats<kCount>& x) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum = fmaf(x.values[i], x.values[i], sum);
  return sum;
}

}  // namespace fovea::cuda
