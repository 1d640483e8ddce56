// Single instructions of arithmetic, register budgets, and small shared-memory accesses.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea::ptx {

/// 2^x; 16 a clock and SM, the packed forms are no faster.
FOVEA_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// To within 2^-11 of the result.
FOVEA_DEVICE float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FOVEA_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats rounded to nearest even; `low` in the lower half.
template <typename Element>
FOVEA_DEVICE uint32_t pack2(float low, float high);
template <>
FOVEA_DEVICE uint32_t pack2<__nv_bfloat16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(packed) : "f"(low), "f"(high));
  return packed;
}
template <>
FOVEA_DEVICE uint32_t pack2<__half>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(packed) : "f"(low), "f"(high));
  return packed;
}

/// Four floats as E4M3, rounded to nearest even and saturated; `a` in the lowest byte.
FOVEA_DEVICE uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t packed;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

/// Two 16-bit elements as floats.
template <typename Element>
FOVEA_DEVICE float2 unpack2(uint32_t packed);
template <>
FOVEA_DEVICE float2 unpack2<__nv_bfloat16>(uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
}
template <>
FOVEA_DEVICE float2 unpack2<__half>(uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

/// a * b + c of two 16-bit elements each.
template <typename Element>
FOVEA_DEVICE uint32_t multiply_add2(uint32_t a, uint32_t b, uint32_t c);
template <>
FOVEA_DEVICE uint32_t multiply_add2<__nv_bfloat16>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
template <>
FOVEA_DEVICE uint32_t multiply_add2<__half>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}

FOVEA_DEVICE uint32_t load_shared(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
FOVEA_DEVICE uint4 load_shared16(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
/// Four matrices of 8 x 8 elements of 16 bits. Lane l gives the place of row l % 8 of matrix l / 8,
/// and has of row l / 4 of each the elements 2 (l % 4) and the next.
FOVEA_DEVICE void store_matrices(uint32_t row_address, const uint32_t (&words)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}
/// Adds to four floats of global memory, aligned to 16 bytes, without waiting for them.
FOVEA_DEVICE void add_global(float* address, const float4& x) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(x.x),
               "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}

FOVEA_DEVICE void store_shared8(uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
FOVEA_DEVICE void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
FOVEA_DEVICE void store_shared(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
FOVEA_DEVICE void store_shared_zero16(uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {0, 0, 0, 0};" ::"r"(address) : "memory");
}

/// `value`, which the whole warp has, in a form of which the compiler knows that: branches on it
/// and addresses made of it take no registers of a thread.
FOVEA_DEVICE int uniform(int value) {
  return static_cast<int>(__reduce_or_sync(~0u, static_cast<uint32_t>(value)));
}

/// Over the 4 threads that share a row of a wgmma accumulator.
FOVEA_DEVICE float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
  return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
FOVEA_DEVICE float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

/// This thread's number in its warp and in its CTA, and the grid's size, asked anew each time: what
/// is computed from it in a loop stays there and takes no registers outside.
FOVEA_DEVICE int lane_number() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
FOVEA_DEVICE int thread_number() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
FOVEA_DEVICE int num_ctas() {
  int ctas;
  asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(ctas));
  return ctas;
}

/// Gives up, or claims, registers of a warpgroup. The kernel needs __launch_bounds__(threads, 1).
template <int kRegisters>
FOVEA_DEVICE void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
FOVEA_DEVICE void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace fovea::ptx
