// Tiles with AMX: TDPBF16PS multiplies a 16 x 32 by a 32 x 16 matrix of bf16 and sums in f32.
//
// K rows are tiles of the left operand as they are; Q^T and P^T in pairs are tiles of the right
// operand; V is packed transposed, [head_dim, 32 keys], for the left one.
#include "fovea/attention/cpu/bf16_layout.h"

namespace fovea::cpu {
namespace {

// The tile intrinsics do not tell the compiler which memory they read and write.
inline void memory_barrier(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

struct AmxBf16Isa {
  using Simd = Avx512Simd;
  using Layout = Bf16Layout;
  static constexpr int kRows = 32;
  static constexpr int kSubtiles = 4;
  static constexpr int kPack = 2;
  static constexpr int kBatchGroups = 2;
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
    _tile_stored(1, s + 16, 4 * kRows);
    _tile_stored(2, s + 16 * kRows, 4 * kRows);
    _tile_stored(3, s + 16 * kRows + 16, 4 * kRows);
  }

  static bool pack(const PackJob& job, std::byte* keys, std::byte* values) {
    alignas(64) uint32_t pairs[16 * 256];
    if (keys != nullptr) pack_keys(job, keys);
    const bool any_non_finite = interleave_values(job, pairs);
    transpose_elements(reinterpret_cast<const float*>(pairs), job.head_dim,
                       reinterpret_cast<float*>(values), 16, 16, job.head_dim);
    return any_non_finite;
  }
};

}  // namespace

const TileKernel& amx_bf16_tile_kernel() { return make_tile_kernel<AmxBf16Isa>(); }

}  // namespace fovea::cpu
