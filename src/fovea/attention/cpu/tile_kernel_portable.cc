// Tiles on any processor the compiler targets: vectors of four, no assumption beyond them.
#include "fovea/attention/cpu/f32_kernel.h"

namespace fovea::cpu {
namespace {

struct PortableIsa : F32Isa<PortableIsa, GenericSimd<4>> {
  static constexpr int kRows = 32;
  static constexpr int kSubtiles = 2;
  static constexpr int kRowsAtOnce = 4;
  static constexpr int kVecsAtOnce = 2;
};

}  // namespace

const TileKernel& portable_tile_kernel() { return make_tile_kernel<PortableIsa>(); }

}  // namespace fovea::cpu
