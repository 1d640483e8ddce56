// Decode of f8e4m3 with AMX: codes become bf16 on their way into tiles. Included only by the file
// that is compiled for it.
//
// K rows and turned V rows are left operands, so that logits come as S^T [keys, rows] and outputs
// as O^T [channels, rows]; queries and weights, few, are turned. A vector of 64 codes is widened to
// two, each with 8 of every 16 codes: the right operands come in that order.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "fovea/attention/cpu/amx_tiles.h"
#include "fovea/attention/cpu/code_widener.h"
#include "fovea/attention/cpu/decode_split.h"
#include "fovea/attention/cpu/simd.h"
#include "fovea/attention/cpu/tile_kernel.h"

namespace fovea::cpu {
namespace {

class DecodeF8 {
  static constexpr int64_t kTileBytes = 1024;  // 16 rows of 64
  static constexpr int64_t kVectorCodes = 64;
  static constexpr int64_t kMaxHeadDim = 256;
  static_assert(kUnitKeys == kVectorCodes && kMaxDecodeRows <= 16);

 public:
  explicit DecodeF8(const DecodeJob& job) : job_(job) {}

  void weigh() {
    load_queries();
    const auto num_groups = static_cast<int>((job_.num_keys + kGroupKeys - 1) / kGroupKeys);
    const auto num_vectors = static_cast<int>(this->num_vectors());
    // What was just stored is slow to read into tiles, and the other way round: each step
    // multiplies what the step before widened, and takes logits of the group before.
    KeyStep last;
    for (int g = 0; g < num_groups; ++g) {
      for (int i = 0; i < num_vectors; ++i) {
        for (int half = 0; half < 2; ++half) {
          const KeyStep step{g, i, half};
          widen_keys(step, g + 2 < num_groups ? g + 2 : g);
          if (g + i + half > 0) multiply_keys(last);
          last = step;
        }
      }
      if (g > 1) store_logits(g - 2);
    }
    multiply_keys(last);
    if (num_groups > 1) store_logits(num_groups - 2);
    store_logits(num_groups - 1);
    for (int r = 0; r < job_.num_rows; ++r) weigh_logits<Avx512Simd>(job_, r);
  }

  void add_values() {
    int32_t units[kSplitUnits];
    int num_units = 0;
    for (int32_t u = 0; u * kUnitKeys < job_.num_keys; ++u) {
      if ((job_.units >> u & 1u) != 0) units[num_units++] = u;
    }
    std::memset(right_, 0, static_cast<size_t>(2 * kTileBytes * num_units));
    for (int i = 0; i < num_units; ++i) turn_weights(units[i], right_ + 2 * kTileBytes * i);
    for (int64_t d = 0; d < job_.head_dim; d += 64) {
      with_up_to_4((job_.head_dim - d) / 16,
                   [&]<int kTiles>() { multiply_values<kTiles>(units, num_units, d); });
    }
  }

 private:
  static std::byte* row_of(std::byte* tile, int64_t i) { return tile + 64 * i; }
  static void store(const WideCodes& codes, std::byte* tiles, int64_t i) {
    _mm512_store_si512(row_of(tiles, i), codes.first);
    _mm512_store_si512(row_of(tiles + kTileBytes, i), codes.second);
  }

  // Q^T in pairs of channels, two tiles for each 64 channels.
  void load_queries() {
    std::memset(right_, 0, static_cast<size_t>(2 * kTileBytes * num_vectors()));
    for (int r = 0; r < job_.num_rows; ++r) {
      for (int64_t c = 0; c < job_.head_dim; c += 2) {
        // Of 64 channels, the pair p of every 8 pairs is in the first tile if p < 4.
        const int64_t pair = c % kVectorCodes / 2, p = pair % 8;
        std::byte* const tile = right_ + kTileBytes * (2 * (c / kVectorCodes) + p / 4);
        std::memcpy(row_of(tile, pair / 8 * 4 + p % 4) + 4 * r, job_.q[r] + 2 * c, 4);
      }
    }
  }

  int64_t num_vectors() const { return (job_.head_dim + kVectorCodes - 1) / kVectorCodes; }

  // 64 channels of 16 keys.
  struct KeyStep {
    int group = 0, vector = 0, half = 0;
  };

