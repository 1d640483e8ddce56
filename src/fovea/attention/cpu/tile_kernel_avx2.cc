// Tiles with AVX2 and FMA.
#include "fovea/attention/cpu/decode_codes_f32.h"
#include "fovea/attention/cpu/f32_kernel.h"

namespace fovea::cpu {
namespace {

struct Avx2Isa : F32Isa<Avx2Isa, Avx2Simd> {
  static constexpr int kRows = 64;
  static constexpr int kSubtiles = 1;
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kVecsAtOnce = 2;
};

}  // namespace

const TileKernel& avx2_tile_kernel() {
  static const TileKernel kernel = with_codes_in_f32<Avx2Simd>(make_tile_kernel<Avx2Isa>());
  return kernel;
}

}  // namespace fovea::cpu
