// Decode of codes, f8e4m3 or i8, with AVX512-BF16, VNNI and VBMI: codes are multiplied as they come
// out of their pages, or a few instructions later. Included only by the file that is compiled for
// these.
//
// The codes of 16 keys are turned, so that an element of 32 bits is a quad of channels of one key:
// logits need no sums over lanes, and all queries share the turned codes. V is turned in its pages
// already; there channels are multiplied by the weights of 64 keys at a time.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "fovea/attention/cpu/code_widener.h"
#include "fovea/attention/cpu/decode_split.h"
#include "fovea/attention/cpu/simd.h"
#include "fovea/attention/cpu/tile_kernel.h"

namespace fovea::cpu {
namespace {

constexpr int64_t kCodeVector = 64;    // codes in a vector
constexpr int64_t kQuadBytes = 8;      // of what a query's four channels are as operands
constexpr int64_t kUnitOperand = 128;  // bytes of a unit's weights as operands

/// Sixteen floats in the order of f8_value_slot().
inline __m512 in_slot_order(__m512 values) {
  const __m512i keys = _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  return _mm512_permutexvar_ps(keys, values);
}

/// i8 as it is: queries are integers of 16 bits in two signed bytes, weights of 15 bits.
class I8Codes {
 public:
  using Sum = __m512i;
  /// What a query's sums start with: K is multiplied as code + 128.
  struct Query {
    int32_t first[2];
    float unit;  // what a sum counts for
  };

  /// A quad is four upper and four lower bytes.
  static Query load_query(const uint16_t* q, int64_t head_dim, std::byte* quads) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 any_nan = 0;
    for (int64_t c = 0; c < head_dim; c += 16) {
      const __m512 magnitude = _mm512_abs_ps(Avx512Simd::load_bf16(q + c));
      most = _mm512_max_ps(most, magnitude);
      any_nan |= _mm512_cmp_ps_mask(magnitude, magnitude, _CMP_UNORD_Q);
    }
    const float largest = _mm512_reduce_max_ps(most);
    const bool is_finite = any_nan == 0 && largest <= std::numeric_limits<float>::max();
    Query query = {{0, 0},
                   is_finite ? largest / kLargestQuery : std::numeric_limits<float>::quiet_NaN()};
    if (!(query.unit > 0)) return query;
    const __m512 unit = _mm512_set1_ps(query.unit);
    for (int64_t c = 0; c < head_dim; c += 16) {
      const __m512i whole = _mm512_cvtps_epi32(Avx512Simd::load_bf16(q + c) / unit);
      const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
      const __m512i lower = _mm512_sub_epi32(whole, _mm512_slli_epi32(upper, 8));
      query.first[0] -= 128 * _mm512_reduce_add_epi32(upper);
      query.first[1] -= 128 * _mm512_reduce_add_epi32(lower);
      const __m128i upper_bytes = _mm512_cvtepi32_epi8(upper);
      const __m128i lower_bytes = _mm512_cvtepi32_epi8(lower);
      auto* const to = reinterpret_cast<__m128i*>(quads + c / 4 * kQuadBytes);
      _mm_store_si128(to, _mm_unpacklo_epi32(upper_bytes, lower_bytes));
      _mm_store_si128(to + 1, _mm_unpackhi_epi32(upper_bytes, lower_bytes));
    }
    return query;
  }
  static Sum first_sum(const Query& query, int i) { return _mm512_set1_epi32(query.first[i]); }

