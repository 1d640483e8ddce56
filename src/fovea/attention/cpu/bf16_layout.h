// What kernels on pairs of bf16 share: an element of 32 bits holds two neighbours of the summed
// dimension, channels of K and Q, keys of V and P. Included only by the files that compile for one
// instruction set each.
#pragma once

#include "fovea/attention/cpu/simd.h"
#include "fovea/attention/cpu/tile_attention.h"

namespace fovea::cpu {
namespace {

/// K is [key, padded head_dim] of bf16, V is 32 keys x head_dim in the kernel's own order.
struct Bf16Layout {
  static int64_t padded_head_dim(int64_t head_dim) { return round_up<32>(head_dim); }
  static int64_t key_group_bytes(int64_t head_dim) {
    return kGroupKeys * padded_head_dim(head_dim) * 2;
  }
  static int64_t value_group_bytes(int64_t head_dim) { return kGroupKeys * head_dim * 2; }

  static void copy_row(const std::byte* src, bool, int64_t head_dim, float* dst) {
    std::memcpy(dst, src, 2 * static_cast<size_t>(head_dim));
  }
};

/// Copies the keys, zero-padded. Rows are short: 32 bytes at a time beats a call to memcpy for
/// each.
inline void pack_keys(const PackJob& job, std::byte* keys) {
  const int64_t row_bytes = 2 * job.head_dim;
  const int64_t padded_bytes = 2 * Bf16Layout::padded_head_dim(job.head_dim);
  for (int t = 0; t < kGroupKeys; ++t, keys += padded_bytes) {
    const int64_t num_bytes = t < job.num_keys ? row_bytes : 0;
    for (int64_t i = 0; i < padded_bytes; i += 32) {
      const __m256i piece = i < num_bytes
                                ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(job.k[t] + i))
                                : _mm256_setzero_si256();
      _mm256_store_si256(reinterpret_cast<__m256i*>(keys + i), piece);
    }
  }
}

/// dst [16 pairs of keys, head_dim]: (V[2i][d], V[2i+1][d]), zeros where NaN or Inf. Returns
/// whether there were such.
inline bool interleave_values(const PackJob& job, uint32_t* dst) {
  constexpr uint16_t kZeros[256] = {};
  uint32_t any_non_finite = 0;
  for (int t = 0; t < kGroupKeys; t += 2, dst += job.head_dim) {
    const auto* even = t < job.num_keys ? reinterpret_cast<const uint16_t*>(job.v[t]) : kZeros;
    const auto* odd =
        t + 1 < job.num_keys ? reinterpret_cast<const uint16_t*>(job.v[t + 1]) : kZeros;
    for (int64_t d = 0; d < job.head_dim; ++d) {
      const uint32_t low = even[d], high = static_cast<uint32_t>(odd[d]) << 16;
      const uint32_t bad_low = (low & 0x7f80u) == 0x7f80u ? 0xffffu : 0u;
      const uint32_t bad_high = (high & 0x7f800000u) == 0x7f800000u ? 0xffff0000u : 0u;
      any_non_finite |= bad_low | bad_high;
      dst[d] = (low | high) & ~(bad_low | bad_high);
    }
  }
  return any_non_finite != 0;
}

/// Weights as pairs of bf16. The sums are of the weights before rounding: lse is held to 2e-5. Sums
/// of rounded weights (one VDPBF16PS for two vectors) and a polynomial of degree 3 that rounds by
/// an added constant would save a fifth of the instructions, but put 5e-5 into lse.
struct Bf16Weights {
  __m512 sum;
  __m512 top;  // the largest pairs, as signed integers of 16 bits

  Bf16Weights(__m512 sum_so_far, __m512 top_so_far) : sum(sum_so_far), top(top_so_far) {}

  /// One vector of dst = pairs of 2^even and 2^odd, rounded half up.
  void add(__m512 even, __m512 odd, float* dst) {
    even = Avx512Simd::exp2<4>(even);
    odd = Avx512Simd::exp2<4>(odd);
    sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32((__m512i)even, half), 16);
    const __m512i high = _mm512_add_epi32((__m512i)odd, half);
    const __m512i pair = Avx512Simd::join_halves(high, low);
    _mm512_store_si512(dst, pair);
    top = (__m512)_mm512_max_epi16((__m512i)top, pair);
  }

  /// Whether a weight, or a NaN, is above 2^limit_log2.
  static bool is_above(__m512 top, float limit_log2) {
    const auto limit = static_cast<int16_t>((127 + static_cast<int>(limit_log2)) << 7);
    return _mm512_cmpgt_epi16_mask((__m512i)top, _mm512_set1_epi16(limit)) != 0;
  }
};

}  // namespace
}  // namespace fovea::cpu
