// Tiles with AMX: TDPBF16PS multiplies a 16 x 32 by a 32 x 16 matrix of bf16 and sums in f32.
//
// K rows are tiles of the left operand as they are; Q^T and P^T in pairs are tiles of the right
// operand; V is packed transposed, [head_dim, 32 keys], for the left one.
#include "fovea/attention/cpu/bf16_layout.h"
#include "fovea/attention/cpu/decode_f8.h"
#include "fovea/attention/cpu/decode_i8.h"

namespace fovea::cpu {
namespace {

/// values [head_dim, kGroupKeys]: rows of V as columns, zeros where NaN or Inf. Returns whether
/// there were such.
inline bool turn_values(const PackJob& job, std::byte* values) {
  static constexpr std::byte kZeros[2 * 256] = {};
  const std::byte* rows[kGroupKeys];
  for (int t = 0; t < kGroupKeys; ++t) rows[t] = t < job.num_keys ? job.v[t] : kZeros;
  const __m512i magnitude = _mm512_set1_epi16(0x7fff), infinity = _mm512_set1_epi16(0x7f80);
  __m512i largest = _mm512_setzero_si512();
  std::byte* to = values;
  const auto store_next = [&](__m512i channel) {
    largest = _mm512_max_epu16(largest, _mm512_and_si512(channel, magnitude));
    _mm512_store_si512(to, channel);
    to += 2 * kGroupKeys;
  };
  for (int64_t d = 0; d < job.head_dim; d += 8) {
    // Lane l of x[i] is of key 8 l + i; then 8 x 8 elements are transposed within each lane.
    __m512i x[8], pairs[8];
    for (int i = 0; i < 8; ++i) x[i] = Avx512Simd::load_lanes<8>(rows + i, 2 * d);
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm512_unpacklo_epi16(x[i], x[i + 1]);  // channels 0 ... 3
      pairs[i + 1] = _mm512_unpackhi_epi16(x[i], x[i + 1]);
    }
    for (int half = 0; half < 2; ++half) {
      const __m512i low = _mm512_unpacklo_epi32(pairs[half], pairs[half + 2]);  // keys 0 ... 3
      const __m512i low_next = _mm512_unpackhi_epi32(pairs[half], pairs[half + 2]);
      const __m512i high = _mm512_unpacklo_epi32(pairs[half + 4], pairs[half + 6]);
      const __m512i high_next = _mm512_unpackhi_epi32(pairs[half + 4], pairs[half + 6]);
      store_next(_mm512_unpacklo_epi64(low, high));
      store_next(_mm512_unpackhi_epi64(low, high));
      store_next(_mm512_unpacklo_epi64(low_next, high_next));
      store_next(_mm512_unpackhi_epi64(low_next, high_next));
    }
  }
  if (_mm512_cmpge_epu16_mask(largest, infinity) == 0) return false;
  for (; values < to; values += 64) {
    const __m512i channel = _mm512_load_si512(values);
    const __mmask32 is_finite =
        _mm512_cmplt_epu16_mask(_mm512_and_si512(channel, magnitude), infinity);
    _mm512_store_si512(values, _mm512_maskz_mov_epi16(is_finite, channel));
  }
  return true;
}

struct AmxBf16Isa {
  using Simd = Avx512Simd;
  using Layout = Bf16Layout;
  static constexpr int kRows = 32;
  static constexpr int kSubtiles = 4;
  static constexpr int kPack = 2;
  static constexpr int kBatchGroups = 2;
  static constexpr bool kOverlaps = true;
  using Weights = Bf16Weights;

  using Session = TileSession;

  // How often multiply() calls beside().
  static int num_units(const Products& products) {
    const int64_t channels = Layout::padded_head_dim(products.head_dim);
    return static_cast<int>((products.num_values + products.num_keys) * channels / 32);
  }

  // Four products of tiles, 64 cycles of the matrix unit, and a piece of what runs beside them: few
  // enough instructions that the processor looks ahead from one to the other.
  template <class Beside>
  static void multiply(const Products& products, Beside&& beside) {
    memory_barrier(products.p);
    for (int64_t d = 0; products.num_values > 0 && d < products.head_dim; d += 32) {
      float* const c = products.o + d * kRows;
      if (d + 32 <= products.head_dim) {
        accumulate<true>(products, d, c, beside);
      } else {
        accumulate<false>(products, d, c, beside);  // sixteen channels are left: head_dim 80
      }
    }
    for (int i = 0; i < products.num_keys; ++i) {
      scores(products.keys[i], products, products.s + i * kGroupKeys * kRows, beside);
    }
    memory_barrier(products.o);
  }

  template <bool kIsWhole, class Beside>
  static void accumulate(const Products& products, int64_t d, float* c, Beside&& beside) {
    constexpr int64_t kValueTile = 16 * 64;
    if (products.is_first) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, c, 4 * kRows);
      _tile_loadd(1, c + 16, 4 * kRows);
      if constexpr (kIsWhole) {
        _tile_loadd(2, c + 16 * kRows, 4 * kRows);
        _tile_loadd(3, c + 16 * kRows + 16, 4 * kRows);
      }
    }
    for (int g = 0; g < products.num_values; ++g) {
      const float* const p = products.p + g * 16 * kRows;
      const std::byte* const values = products.values[g] + d / 16 * kValueTile;
      _tile_loadd(4, values, 64);
      _tile_loadd(6, p, 4 * kRows);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, p + 16, 4 * kRows);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (kIsWhole) {
        _tile_loadd(5, values + kValueTile, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      beside();
    }
    _tile_stored(0, c, 4 * kRows);
    _tile_stored(1, c + 16, 4 * kRows);
    if constexpr (kIsWhole) {
      _tile_stored(2, c + 16 * kRows, 4 * kRows);
      _tile_stored(3, c + 16 * kRows + 16, 4 * kRows);
    }
  }

  template <class Beside>
  static void scores(const std::byte* keys, const Products& products, float* s, Beside&& beside) {
    const int64_t channels = Layout::padded_head_dim(products.head_dim);
    const int64_t key_stride = 2 * channels;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t c = 0; c < channels; c += 32) {
      const float* const q = products.q + c / 2 * kRows;
      _tile_loadd(4, keys + 2 * c, static_cast<size_t>(key_stride));
      _tile_loadd(6, q, 4 * kRows);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, q + 16, 4 * kRows);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, keys + 16 * key_stride + 2 * c, static_cast<size_t>(key_stride));
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      beside();
    }
    _tile_stored(0, s, 4 * kRows);
    _tile_stored(2, s + 16 * kRows, 4 * kRows);
    _tile_stored(1, s + 16, 4 * kRows);
    _tile_stored(3, s + 16 * kRows + 16, 4 * kRows);
  }

  static bool pack(const PackJob& job, std::byte* keys, std::byte* values) {
    if (keys != nullptr) pack_keys(job, keys);
    return turn_values(job, values);
  }
};

}  // namespace

const TileKernel& amx_bf16_tile_kernel() {
  static const TileKernel kernel = [] {
    TileKernel with_codes = make_tile_kernel<AmxBf16Isa>();
    with_codes.code_weights = [](const DecodeJob& job) {
      job.codes_are_i8 ? DecodeI8(job).weigh() : DecodeF8(job).weigh();
    };
    with_codes.code_values = [](const DecodeJob& job) {
      job.codes_are_i8 ? DecodeI8(job).add_values() : DecodeF8(job).add_values();
    };
    return with_codes;
  }();
  return kernel;
}

}  // namespace fovea::cpu