  /// What all queries share of a vector of quads.
  struct Keys {
    __m512i codes;
  };
  Keys load_keys(__m512i quads) const {
    return {_mm512_xor_si512(quads, _mm512_set1_epi8(static_cast<char>(0x80)))};
  }
  static void add_keys(const Keys& keys, const std::byte* quad, Sum (&sum)[2]) {
    const __m128i upper = _mm_loadu_si32(quad), lower = _mm_loadu_si32(quad + 4);
    sum[0] = _mm512_dpbusd_epi32(sum[0], keys.codes, _mm512_broadcastd_epi32(upper));
    sum[1] = _mm512_dpbusd_epi32(sum[1], keys.codes, _mm512_broadcastd_epi32(lower));
  }
  static __m512 logits(const Sum (&sum)[2], float unit) {
    const __m512 whole = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[0]), _mm512_set1_ps(256),
                                         _mm512_cvtepi32_ps(sum[1]));
    return whole * unit;
  }

  /// What weights are multiplied by, given the largest scale of the values that are read.
  static float weight_factor(float largest_scale) { return kLargestWeight / largest_scale; }
  /// Sixteen products of weight, factor and scale in slot order, as number `i` of four.
  static void store_weights(__m512 weights, int i, std::byte* operand) {
    const __m512i whole = _mm512_cvtps_epi32(weights);
    _mm256_store_si256(reinterpret_cast<__m256i*>(operand) + i, _mm512_cvtepi32_epi16(whole));
  }
  using Values = WideCodes;
  Values load_values(const std::byte* first, const std::byte* second) const {
    return {widened(first), widened(second)};
  }
  static Sum add_values(const Values& values, const std::byte* operand, Sum sum) {
    sum = _mm512_dpwssd_epi32(sum, values.first, _mm512_load_si512(operand));
    return _mm512_dpwssd_epi32(sum, values.second, _mm512_load_si512(operand + 64));
  }
  static __m512 to_float(Sum sum) { return _mm512_cvtepi32_ps(sum); }

 private:
  static constexpr float kLargestQuery = 127 * 256 + 127;
  static constexpr float kLargestWeight = 32767;

  static __m512i widened(const std::byte* codes) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  }
};

/// f8e4m3 becomes bf16, which holds it exactly; queries and weights are bf16.
class F8Codes {
 public:
  using Sum = __m512;
  struct Query {
    float unit;
  };

  static Query load_query(const uint16_t* q, int64_t head_dim, std::byte* quads) {
    std::memcpy(quads, q, 2 * static_cast<size_t>(head_dim));
    return {1};
  }
  static Sum first_sum(const Query&, int) { return _mm512_setzero_ps(); }

  /// Two keys of each four, and the other two: two pairs of channels of each.
  using Keys = WideCodes;
  Keys load_keys(__m512i quads) const { return widen_(quads); }
  static void add_keys(const Keys& keys, const std::byte* quad, Sum (&sum)[2]) {
    const auto pairs = (__m512bh)_mm512_broadcastq_epi64(_mm_loadu_si64(quad));
    sum[0] = _mm512_dpbf16_ps(sum[0], (__m512bh)keys.first, pairs);
    sum[1] = _mm512_dpbf16_ps(sum[1], (__m512bh)keys.second, pairs);
  }
  static __m512 logits(const Sum (&sum)[2], float) {
    return _mm512_shuffle_ps(sum[0], sum[1], 0x88) + _mm512_shuffle_ps(sum[0], sum[1], 0xdd);
  }

  static float weight_factor(float) { return 1; }
  /// Widened codes come as the first eight of each 16, then the others.
  static void store_weights(__m512 weights, int i, std::byte* operand) {
    const auto rounded = (__m256i)_mm512_cvtneps_pbh(weights);
    auto* const to = reinterpret_cast<__m128i*>(operand) + i;
    _mm_store_si128(to, _mm256_castsi256_si128(rounded));
    _mm_store_si128(to + 4, _mm256_extracti128_si256(rounded, 1));
  }
  using Values = WideCodes;
  Values load_values(const std::byte* first, const std::byte* second) const {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second));
    return widen_(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
  }
  static Sum add_values(const Values& values, const std::byte* operand, Sum sum) {
    sum = _mm512_dpbf16_ps(sum, (__m512bh)values.first, (__m512bh)_mm512_load_si512(operand));
    return _mm512_dpbf16_ps(sum, (__m512bh)values.second,
                            (__m512bh)_mm512_load_si512(operand + 64));
  }
  static __m512 to_float(Sum sum) { return sum; }

 private:
  const CodeWidener widen_;
};

