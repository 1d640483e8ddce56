// E4M3: 8-bit floats of 4 exponent and 3 mantissa bits, bias 7, up to 448, no infinity; all ones is
// NaN. Kernels convert in bulk with instructions; this is the plain form. Source: OCP 8-bit
// Floating Point Specification.
#pragma once

#include <bit>
#include <cstdint>

namespace fovea {

struct Float8E4M3 {
  uint8_t bits = 0;
  friend bool operator==(const Float8E4M3&, const Float8E4M3&) = default;
};

/// The largest finite E4M3.
inline constexpr float kMaxFloat8E4M3 = 448.0f;

constexpr float to_float(Float8E4M3 value) {
  const uint32_t sign = (value.bits & 0x80u) << 24;
  const uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // The same bits in a wider exponent, 120 too low; the product puts that right, subnormals too.
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
}

/// Rounds to nearest even. What is beyond the range, infinity too, becomes the largest finite value
/// of its sign; a NaN stays NaN.
constexpr Float8E4M3 to_float8_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const auto with_sign = [&](uint32_t code) {
    return Float8E4M3{static_cast<uint8_t>(sign | code)};
  };
  if (magnitude > 0x7f800000u) return with_sign(0x7f);
  if (magnitude > std::bit_cast<uint32_t>(kMaxFloat8E4M3)) return with_sign(0x7e);
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Subnormals are multiples of 2^-9. Added to 2^14, whose last bit is worth that, the value is
    // rounded by the addition; a carry into the normals is right as it stands.
    const float rounded = std::bit_cast<float>(magnitude) + 0x1p14f;
    return with_sign(std::bit_cast<uint32_t>(rounded) & 0xfu);
  }
  const uint32_t to_even = 0x7ffffu + (magnitude >> 20 & 1u);
  return with_sign((magnitude + to_even - (120u << 23)) >> 20);
}

}  // namespace fovea