  void widen_keys(const KeyStep& step, int group_ahead) {
    const CodeWidener widen;  // not a member: its tables stay in registers
    const CodeGroup& group = job_.codes[step.group];
    const CodeGroup& ahead = job_.codes[group_ahead];
    const int64_t c = step.vector * kVectorCodes, left = job_.head_dim - c;
    const __mmask64 exists = left >= kVectorCodes ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
    const int64_t stride = group.k_stride, ahead_stride = ahead.k_stride;
    const std::byte* codes = group.k + 16 * step.half * stride + c;
    const std::byte* prefetched = ahead.k + 16 * step.half * ahead_stride + c;
    std::byte* const tiles = left_ + step.half * 2 * kTileBytes;
#pragma GCC unroll 1
    for (int t = 0; t < 16; ++t) {
      store(widen(_mm512_maskz_loadu_epi8(exists, codes)), tiles, t);
      __builtin_prefetch(prefetched);
      codes += stride;
      prefetched += ahead_stride;
    }
    memory_barrier(tiles);
  }

  void multiply_keys(const KeyStep& step) {
    if (step.vector == 0 && step.half == 0) {
      _tile_zero(0);
      _tile_zero(1);
    }
    const std::byte* const right = right_ + 2 * kTileBytes * step.vector;
    _tile_loadd(6, right, 64);
    _tile_loadd(7, right + kTileBytes, 64);
    if (step.half == 0) {
      _tile_loadd(2, left_, 64);
      _tile_loadd(3, left_ + kTileBytes, 64);
      _tile_dpbf16ps(0, 2, 6);
      _tile_dpbf16ps(0, 3, 7);
      return;
    }
    _tile_loadd(4, left_ + 2 * kTileBytes, 64);
    _tile_loadd(5, left_ + 3 * kTileBytes, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(1, 5, 7);
    if (step.vector + 1 < num_vectors()) return;
    float* const s = products_[step.group % 2];
    _tile_stored(0, s, 64);
    _tile_stored(1, s + 256, 64);
    memory_barrier(s);
  }

  // S^T of a group becomes rows of logits, four at a time.
  void store_logits(int g) {
    for (int half = 0; half < 2; ++half) {
      const std::byte* rows[16];
      for (int t = 0; t < 16; ++t) {
        rows[t] = reinterpret_cast<const std::byte*>(products_[g % 2] + 256 * half + 16 * t);
      }
      for (int64_t r = 0; r < job_.num_rows; r += 4) {
        Avx512Simd::transpose_4(
            rows, 4 * r, job_.weights + r * kSplitKeys + g * kGroupKeys + 16 * half, kSplitKeys);
      }
    }
  }

  // A unit's weights times the scale of V as P^T in pairs of keys, two tiles, zeroed before. Pairs
  // come as their values lie in a page (f8_value_slot()), widened: of 8 pairs 0, 4, 1, 5 in the
  // first tile, 2, 6, 3, 7 in the second.
  void turn_weights(int32_t unit, std::byte* tiles) const {
    for (int64_t r = 0; r < job_.num_rows; r += 4) {
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t first_key = unit * kUnitKeys + half * kGroupKeys;
        const __m512 scale = _mm512_set1_ps(job_.codes[first_key / kGroupKeys].v_scale);
        __m512i rows[4];
        for (int64_t i = 0; i < 4; ++i) {
          if (r + i >= job_.num_rows) {
            rows[i] = _mm512_setzero_si512();
            continue;
          }
          const float* const weights = job_.weights + (r + i) * kSplitKeys + first_key;
          rows[i] = (__m512i)_mm512_cvtne2ps_pbh(Avx512Simd::load(weights + 16) * scale,
                                                 Avx512Simd::load(weights) * scale);
        }
        store_turned(rows, [&](int64_t pair) {
          const int64_t p = pair % 8;
          std::byte* const tile = tiles + (p / 2 % 2) * kTileBytes;
          return row_of(tile, (2 * half + pair / 8) * 4 + p % 2 * 2 + p / 4) + 4 * r;
        });
      }
    }
  }

