// Decode of i8 with AMX: codes go from their pages into tiles as they are. Included only by the
// file that is compiled for it.
//
// Queries and weights are integers of 16 bits in two bytes, the upper ones in columns 0 ... 7 of
// the right operand, the lower ones in columns 8 ... 15. So eight rows are worked on together.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "fovea/attention/cpu/amx_tiles.h"
#include "fovea/attention/cpu/decode_split.h"
#include "fovea/attention/cpu/simd.h"
#include "fovea/attention/cpu/tile_kernel.h"

namespace fovea::cpu {
namespace {

class DecodeI8 {
  static constexpr int64_t kTileBytes = 1024;  // 16 rows of 64
  static constexpr int64_t kVectorCodes = 64;
  static constexpr int64_t kMaxHeadDim = 256;
  static constexpr int kRows = 8;
  static_assert(kUnitKeys == kVectorCodes);

 public:
  explicit DecodeI8(const DecodeJob& job) : job_(job) {}

  void weigh() {
    const auto num_groups = static_cast<int>((job_.num_keys + kGroupKeys - 1) / kGroupKeys);
    for (first_row_ = 0; first_row_ < job_.num_rows; first_row_ += kRows) {
      load_queries();
      for (int g = 0; g < num_groups; ++g) {
        multiply_keys(g, g + 2 < num_groups ? g + 2 : g);
        // A group later: a tile that was just stored is slow to read.
        if (g > 0) store_logits(g - 1);
      }
      store_logits(num_groups - 1);
    }
    for (int r = 0; r < job_.num_rows; ++r) weigh_logits<Avx512Simd>(job_, r);
  }

  void add_values() {
    int32_t units[kSplitUnits];
    int num_units = 0;
    float largest_scale = 0;
    for (int32_t u = 0; u * kUnitKeys < job_.num_keys; ++u) {
      if ((job_.units >> u & 1u) == 0) continue;
      units[num_units++] = u;
      const float scale = group_of(u).v_scale;
      largest_scale = larger_or_nan(largest_scale, scale);
    }
    for (first_row_ = 0; first_row_ < job_.num_rows; first_row_ += kRows) {
      for (int i = 0; i < num_units; ++i) {
        turn_weights(units[i], kLargestWeight / largest_scale, right_ + kTileBytes * i);
      }
      const float number = largest_scale / kLargestWeight;  // of a product's unit
      for (int64_t d = 0; d < job_.head_dim; d += 64) {
        with_up_to_4((job_.head_dim - d) / 16,
                     [&]<int kTiles>() { multiply_values<kTiles>(units, num_units, d, number); });
      }
    }
  }

 private:
  static constexpr float kLargestQuery = 127 * 256 + 127;  // in two signed bytes
  static constexpr float kLargestWeight = 65535;           // in two unsigned ones

  static float larger_or_nan(float a, float b) { return std::isnan(a) || b <= a ? a : b; }

  int64_t num_vectors() const { return (job_.head_dim + kVectorCodes - 1) / kVectorCodes; }
  int num_rows() const {
    return job_.num_rows - first_row_ < kRows ? job_.num_rows - first_row_ : kRows;
  }
  const CodeGroup& group_of(int32_t unit) const {
    return job_.codes[unit * (kUnitKeys / kGroupKeys)];
  }

