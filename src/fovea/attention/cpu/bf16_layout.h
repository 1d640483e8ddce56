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

/// Rounds a and b to bf16 and stores them as pairs (a[i], b[i]).
inline void store_pairs(float* dst, __m512 a, __m512 b) {
  const __m512i packed = (__m512i)_mm512_cvtne2ps_pbh(b, a);  // a's 16, then b's 16
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_store_si512(dst, _mm512_permutexvar_epi16(order, packed));
}

}  // namespace
}  // namespace fovea::cpu