template <class Codes>
class DecodeCodes {
  using Sum = typename Codes::Sum;
  static constexpr int64_t kMaxHeadDim = 256;
  static constexpr int kChannels = 4;  // whose values are taken together
  static_assert(kUnitKeys == kCodeVector);

 public:
  explicit DecodeCodes(const DecodeJob& job) : job_(job) {}

  void weigh() {
    load_queries();
    const int num_groups = static_cast<int>((job_.num_keys + kGroupKeys - 1) / kGroupKeys);
    for (int g = 0; g < num_groups; ++g) {
      for (int half = 0; half < 2; ++half) {
        if (g + 2 < num_groups) {
          prefetch_keys(job_.codes[g + 2], half);
        } else {
          prefetch_values(num_groups, 2 * (g + 2 - num_groups) + half);
        }
        for (int r = 0; r < job_.num_rows; r += 4) {
          with_up_to_4(job_.num_rows - r,
                       [&]<int kNumRows>() { add_logits<kNumRows>(r, g, half); });
        }
      }
    }
    for (int r = 0; r < job_.num_rows; ++r) weigh_logits<Avx512Simd>(job_, r);
  }

  void add_values() {
    int num_units = 0;
    float largest_scale = 0;
    for (int32_t u = 0; u * kUnitKeys < job_.num_keys; ++u) {
      if ((job_.units >> u & 1u) == 0) continue;
      units_[num_units++] = groups_of(u);
      for (int i = 0; i < 2; ++i) {
        largest_scale = larger_or_nan(largest_scale, groups_of(u)[i].v_scale);
      }
    }
    const float factor = Codes::weight_factor(largest_scale);
    for (int i = 0; i < num_units; ++i) {
      for (int r = 0; r < job_.num_rows; ++r) load_weights(r, i, factor);
    }
    for (int64_t d = 0; d < job_.head_dim; d += kChannels) {
      for (int r = 0; r < job_.num_rows; r += 4) {
        with_up_to_4(job_.num_rows - r,
                     [&]<int kNumRows>() { add_channels<kNumRows>(r, d, num_units, 1 / factor); });
      }
    }
  }

 private:
  static float larger_or_nan(float a, float b) { return std::isnan(a) || b <= a ? a : b; }
  const CodeGroup* groups_of(int32_t unit) const {
    return job_.codes + unit * (kUnitKeys / kGroupKeys);
  }
  std::byte* quads(int r) { return operands_ + r * kMaxHeadDim / 4 * kQuadBytes; }
  std::byte* weights(int r, int i) { return operands_ + (r * kSplitUnits + i) * kUnitOperand; }

  void load_queries() {
    const int64_t end = (job_.head_dim + kCodeVector - 1) / kCodeVector * kCodeVector;
    for (int r = 0; r < job_.num_rows; ++r) {
      std::memset(quads(r), 0, static_cast<size_t>(end / 4 * kQuadBytes));
      queries_[r] =
          Codes::load_query(reinterpret_cast<const uint16_t*>(job_.q[r]), job_.head_dim, quads(r));
    }
  }

  void prefetch_keys(const CodeGroup& group, int half) const {
    const std::byte* keys = group.k + 16 * half * group.k_stride;
    for (int t = 0; t < 16; ++t, keys += group.k_stride) {
      for (int64_t c = 0; c < job_.head_dim; c += kCodeVector) __builtin_prefetch(keys + c);
    }
  }

  // The `part` of the channels that are read first.
  void prefetch_values(int num_groups, int part) const {
    for (int g = 0; g < num_groups; g += kUnitKeys / kGroupKeys) {
      const CodeGroup& group = job_.codes[g];
      for (int c = 0; c < kChannels; ++c) {
        __builtin_prefetch(group.v + (kChannels * part + c) * group.v_stride);
      }
    }
  }