  // Q^T in quads of channels, a tile for each 64 channels.
  void load_queries() {
    std::memset(right_, 0, static_cast<size_t>(kTileBytes * num_vectors()));
    for (int r = 0; r < num_rows(); ++r) {
      const auto* const q = reinterpret_cast<const uint16_t*>(job_.q[first_row_ + r]);
      __m512 most = _mm512_setzero_ps();
      __mmask16 any_nan = 0;
      for (int64_t c = 0; c < job_.head_dim; c += 16) {
        const __m512 magnitude = _mm512_abs_ps(Avx512Simd::load_bf16(q + c));
        most = _mm512_max_ps(most, magnitude);
        any_nan |= _mm512_cmp_ps_mask(magnitude, magnitude, _CMP_UNORD_Q);
      }
      const float largest = _mm512_reduce_max_ps(most);
      q_unit_[r] = any_nan == 0 && largest <= std::numeric_limits<float>::max()
                       ? largest / kLargestQuery
                       : std::numeric_limits<float>::quiet_NaN();
      if (!(q_unit_[r] > 0)) continue;
      const __m512 unit = _mm512_set1_ps(q_unit_[r]);
      for (int64_t c = 0; c < job_.head_dim; c += 16) {
        const __m512i whole = _mm512_cvtps_epi32(Avx512Simd::load_bf16(q + c) / unit);
        const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
        alignas(16) std::byte upper_bytes[16], lower_bytes[16];
        _mm_store_si128(reinterpret_cast<__m128i*>(upper_bytes), _mm512_cvtepi32_epi8(upper));
        _mm_store_si128(reinterpret_cast<__m128i*>(lower_bytes), _mm512_cvtepi32_epi8(whole));
        std::byte* const quads =
            right_ + c / kVectorCodes * kTileBytes + c % kVectorCodes / 4 * 64 + 4 * r;
        for (int64_t i = 0; i < 4; ++i) {
          std::memcpy(quads + 64 * i, upper_bytes + 4 * i, 4);
          std::memcpy(quads + 64 * i + 4 * kRows, lower_bytes + 4 * i, 4);
        }
      }
    }
  }

  void multiply_keys(int g, int group_ahead) {
    const CodeGroup& group = job_.codes[g];
    const CodeGroup& ahead = job_.codes[group_ahead];
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t i = 0; i < num_vectors(); ++i) {
      const int64_t c = i * kVectorCodes;
      const std::byte* codes = group.k + c;
      int64_t stride = group.k_stride;
      for (int64_t t = 0; t < kGroupKeys; ++t) {
        __builtin_prefetch(ahead.k + t * ahead.k_stride + c);
      }
      if (job_.head_dim - c < kVectorCodes) {
        copy_channels(codes, stride, job_.head_dim - c);
        codes = left_;
        stride = kVectorCodes;
      }
      _tile_loadd(6, right_ + kTileBytes * i, 64);
      _tile_loadd(4, codes, static_cast<size_t>(stride));
      _tile_dpbssd(0, 4, 6);
      _tile_loadd(5, codes + 16 * stride, static_cast<size_t>(stride));
      _tile_dpbssd(1, 5, 6);
    }
    int32_t* const s = products_[g % 2];
    _tile_stored(0, s, 64);
    _tile_stored(1, s + 256, 64);
    memory_barrier(s);
  }

  // The last channels of a group's keys, zeros behind them: a tile reads 64.
  void copy_channels(const std::byte* codes, int64_t stride, int64_t num) {
    const __mmask64 exists = (uint64_t{1} << num) - 1;
    for (int64_t t = 0; t < kGroupKeys; ++t) {
      _mm512_store_si512(left_ + t * kVectorCodes,
                         _mm512_maskz_loadu_epi8(exists, codes + t * stride));
    }
    memory_barrier(left_);
  }

