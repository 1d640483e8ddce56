// Tiles with AVX2 and FMA.
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

const TileKernel& avx2_tile_kernel() { return make_tile_kernel<Avx2Isa>(); }

}  // namespace fovea::cpu
