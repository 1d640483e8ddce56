// Sixteen f32 lanes for every instruction set: GCC's vector type, which the compiler splits where
// registers are narrower. Included by files that are compiled once per instruction set: everything
// is in an unnamed namespace, because the same names compiled with different instruction sets must
// not meet in the linker.
#pragma once

#include <cstdint>
#include <cstring>

#include "fovea/tensor/bfloat16.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace fovea {
namespace {

constexpr int64_t kLanes = 16;
typedef float F32x16 __attribute__((vector_size(64)));
typedef int32_t I32x16 __attribute__((vector_size(64)));
typedef uint32_t U32x16 __attribute__((vector_size(64)));
typedef uint16_t U16x16 __attribute__((vector_size(32)));

template <typename To, typename From>
[[gnu::always_inline]] inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

[[gnu::always_inline]] inline F32x16 widen(const float* from) {
  F32x16 lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

[[gnu::always_inline]] inline F32x16 widen(const BFloat16* from) {
  U16x16 half;
  std::memcpy(&half, from, sizeof(half));
  return bits_as<F32x16>(__builtin_convertvector(half, U32x16) << 16);
}

// The first `count` lanes from memory, zeros in the others.
template <typename T>
[[gnu::always_inline]] inline F32x16 load(const T* from, int64_t count = kLanes) {
  if (count >= kLanes) return widen(from);
  T part[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) part[i] = from[i];
  return widen(part);
}

[[gnu::always_inline]] inline void store(float* to, F32x16 lanes) {
  std::memcpy(to, &lanes, sizeof(lanes));
}

[[gnu::always_inline]] inline float sum_lanes(F32x16 v) {
  v += __builtin_shuffle(v, I32x16{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
  v += __builtin_shuffle(v, I32x16{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
  v += __builtin_shuffle(v, I32x16{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
  return v[0] + v[1];
}

[[gnu::always_inline]] inline F32x16 larger(F32x16 a, F32x16 b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

[[gnu::always_inline]] inline bool any(I32x16 mask) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask(bits_as<__m512i>(mask)) != 0;
#else
  int32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= mask[i];
  return bits != 0;
#endif
}

// 2^x for finite x, to about 2e-7 relative; 0 far below, at least 2^127 from there up. The
// polynomial is the minimax one of degree 5 for 2^f on [-1/2, 1/2].
[[gnu::always_inline]] inline F32x16 exp2_lanes(F32x16 x) {
#if defined(__AVX512F__)
  const F32x16 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  x = larger(x, F32x16{} - 126.0f);
  x = x < 127.0f ? x : F32x16{} + 127.0f;
  const float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction bits
  const F32x16 shifted = x + kRound;
  const F32x16 n = shifted - kRound;
#endif
  const F32x16 f = x - n;
  F32x16 p = f * 1.3333558e-3f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, n);
#else
  return bits_as<F32x16>(bits_as<I32x16>(p) + (bits_as<I32x16>(shifted) << 23));
#endif
}

// log2(x) for normal x > 0, to about 2e-7: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and
// log m = 2 atanh((m - 1) / (m + 1)).
[[gnu::always_inline]] inline F32x16 log2_lanes(F32x16 x) {
  const int32_t kHalfRoot = 0x3f3504f3;  // bits of sqrt(1/2)
  const I32x16 exponent = (bits_as<I32x16>(x) - kHalfRoot) >> 23;
  const F32x16 m = bits_as<F32x16>(bits_as<I32x16>(x) - (exponent << 23));
  const F32x16 t = (m - 1.0f) / (m + 1.0f);
  const F32x16 t2 = t * t;
  F32x16 p = t2 * (1.0f / 9) + 1.0f / 7;
  p = p * t2 + 1.0f / 5;
  p = p * t2 + 1.0f / 3;
  p = p * t2 + 1.0f;
  return __builtin_convertvector(exponent, F32x16) + t * p * 2.8853900818f;  // 2 / ln 2
}

}  // namespace
}  // namespace fovea
