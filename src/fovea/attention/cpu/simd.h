// Vectors of f32 through the compiler's vector extension, and what instruction sets do better.
// Included only by the files that compile for one instruction set each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fovea::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;

inline float bf16_to_f32(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

inline uint16_t f32_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

// Minimax polynomials of 2^x on [0, 1], relative error 2.6e-6 and 7.5e-8.
template <int kDegree>
struct Exp2Polynomial;
template <>
struct Exp2Polynomial<4> {
  static constexpr float kC[] = {1.0000026226f, 0.6930038333f, 0.2414427548f, 0.0520114601f,
                                 0.0135341672f};
};
template <>
struct Exp2Polynomial<5> {
  static constexpr float kC[] = {0.9999999404f, 0.6931530833f, 0.2401536107f,
                                 0.0558263175f, 0.0089893397f, 0.0018775767f};
};

template <int kDegree, typename Vec>
inline Vec exp2_polynomial(Vec fraction) {
  Vec value = fraction * 0.0f + Exp2Polynomial<kDegree>::kC[kDegree];
  for (int i = kDegree - 1; i >= 0; --i) value = value * fraction + Exp2Polynomial<kDegree>::kC[i];
  return value;
}

// g++ 12 loses the attribute where the size depends on a template argument: spelled out.
template <int kNumLanes>
struct VectorTypes;
template <>
struct VectorTypes<4> {
  typedef float Float __attribute__((vector_size(16)));
  typedef int32_t Int __attribute__((vector_size(16)));
};
template <>
struct VectorTypes<8> {
  typedef float Float __attribute__((vector_size(32)));
  typedef int32_t Int __attribute__((vector_size(32)));
};
template <>
struct VectorTypes<16> {
  typedef float Float __attribute__((vector_size(64)));
  typedef int32_t Int __attribute__((vector_size(64)));
};

template <int kNumLanes>
struct GenericSimd {
  static constexpr int kLanes = kNumLanes;
  static constexpr bool kTransposes = false;  // has transpose(), transpose_4(), store_elements()
  using Vec = typename VectorTypes<kNumLanes>::Float;
  using IntVec = typename VectorTypes<kNumLanes>::Int;

  static Vec load(const float* p) {
    Vec value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  static void store(float* p, Vec value) { std::memcpy(p, &value, sizeof(value)); }
  static Vec load_bf16(const uint16_t* p) {
    Vec value;
    for (int i = 0; i < kNumLanes; ++i) value[i] = bf16_to_f32(p[i]);
    return value;
  }
  /// Elements of 32 bits, each the bf16 of `low` and above it that of `high`.
  static Vec pair_bf16(Vec low, Vec high) {
    Vec pairs;
    for (int i = 0; i < kNumLanes; ++i) {
      const uint32_t pair = f32_to_bf16(low[i]) | static_cast<uint32_t>(f32_to_bf16(high[i])) << 16;
      std::memcpy(reinterpret_cast<char*>(&pairs) + 4 * i, &pair, sizeof(pair));
    }
    return pairs;
  }
  static Vec broadcast(float value) { return value - Vec{}; }
  static Vec max(Vec a, Vec b) { return a > b ? a : b; }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
  static Vec multiply_subtract(Vec a, Vec b, Vec c) { return a * b - c; }
  static bool any_greater(Vec a, Vec b) {
    const IntVec greater = a > b;
    int32_t any = 0;
    for (int i = 0; i < kNumLanes; ++i) any |= greater[i];
    return any != 0;
  }
  static float sum(Vec a) {
    float total = 0;
    for (int i = 0; i < kNumLanes; ++i) total += a[i];
    return total;
  }
  /// p[i] = the sum of a[i]'s lanes, for four vectors.
  static void store_sums(float* p, const Vec* a) {
    for (int i = 0; i < 4; ++i) {
      p[i] = 0;
      for (int lane = 0; lane < kNumLanes; ++lane) p[i] += a[i][lane];
    }
  }
  static Vec zero_where_minus_infinity(Vec a) { return a == broadcast(kMinusInfinity) ? Vec{} : a; }
  /// 2^x: 0 below -126, NaN for NaN; x must stay below 128.
  template <int kDegree>
  static Vec exp2(Vec x) {
    const Vec lowest = broadcast(-126.0f);
    const Vec clamped = x < lowest ? lowest : x;
    constexpr float kRound =
        12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
    const Vec shifted = (clamped - 0.5f) + kRound;
    const Vec fraction = clamped - (shifted - kRound);  // in [0, 1]
    const Vec mantissa = exp2_polynomial<kDegree>(fraction);
    IntVec bits, exponent;
    std::memcpy(&bits, &mantissa, sizeof(bits));
    std::memcpy(&exponent, &shifted, sizeof(exponent));
    bits += exponent << 23;
    Vec result;
    std::memcpy(&result, &bits, sizeof(result));
    result = x < lowest ? Vec{} : result;
    return x == x ? result : x;
  }
};

#if defined(__AVX2__)
struct Avx2Simd : GenericSimd<8> {
  /// What load_f8() divides by: f16 with the same bits as an E4M3 is that much smaller.
  static constexpr float kF8Unit = 256;
  static Vec load_i8(const std::byte* codes) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes))));
  }
  static Vec load_f8(const std::byte* codes) {
    const __m128i wide =
        _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    const __m128i bits = _mm_slli_epi16(wide, 7), largest = _mm_set1_epi16(0x3f80);
    const __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(bits, largest), largest);
    const __m128i half = _mm_andnot_si128(_mm_set1_epi16(0x4000), bits);
    return _mm256_cvtph_ps(_mm_or_si128(half, is_nan));
  }
  static Vec load_bf16(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return (__m256)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
  }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec multiply_subtract(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
  static float sum(Vec a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static void store_sums(float* p, const Vec* a) {
    const __m256 lanes = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1)));
  }
  static bool any_greater(Vec a, Vec b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
  }
};
#endif