  // S^T of a group becomes rows of logits, four at a time.
  void store_logits(int g) {
    for (int half = 0; half < 2; ++half) {
      const std::byte* keys[16];
      for (int t = 0; t < 16; ++t) {
        keys[t] = reinterpret_cast<const std::byte*>(products_[g % 2] + 256 * half + 16 * t);
      }
      for (int r = 0; r < num_rows(); r += 4) {
        alignas(64) float upper[64], lower[64];  // integers
        Avx512Simd::transpose_4(keys, 4 * r, upper, 16);
        Avx512Simd::transpose_4(keys, 4 * (r + kRows), lower, 16);
        for (int i = 0; i < 4 && r + i < num_rows(); ++i) {
          const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(upper + 16 * i)),
                                             _mm512_set1_ps(256),
                                             _mm512_cvtepi32_ps(_mm512_load_si512(lower + 16 * i)));
          Avx512Simd::store(
              job_.weights + (first_row_ + r + i) * kSplitKeys + g * kGroupKeys + 16 * half,
              sum * q_unit_[r + i]);
        }
      }
    }
  }

  // A unit's weights, times what `scale` makes of its V's, as P^T in quads of keys. Of each 16 keys
  // bytes are in the order of f8_value_slot().
  void turn_weights(int32_t unit, float scale, std::byte* tile) const {
    const __m512i slots =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    const __m512 factor = _mm512_set1_ps(group_of(unit).v_scale * scale);
    for (int r = 0; r < kRows; r += 4) {
      __m512i upper[4], lower[4];
      for (int i = 0; i < 4; ++i) {
        upper[i] = lower[i] = _mm512_setzero_si512();
        if (r + i >= num_rows()) continue;
        const float* const weights =
            job_.weights + (first_row_ + r + i) * kSplitKeys + unit * kUnitKeys;
        alignas(64) std::byte upper_bytes[64], lower_bytes[64];
        for (int t = 0; t < kUnitKeys; t += 16) {
          const __m512i whole = _mm512_cvtps_epi32(Avx512Simd::load(weights + t) * factor);
          _mm_store_si128(reinterpret_cast<__m128i*>(upper_bytes + t),
                          _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
          _mm_store_si128(reinterpret_cast<__m128i*>(lower_bytes + t), _mm512_cvtepi32_epi8(whole));
        }
        upper[i] = _mm512_shuffle_epi8(_mm512_load_si512(upper_bytes), slots);
        lower[i] = _mm512_shuffle_epi8(_mm512_load_si512(lower_bytes), slots);
      }
      const auto to = [&](int column) {
        return [=](int64_t quad) { return tile + 64 * quad + 4 * column; };
      };
      store_turned(upper, to(r));
      store_turned(lower, to(r + kRows));
    }
  }

  // kTiles x 16 channels of the rows; `number` is what a product counts for.
  template <int kTiles>
  void multiply_values(const int32_t* units, int num_units, int64_t d, float number) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    memory_barrier(right_);
    for (int i = 0; i < num_units; ++i) {
      const CodeGroup& group = group_of(units[i]);
      const CodeGroup& ahead = group_of(units[i + 1 < num_units ? i + 1 : i]);
      for (int64_t c = 0; c < 16 * kTiles; ++c) {
        __builtin_prefetch(ahead.v + (d + c) * ahead.v_stride);
      }
      const std::byte* const codes = group.v + d * group.v_stride;
      const auto stride = static_cast<size_t>(group.v_stride);
      _tile_loadd(6, right_ + kTileBytes * i, 64);
      _tile_loadd(4, codes, stride);
      _tile_dpbsud(0, 4, 6);
      if constexpr (kTiles > 1) {
        _tile_loadd(5, codes + 16 * stride, stride);
        _tile_dpbsud(1, 5, 6);
      }
      if constexpr (kTiles > 2) {
        _tile_loadd(4, codes + 32 * stride, stride);
        _tile_dpbsud(2, 4, 6);
      }
      if constexpr (kTiles > 3) {
        _tile_loadd(5, codes + 48 * stride, stride);
        _tile_dpbsud(3, 5, 6);
      }
    }
    _tile_stored(0, products_[0], 64);
    _tile_stored(1, products_[0] + 256, 64);
    _tile_stored(2, products_[1], 64);
    _tile_stored(3, products_[1] + 256, 64);
    for (int tile = 0; tile < kTiles; ++tile) {
      const int32_t* const o = products_[tile / 2] + 256 * (tile % 2);
      memory_barrier(o);
      for (int64_t c = 0; c < 16; ++c) {
        for (int r = 0; r < num_rows(); ++r) {
          const auto upper = static_cast<float>(o[16 * c + r]);
          const auto lower = static_cast<float>(o[16 * c + kRows + r]);
          job_.out[(first_row_ + r) * job_.head_dim + d + 16 * tile + c] =
              (256 * upper + lower) * number;
        }
      }
    }
  }

  const DecodeJob& job_;
  const TileSession session_;
  int first_row_ = 0;    // of those that are worked on
  float q_unit_[kRows];  // what a query's integers count for
  alignas(64) std::byte left_[2 * kTileBytes];
  alignas(64) std::byte right_[kTileBytes * kSplitUnits];  // of queries, or of weights
  alignas(64) int32_t products_[2][512];
  static_assert(kSplitUnits >= kMaxHeadDim / kVectorCodes);
};

}  // namespace
}  // namespace fovea::cpu
