// Tiles with AVX512-BF16: VDPBF16PS multiplies pairs of bf16 and sums in f32.
#include "fovea/attention/cpu/bf16_layout.h"
#include "fovea/attention/cpu/decode_codes_avx512.h"
#include "fovea/attention/cpu/f32_kernel.h"

namespace fovea::cpu {
namespace {

struct Avx512Bf16Isa {
  using Simd = Avx512Simd;
  using Layout = Bf16Layout;
  static constexpr int kRows = 64;
  static constexpr int kSubtiles = 2;
  static constexpr int kPack = 2;
  static constexpr int kBatchGroups = 2;
  static constexpr bool kOverlaps = false;
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kVecsAtOnce = 4;
  using Weights = Bf16Weights;
  struct Session {};

  static Simd::Vec dot(const float* a, Simd::Vec b, Simd::Vec c) {
    int32_t pair;
    std::memcpy(&pair, a, sizeof(pair));
    return _mm512_dpbf16_ps(c, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)b);
  }

  template <class Beside>
  static void multiply(const Products& products, Beside&& beside) {
    multiply_in_turn<Avx512Bf16Isa>(products, beside);
  }

  static bool pack(const PackJob& job, std::byte* keys, std::byte* values) {
    if (keys != nullptr) pack_keys(job, keys);
    return interleave_values(job, reinterpret_cast<uint32_t*>(values));
  }
};

}  // namespace

const TileKernel& avx512_bf16_tile_kernel() {
  static const TileKernel kernel = [] {
    TileKernel with_codes = make_tile_kernel<Avx512Bf16Isa>();
    with_codes.code_weights = [](const DecodeJob& job) {
      job.codes_are_i8 ? DecodeCodes<I8Codes>(job).weigh() : DecodeCodes<F8Codes>(job).weigh();
    };
    with_codes.code_values = [](const DecodeJob& job) {
      job.codes_are_i8 ? DecodeCodes<I8Codes>(job).add_values()
                       : DecodeCodes<F8Codes>(job).add_values();
    };
    return with_codes;
  }();
  return kernel;
}

}  // namespace fovea::cpu
