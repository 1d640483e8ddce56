// Tiles with AVX-512.
#include "fovea/attention/cpu/decode_codes_f32.h"
#include "fovea/attention/cpu/f32_kernel.h"

namespace fovea::cpu {
namespace {

struct Avx512Isa : F32Isa<Avx512Isa, Avx512Simd> {
  static constexpr int kRows = 64;
  static constexpr int kSubtiles = 2;
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kVecsAtOnce = 4;
};

}  // namespace

const TileKernel& avx512_tile_kernel() {
  static const TileKernel kernel = with_codes_in_f32<Avx512Simd>(make_tile_kernel<Avx512Isa>());
  return kernel;
}

}  // namespace fovea::cpu
