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
  static constexpr int kPendingGroups = 8;
  static constexpr int kExp2Degree = 4;

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

  static void scores(const std::byte* keys, const float* q, int64_t head_dim, float* s) {
    const int64_t channels = Layout::padded_head_dim(head_dim);
    const int64_t key_stride = 2 * channels;
    memory_barrier(q);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t c = 0; c < channels; c += 32) {
      _tile_loadd(4, keys + 2 * c, static_cast<size_t>(key_stride));
      _tile_loadd(5, keys + 16 * key_stride + 2 * c, static_cast<size_t>(key_stride));
      _tile_loadd(6, q + c / 2 * kRows, 4 * kRows);
      _tile_loadd(7, q + c / 2 * kRows + 16, 4 * kRows);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, s, 4 * kRows);
    _tile_stored(1, s + 16, 4 * kRows);
    _tile_stored(2, s + 16 * kRows, 4 * kRows);
    _tile_stored(3, s + 16 * kRows + 16, 4 * kRows);
    memory_barrier(s);
  }

  static void accumulate(const std::byte* const* values, int num, const float* p, int64_t head_dim,
                         float* o) {
    constexpr int64_t kValueTile = 16 * 64;
    memory_barrier(p);
    int64_t d = 0;
    for (; d + 32 <= head_dim; d += 32) {
      float* c = o + d * kRows;
      _tile_loadd(0, c, 4 * kRows);
      _tile_loadd(1, c + 16, 4 * kRows);
      _tile_loadd(2, c + 16 * kRows, 4 * kRows);
      _tile_loadd(3, c + 16 * kRows + 16, 4 * kRows);
      for (int g = 0; g < num; ++g) {
        _tile_loadd(4, values[g] + d / 16 * kValueTile, 64);
        _tile_loadd(5, values[g] + (d / 16 + 1) * kValueTile, 64);
        _tile_loadd(6, p + g * 16 * kRows, 4 * kRows);
        _tile_loadd(7, p + g * 16 * kRows + 16, 4 * kRows);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, c, 4 * kRows);
      _tile_stored(1, c + 16, 4 * kRows);
      _tile_stored(2, c + 16 * kRows, 4 * kRows);
      _tile_stored(3, c + 16 * kRows + 16, 4 * kRows);
    }
    if (d < head_dim) accumulate_last_16(values, num, p, d, o + d * kRows);
    memory_barrier(o);
  }

  // Sixteen channels are left: head_dim 80.
  static void accumulate_last_16(const std::byte* const* values, int num, const float* p, int64_t d,
                                 float* c) {
    constexpr int64_t kValueTile = 16 * 64;
    _tile_loadd(0, c, 4 * kRows);
    _tile_loadd(1, c + 16, 4 * kRows);
    for (int g = 0; g < num; ++g) {
      _tile_loadd(4, values[g] + d / 16 * kValueTile, 64);
      _tile_loadd(6, p + g * 16 * kRows, 4 * kRows);
      _tile_loadd(7, p + g * 16 * kRows + 16, 4 * kRows);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, c, 4 * kRows);
    _tile_stored(1, c + 16, 4 * kRows);
  }

  static void pack_weights(float* dst, Simd::Vec a, Simd::Vec b) { store_pairs(dst, a, b); }

  static bool pack(const PackJob& job, std::byte* keys, std::byte* values) {
    alignas(64) uint32_t pairs[16 * 256];
    pack_keys(job, keys);
    const bool any_non_finite = interleave_values(job, pairs);
    transpose_elements(reinterpret_cast<const float*>(pairs), job.head_dim,
                       reinterpret_cast<float*>(values), 16, 16, job.head_dim);
    return any_non_finite;
  }
};

}  // namespace

const TileKernel& amx_bf16_tile_kernel() { return make_tile_kernel<AmxBf16Isa>(); }

}  // namespace fovea::cpu
