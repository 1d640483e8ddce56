// Tiles with AMX: TDPBF16PS multiplies a 16 x 32 by a 32 x 16 matrix of bf16 and sums in f32.
//
// K rows are tiles of the left operand as they are; Q^T and P^T in pairs are tiles of the right
// operand; V is packed transposed, [head_dim, 32 keys], for the left one.
#include "fovea/attention/cpu/bf16_layout.h"
#include "fovea/tensor/float8.h"

namespace fovea::cpu {
namespace {

struct CodeMagnitudes {
  float values[128];
};
constexpr CodeMagnitudes kMagnitudes = [] {
  CodeMagnitudes magnitudes = {};
  for (uint8_t i = 0; i < 128; ++i) magnitudes.values[i] = to_float(Float8E4M3{i});
  return magnitudes;
}();

/// Codes of f8e4m3 as bf16: their magnitudes under a scale are looked up, signs kept.
class WidenedCodes {
 public:
  explicit WidenedCodes(float scale) {
    for (int i = 0; i < 4; ++i) {
      const __m512 low = _mm512_loadu_ps(kMagnitudes.values + 32 * i) * scale;
      const __m512 high = _mm512_loadu_ps(kMagnitudes.values + 32 * i + 16) * scale;
      numbers_[i] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    }
  }

  __m512i operator()(__m256i codes) const {
    const __m512i wide = _mm512_cvtepu8_epi16(codes);
    const __m512i low = _mm512_permutex2var_epi16(numbers_[0], wide, numbers_[1]);
    const __m512i high = _mm512_permutex2var_epi16(numbers_[2], wide, numbers_[3]);
    const __mmask32 is_high = _mm512_test_epi16_mask(wide, _mm512_set1_epi16(0x40));
    const __m512i magnitudes = _mm512_mask_mov_epi16(low, is_high, high);
    // magnitudes | (wide << 8 & 0x8000)
    return _mm512_ternarylogic_epi32(magnitudes, _mm512_slli_epi16(wide, 8),
                                     _mm512_set1_epi16(static_cast<int16_t>(0x8000)), 0xf8);
  }

 private:
  __m512i numbers_[4];  // 32 magnitudes each
};

// The tile intrinsics do not tell the compiler which memory they read and write.
inline void memory_barrier(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

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

/// kRowTiles x 16 rows are worked on together.
template <int kRowTiles>
struct AmxBf16Products {
  static_assert(kRowTiles == 1 || kRowTiles == 2);
  using Simd = Avx512Simd;
  using Layout = Bf16Layout;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kPack = 2;
  static constexpr bool kOverlaps = true;
  using Weights = Bf16Weights;

  // Eight tiles of 16 rows x 64 bytes. What another library had configured comes back afterwards.
  class Session {
   public:
    Session() {
      _tile_storeconfig(&saved_);
      memory_barrier(&saved_);
      TileConfig config = {};
      config.palette = 1;
      for (int i = 0; i < 8; ++i) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
      }
      memory_barrier(&config);
      _tile_loadconfig(&config);
    }
    ~Session() {
      if (saved_.palette == 0) {
        _tile_release();
      } else {
        memory_barrier(&saved_);
        _tile_loadconfig(&saved_);
      }
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

   private:
    struct alignas(64) TileConfig {
      uint8_t palette;
      uint8_t start_row;
      uint8_t reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    };
    TileConfig saved_;
  };

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
      if constexpr (kRowTiles == 2) _tile_loadd(1, c + 16, 4 * kRows);
      if constexpr (kIsWhole) {
        _tile_loadd(2, c + 16 * kRows, 4 * kRows);
        if constexpr (kRowTiles == 2) _tile_loadd(3, c + 16 * kRows + 16, 4 * kRows);
      }
    }
    for (int g = 0; g < products.num_values; ++g) {
      const float* const p = products.p + g * 16 * kRows;
      const std::byte* const values = products.values[g] + d / 16 * kValueTile;
      _tile_loadd(4, values, 64);
      _tile_loadd(6, p, 4 * kRows);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kRowTiles == 2) {
        _tile_loadd(7, p + 16, 4 * kRows);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kIsWhole) {
        _tile_loadd(5, values + kValueTile, 64);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (kRowTiles == 2) _tile_dpbf16ps(3, 5, 7);
      }
      beside();
    }
    _tile_stored(0, c, 4 * kRows);
    if constexpr (kRowTiles == 2) _tile_stored(1, c + 16, 4 * kRows);
    if constexpr (kIsWhole) {
      _tile_stored(2, c + 16 * kRows, 4 * kRows);
      if constexpr (kRowTiles == 2) _tile_stored(3, c + 16 * kRows + 16, 4 * kRows);
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
      if constexpr (kRowTiles == 2) {
        _tile_loadd(7, q + 16, 4 * kRows);
        _tile_dpbf16ps(1, 4, 7);
      }
      _tile_loadd(5, keys + 16 * key_stride + 2 * c, static_cast<size_t>(key_stride));
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kRowTiles == 2) _tile_dpbf16ps(3, 5, 7);
      beside();
    }
    _tile_stored(0, s, 4 * kRows);
    _tile_stored(2, s + 16 * kRows, 4 * kRows);
    if constexpr (kRowTiles == 2) {
      _tile_stored(1, s + 16, 4 * kRows);
      _tile_stored(3, s + 16 * kRows + 16, 4 * kRows);
    }
  }

  static bool pack(const PackJob& job, std::byte* keys, std::byte* values) {
    if (keys != nullptr) pack_keys(job, keys);
    return turn_values(job, values);
  }
};

