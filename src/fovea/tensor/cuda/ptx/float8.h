// E4M3 to wider floats.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea::ptx {

/// Four codes as pairs of f16, exactly; the first lies in the lowest bits.
FOVEA_DEVICE void widen_e4m3(uint32_t codes, uint32_t& low, uint32_t& high) {
  asm("{\n"
      ".reg .b16 first, second;\n"
      "mov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first;\n"
      "cvt.rn.f16x2.e4m3x2 %1, second;\n"
      "}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}

/// The same as floats.
FOVEA_DEVICE void unpack_e4m3(uint32_t codes, float (&values)[4]) {
  __half2 low, high;
  widen_e4m3(codes, *reinterpret_cast<uint32_t*>(&low), *reinterpret_cast<uint32_t*>(&high));
  const float2 pairs[2] = {__half22float2(low), __half22float2(high)};
  values[0] = pairs[0].x;
  values[1] = pairs[0].y;
  values[2] = pairs[1].x;
  values[3] = pairs[1].y;
}

}  // namespace fovea::ptx
