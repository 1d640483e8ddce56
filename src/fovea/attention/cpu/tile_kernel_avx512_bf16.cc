// Tiles with AVX512-BF16: VDPBF16PS multiplies pairs of bf16 and sums in f32.
#include "fovea/attention/cpu/bf16_layout.h"
#include "fovea/attention/cpu/f32_kernel.h"

namespace fovea::cpu {
namespace {

struct Avx512Bf16Isa {
  using Simd = Avx512Simd;
  using Layout = Bf16Layout;
  static constexpr int kRows = 64;
  static constexpr int kSubtiles = 2;
  static constexpr int kPack = 2;
  static constexpr int kPendingGroups = 4;
  static constexpr int kExp2Degree = 4;
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kVecsAtOnce = 4;
  struct Session {};

  static Simd::Vec dot(const float* a, Simd::Vec b, Simd::Vec c) {
    int32_t pair;
    std::memcpy(&pair, a, sizeof(pair));
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)b);
  }

  static void scores(const std::byte* keys, const float* q, int64_t head_dim, float* s) {
    multiply<Avx512Bf16Isa, false>(&keys, 1, Layout::padded_head_dim(head_dim) / 2, 1, q,
                                   kGroupKeys, head_dim / 2, s);
  }

  static void accumulate(const std::byte* const* values, int num, const float* p, int64_t head_dim,
                         float* o) {
    multiply<Avx512Bf16Isa, true>(values, num, 1, head_dim, p, head_dim, kGroupKeys / 2, o);
  }

  static void pack_weights(float* dst, Simd::Vec a, Simd::Vec b) { store_pairs(dst, a, b); }

  static bool pack(const PackJob& job, std::byte* keys, std::byte* values) {
    pack_keys(job, keys);
    return interleave_values(job, reinterpret_cast<uint32_t*>(values));
  }
};

}  // namespace

const TileKernel& avx512_bf16_tile_kernel() { return make_tile_kernel<Avx512Bf16Isa>(); }

}  // namespace fovea::cpu
