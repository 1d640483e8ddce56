// Shared-memory tiles in 128-byte swizzled panels, and the descriptors by which wgmma reads them.
//
// A panel is [rows][128 bytes], aligned to 1024 bytes; a tile of head_dim 16-bit columns is
// head_dim / 64 panels, one after another. TMA and wgmma agree on the swizzle: inside each group of
// 8 rows the 16-byte chunk c of row r lies at chunk c ^ r, so that 8 rows of one chunk column touch
// all 32 banks.
#pragma once

#include <cstdint>

#include "fovea/tensor/cuda/ptx/macros.h"

namespace fovea::ptx {

constexpr uint32_t kPanelRowBytes = 128;
constexpr uint32_t kSwizzleAtomBytes = 8 * kPanelRowBytes;  // also the alignment of a panel

/// Where byte `offset` of a panel, counted row by row, lies in shared memory.
FOVEA_HOST_DEVICE constexpr uint32_t swizzle128(uint32_t offset) {
  return offset ^ ((offset >> 3) & 0x70);
}

namespace detail {
FOVEA_HOST_DEVICE constexpr uint64_t descriptor(uint32_t address, uint32_t leading_bytes,
                                                uint32_t stride_bytes) {
  constexpr uint64_t kSwizzle128B = uint64_t{1} << 62;
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{leading_bytes >> 4} << 16 |
         uint64_t{stride_bytes >> 4} << 32 | kSwizzle128B;
}
}  // namespace detail

/// Operand whose rows run along K (Q, K, centroids). The next 16 columns of 16-bit elements are 32
/// bytes further on (advance()), the next 64 a panel. The leading offset is not used; 16 by custom.
FOVEA_HOST_DEVICE constexpr uint64_t k_major_descriptor(uint32_t address) {
  return detail::descriptor(address, 16, kSwizzleAtomBytes);
}

/// B operand whose rows run along N (V as it is stored). `panel_bytes` is the distance between its
/// panels of 64 columns. The next 16 rows are 2048 bytes further on.
FOVEA_HOST_DEVICE constexpr uint64_t mn_major_descriptor(uint32_t address, uint32_t panel_bytes) {
  return detail::descriptor(address, panel_bytes, kSwizzleAtomBytes);
}

/// The descriptor `bytes` (a multiple of 16) further on. Shared memory ends before the sum could
/// leave the address field.
FOVEA_HOST_DEVICE constexpr uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000ull) |
         static_cast<uint32_t>(static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

}  // namespace fovea::ptx
