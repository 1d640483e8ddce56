// bf16: the upper half of an f32. Kernels convert in bulk with instructions; this is the plain
// form.
#pragma once

#include <bit>
#include <cstdint>

namespace fovea {

struct BFloat16 {
  uint16_t bits = 0;
  friend bool operator==(const BFloat16&, const BFloat16&) = default;
};

constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

/// Rounds to nearest even; a NaN stays a (quiet) NaN.
constexpr BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace fovea