struct AmxBf16Isa : AmxBf16Products<2> {
  static constexpr int kSubtiles = 4;
  static constexpr int kBatchGroups = 2;
  static constexpr bool kTakesCodes = false;
};

/// Decode of f8e4m3: sixteen rows are enough.
struct AmxBf16DecodeIsa : AmxBf16Products<1> {
  static constexpr int kSubtiles = 1;
  static constexpr int kBatchGroups = 1;  // what is packed stays in the nearest cache
  static constexpr bool kTakesCodes = true;
  static_assert(kMaxDecodeRows <= kRows);

  /// Widens a group. V is turned in its page, as the left operand wants it.
  static bool pack_codes(const CodeGroup& group, int64_t head_dim, std::byte* keys,
                         std::byte* values) {
    const int64_t channels = Layout::padded_head_dim(head_dim);
    const WidenedCodes k_numbers(group.k_scale);
    for (int t = 0; t < kGroupKeys; ++t, keys += 2 * channels) {
      const std::byte* const codes = group.k + t * group.k_stride;
      for (int64_t c = 0; c < channels; c += 32) {
        const __mmask32 exists = head_dim - c >= 32 ? ~0u : 0xffffu;
        _mm512_store_si512(keys + 2 * c, k_numbers(_mm256_maskz_loadu_epi8(exists, codes + c)));
      }
    }
    // What is behind the last key must not count, whatever it is.
    const __mmask32 exists = static_cast<__mmask32>((uint64_t{1} << group.num_keys) - 1);
    const __m256i slots = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                           1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const WidenedCodes v_numbers(group.v_scale);
    const __m256i magnitude = _mm256_set1_epi8(0x7f);
    __m256i largest = _mm256_setzero_si256();
    for (int64_t d = 0; d < head_dim; ++d, values += 64) {
      const auto* const row = reinterpret_cast<const __m256i*>(group.v + d * group.v_stride);
      const __m256i codes = _mm256_maskz_shuffle_epi8(exists, _mm256_loadu_si256(row), slots);
      largest = _mm256_max_epu8(largest, _mm256_and_si256(codes, magnitude));
      _mm512_store_si512(values, v_numbers(codes));
    }
    return _mm256_cmpeq_epi8_mask(largest, magnitude) != 0;
  }
};

}  // namespace

const TileKernel& amx_bf16_tile_kernel() {
  static const TileKernel kernel = [] {
    TileKernel with_codes = make_tile_kernel<AmxBf16Isa>();
    with_codes.decode_codes = [](const TileJob& job, std::byte* scratch) {
      const AmxBf16DecodeIsa::Session session;
      return TileAttention<AmxBf16DecodeIsa>(job, scratch).run();
    };
    with_codes.decode_scratch_bytes = &TileAttention<AmxBf16DecodeIsa>::scratch_bytes;
    return with_codes;
  }();
  return kernel;
}

}  // namespace fovea::cpu