  // Of 16 keys and kNumRows queries.
  template <int kNumRows>
  void add_logits(int first_row, int g, int half) {
    const Codes codes;  // not a member: its tables stay in registers
    const CodeGroup& group = job_.codes[g];
    Sum sum[kNumRows][2];
    for (int r = 0; r < kNumRows; ++r) {
      for (int i = 0; i < 2; ++i) sum[r][i] = Codes::first_sum(queries_[first_row + r], i);
    }
    for (int64_t c = 0; c < job_.head_dim; c += kCodeVector) {
      const int64_t left = job_.head_dim - c;
      const __mmask64 exists = left >= kCodeVector ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
      const std::byte* from = group.k + 16 * half * group.k_stride + c;
      Avx512Simd::Vec turned[16];
      for (int t = 0; t < 16; ++t, from += group.k_stride) {
        turned[t] = (__m512)_mm512_maskz_loadu_epi8(exists, from);
      }
      Avx512Simd::transpose(turned);
      const std::byte* const row = quads(first_row) + c / 4 * kQuadBytes;
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) {
        const typename Codes::Keys keys = codes.load_keys((__m512i)turned[j]);
        for (int r = 0; r < kNumRows; ++r) {
          Codes::add_keys(keys, row + (r * kMaxHeadDim / 4 + j) * kQuadBytes, sum[r]);
        }
      }
    }
    for (int r = 0; r < kNumRows; ++r) {
      Avx512Simd::store(job_.weights + (first_row + r) * kSplitKeys + g * kGroupKeys + 16 * half,
                        Codes::logits(sum[r], queries_[first_row + r].unit));
    }
  }

  // Of the i-th unit that is read, times the scale of its values.
  void load_weights(int r, int i, float factor) {
    const CodeGroup* const groups = units_[i];
    const float* const from = job_.weights + r * kSplitKeys + (groups - job_.codes) * kGroupKeys;
    for (int part = 0; part < 4; ++part) {
      const __m512 products =
          Avx512Simd::load(from + 16 * part) * (groups[part / 2].v_scale * factor);
      Codes::store_weights(in_slot_order(products), part, weights(r, i));
    }
  }

  // Channels [d, d + kChannels) of kNumRows rows.
  template <int kNumRows>
  void add_channels(int first_row, int64_t d, int num_units, float unit) {
    const Codes codes;
    Sum sum[kNumRows][kChannels] = {};
    for (int i = 0; i < num_units; ++i) {
      const CodeGroup &first = units_[i][0], &second = units_[i][1];
      typename Codes::Values values[kChannels];
      for (int c = 0; c < kChannels; ++c) {
        const std::byte* const from = first.v + (d + c) * first.v_stride;
        __builtin_prefetch(from + 2 * kChannels * first.v_stride);
        values[c] = codes.load_values(from, second.v + (d + c) * second.v_stride);
      }
      for (int r = 0; r < kNumRows; ++r) {
        const std::byte* const operand = weights(first_row + r, i);
        for (int c = 0; c < kChannels; ++c) {
          sum[r][c] = Codes::add_values(values[c], operand, sum[r][c]);
        }
      }
    }
    for (int r = 0; r < kNumRows; ++r) {
      Avx512Simd::Vec sums[kChannels];
      for (int c = 0; c < kChannels; ++c) sums[c] = Codes::to_float(sum[r][c]) * unit;
      Avx512Simd::store_sums(job_.out + (first_row + r) * job_.head_dim + d, sums);
    }
  }

  const DecodeJob& job_;
  typename Codes::Query queries_[kMaxDecodeRows];
  const CodeGroup* units_[kSplitUnits];  // those that are read
  // Of queries, then of weights.
  alignas(64) std::byte operands_[kMaxDecodeRows * kSplitUnits * kUnitOperand];
  static_assert(kSplitUnits * kUnitOperand >= kMaxHeadDim / 4 * kQuadBytes);
};

}  // namespace
}  // namespace fovea::cpu