  // Sixteen channels of a unit's values; the same of unit `ahead` are asked for.
  void widen_values(int32_t unit, int32_t ahead, int64_t d, std::byte* tiles) const {
    const CodeWidener widen;  // not a member: its tables stay in registers
    const CodeGroup* const groups = job_.codes + unit * (kUnitKeys / kGroupKeys);
    const CodeGroup& next = job_.codes[ahead * (kUnitKeys / kGroupKeys)];
    const int64_t first_stride = groups[0].v_stride, second_stride = groups[1].v_stride;
    const int64_t next_stride = next.v_stride;
    const std::byte* first = groups[0].v + d * first_stride;
    const std::byte* second = groups[1].v + d * second_stride;
    const std::byte* prefetched = next.v + d * next_stride;
#pragma GCC unroll 1
    for (int c = 0; c < 16; ++c) {
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
      const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second));
      store(widen(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)), tiles, c);
      __builtin_prefetch(prefetched);
      first += first_stride;
      second += second_stride;
      prefetched += next_stride;
    }
  }

  // kTiles x 16 channels of all rows.
  template <int kTiles>
  void multiply_values(const int32_t* units, int num_units, int64_t d) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    // As for keys: each step multiplies what the step before widened.
    std::byte* const tiles[2] = {left_, left_ + 2 * kTileBytes};
    int parity = 0;
    const auto widen = [&](int i, int tile) {
      const int32_t ahead = units[i + 1 < num_units ? i + 1 : i];
      widen_values(units[i], ahead, d + 16 * tile, tiles[parity]);
      memory_barrier(left_);
      parity ^= 1;
      _tile_loadd(4, tiles[parity], 64);
      _tile_loadd(5, tiles[parity] + kTileBytes, 64);
    };
    const auto add_last_channels = [] {
      if constexpr (kTiles == 1) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(0, 5, 7);
      } else if constexpr (kTiles == 2) {
        _tile_dpbf16ps(1, 4, 6);
        _tile_dpbf16ps(1, 5, 7);
      } else if constexpr (kTiles == 3) {
        _tile_dpbf16ps(2, 4, 6);
        _tile_dpbf16ps(2, 5, 7);
      } else {
        _tile_dpbf16ps(3, 4, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    };
    for (int i = 0; i < num_units; ++i) {
      widen(i, 0);
      if (i > 0) add_last_channels();
      const std::byte* const right = right_ + 2 * kTileBytes * i;
      _tile_loadd(6, right, 64);
      _tile_loadd(7, right + kTileBytes, 64);
      if constexpr (kTiles > 1) {
        widen(i, 1);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(0, 5, 7);
      }
      if constexpr (kTiles > 2) {
        widen(i, 2);
        _tile_dpbf16ps(1, 4, 6);
        _tile_dpbf16ps(1, 5, 7);
      }
      if constexpr (kTiles > 3) {
        widen(i, 3);
        _tile_dpbf16ps(2, 4, 6);
        _tile_dpbf16ps(2, 5, 7);
      }
    }
    _tile_loadd(4, tiles[parity ^ 1], 64);
    _tile_loadd(5, tiles[parity ^ 1] + kTileBytes, 64);
    add_last_channels();
    _tile_stored(0, products_[0], 64);
    store_outputs(d, products_[0]);
    if constexpr (kTiles > 1) {
      _tile_stored(1, products_[1], 64);
      store_outputs(d + 16, products_[1]);
    }
    if constexpr (kTiles > 2) {
      _tile_stored(2, products_[0], 64);
      store_outputs(d + 32, products_[0]);
    }
    if constexpr (kTiles > 3) {
      _tile_stored(3, products_[1], 64);
      store_outputs(d + 48, products_[1]);
    }
  }

  // O^T of sixteen channels.
  void store_outputs(int64_t d, const float* o) const {
    memory_barrier(o);
    for (int64_t c = 0; c < 16; ++c) {
      for (int r = 0; r < job_.num_rows; ++r) job_.out[r * job_.head_dim + d + c] = o[16 * c + r];
    }
  }

  const DecodeJob& job_;
  const TileSession session_;
  alignas(64) std::byte left_[4 * kTileBytes];
  alignas(64) std::byte right_[2 * kTileBytes * kSplitUnits];  // of queries, or of weights
  alignas(64) float products_[2][512];
  static_assert(kSplitUnits >= kMaxHeadDim / kVectorCodes);
};

}  // namespace
}  // namespace fovea::cpu