#if defined(__AVX512F__)
struct Avx512Simd : GenericSimd<16> {
  static constexpr float kF8Unit = Avx2Simd::kF8Unit;
  static Vec load_i8(const std::byte* codes) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
  }
  static Vec load_f8(const std::byte* codes) {
    const __m256i wide =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i bits = _mm256_slli_epi16(wide, 7), largest = _mm256_set1_epi16(0x3f80);
    const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(bits, largest), largest);
    const __m256i half = _mm256_andnot_si256(_mm256_set1_epi16(0x4000), bits);
    return _mm512_cvtph_ps(_mm256_or_si256(half, is_nan));
  }
  static constexpr bool kTransposes = true;
  static Vec load_bf16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
  }
#if defined(__AVX512BF16__)
  static Vec pair_bf16(Vec low, Vec high) {
    const auto order =
        (__m512i)(__v32hi){0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (__m512)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
#else
  static Vec pair_bf16(Vec low, Vec high) {
    const __m512i low_bits = _mm512_srli_epi32(round_to_bf16(low), 16);
    const __m512i high_bits = round_to_bf16(high);
    return (__m512)join_halves(high_bits, low_bits);
  }
#endif
  /// high & 0xffff0000 | low
  static __m512i join_halves(__m512i high, __m512i low) {
    return _mm512_ternarylogic_epi32(high, low, _mm512_set1_epi32(-65536), 0xec);
  }
  // The upper halves are bf16, rounded to nearest even.
  static __m512i round_to_bf16(Vec a) {
    const __m512i bits = (__m512i)a;
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff));
    const __m512i quiet_nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_mask_mov_epi32(_mm512_add_epi32(bits, half),
                                 _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet_nan);
  }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec multiply_subtract(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }
  static float sum(Vec a) { return _mm512_reduce_add_ps(a); }
  static void store_sums(float* p, const Vec* a) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
    const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
    // Each 128-bit lane now holds the four sums of its part.
    const __m512 lanes = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
    const __m256 halves =
        _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
  static bool any_greater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  static Vec zero_where_minus_infinity(Vec a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, _mm512_set1_ps(kMinusInfinity), _CMP_NEQ_UQ),
                               a);
  }
  template <int kDegree>
  static Vec exp2(Vec x) {
    constexpr auto& c = Exp2Polynomial<kDegree>::kC;
    const __m512 fraction = _mm512_reduce_ps(x, 1);  // x - floor(x)
    __m512 value = _mm512_set1_ps(c[kDegree]);
    for (int i = kDegree - 1; i >= 0; --i) {
      value = _mm512_fmadd_ps(value, fraction, _mm512_set1_ps(c[i]));
    }
    return _mm512_scalef_ps(value, x);  // times 2^floor(x)
  }
  /// The first `count` elements of 32 bits.
  static void store_elements(std::byte* to, Vec value, int64_t count) {
    _mm512_mask_storeu_epi32(to, first_lanes(count), (__m512i)value);
  }
  static __mmask16 first_lanes(int64_t count) {
    return static_cast<__mmask16>(count >= 16 ? 0xffff : (1 << count) - 1);
  }
  /// 16 bytes of each of four rows, kStep apart.
  template <int kStep>
  static __m512i load_lanes(const std::byte* const* rows, int64_t offset) {
    const auto lane = [&](int l) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[kStep * l] + offset));
    };
    // Inserting from memory needs no shuffle.
    __m512i lanes = _mm512_castsi128_si512(lane(0));
    lanes = _mm512_inserti32x4(lanes, lane(1), 1);
    lanes = _mm512_inserti32x4(lanes, lane(2), 2);
    return _mm512_inserti32x4(lanes, lane(3), 3);
  }
  /// Four elements of 32 bits, `offset` bytes into each of 16 rows, become four vectors.
  static void transpose_4(const std::byte* const* rows, int64_t offset, float* to,
                          int64_t to_stride) {
    const __m512i a = load_lanes<4>(rows, offset), b = load_lanes<4>(rows + 1, offset);
    const __m512i c = load_lanes<4>(rows + 2, offset), d = load_lanes<4>(rows + 3, offset);
    const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(ab_low, cd_low));
    _mm512_storeu_si512(to + to_stride, _mm512_unpackhi_epi64(ab_low, cd_low));
    _mm512_storeu_si512(to + 2 * to_stride, _mm512_unpacklo_epi64(ab_high, cd_high));
    _mm512_storeu_si512(to + 3 * to_stride, _mm512_unpackhi_epi64(ab_high, cd_high));
  }
  /// Element j of vector i becomes element i of vector j.
  static void transpose(Vec (&vectors)[16]) {
    __m512i row[16], next[16];
    for (int i = 0; i < 16; ++i) row[i] = (__m512i)vectors[i];
    for (int i = 0; i < 16; i += 2) {
      next[i] = _mm512_unpacklo_epi32(row[i], row[i + 1]);
      next[i + 1] = _mm512_unpackhi_epi32(row[i], row[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      row[i] = _mm512_unpacklo_epi64(next[i], next[i + 2]);
      row[i + 1] = _mm512_unpackhi_epi64(next[i], next[i + 2]);
      row[i + 2] = _mm512_unpacklo_epi64(next[i + 1], next[i + 3]);
      row[i + 3] = _mm512_unpackhi_epi64(next[i + 1], next[i + 3]);
    }
    // row[4 g + j] holds, in its 128-bit lane l, column 4 l + j of source rows 4 g ... 4 g + 3.
    for (int j = 0; j < 4; ++j) {
      const __m512i a = _mm512_shuffle_i32x4(row[j], row[4 + j], 0x88);
      const __m512i b = _mm512_shuffle_i32x4(row[8 + j], row[12 + j], 0x88);
      const __m512i c = _mm512_shuffle_i32x4(row[j], row[4 + j], 0xdd);
      const __m512i d = _mm512_shuffle_i32x4(row[8 + j], row[12 + j], 0xdd);
      vectors[j] = (__m512)_mm512_shuffle_i32x4(a, b, 0x88);
      vectors[8 + j] = (__m512)_mm512_shuffle_i32x4(a, b, 0xdd);
      vectors[4 + j] = (__m512)_mm512_shuffle_i32x4(c, d, 0x88);
      vectors[12 + j] = (__m512)_mm512_shuffle_i32x4(c, d, 0xdd);
    }
  }
};

/// Transposes 16 x 16 elements of 32 bits.
inline void transpose_16x16(const float* src, int64_t src_stride, float* dst, int64_t dst_stride) {
  Avx512Simd::Vec row[16];
  for (int i = 0; i < 16; ++i) row[i] = Avx512Simd::load(src + i * src_stride);
  Avx512Simd::transpose(row);
  for (int i = 0; i < 16; ++i) Avx512Simd::store(dst + i * dst_stride, row[i]);
}
#endif

/// dst [cols, rows] = src [rows, cols] transposed, elements of 32 bits.
inline void transpose_elements(const float* src, int64_t src_stride, float* dst, int64_t dst_stride,
                               int64_t rows, int64_t cols) {
#if defined(__AVX512F__)
  if (rows % 16 == 0 && cols % 16 == 0) {
    for (int64_t i = 0; i < rows; i += 16) {
      for (int64_t j = 0; j < cols; j += 16) {
        transpose_16x16(src + i * src_stride + j, src_stride, dst + j * dst_stride + i, dst_stride);
      }
    }
    return;
  }
#endif
  // As bits: a float register may quieten NaN patterns, and the elements may be pairs of bf16.
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      std::memcpy(dst + j * dst_stride + i, src + i * src_stride + j, sizeof(float));
    }
  }
}

}  // namespace
}  // namespace fovea::cpu
