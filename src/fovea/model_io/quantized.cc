#include "fovea/model_io/quantized.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/float8.h"

namespace fovea {
namespace {

// Packs are read byte by byte or through memcpy: a file promises no alignment.
template <typename T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// The exponent is moved by a multiplication, which also makes f16 subnormals normal f32 numbers.
float half_to_float(uint16_t half) {
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t infinite = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;  // f16 infinity or NaN
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | infinite | sign);
}

float load_half(const uint8_t* bytes) { return half_to_float(load<uint16_t>(bytes)); }

int low(uint8_t byte) { return byte & 0xf; }
int high(uint8_t byte) { return byte >> 4; }

// One pack to pack_elements(type) weights. The first half of a 32-pack lies in the low nibbles.

void unpack_q4_0(const uint8_t* pack, float* out) {
  const float scale = load_half(pack);
  const uint8_t* nibbles = pack + 2;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(low(nibbles[i]) - 8) * scale;
    out[i + 16] = static_cast<float>(high(nibbles[i]) - 8) * scale;
  }
}

void unpack_q4_1(const uint8_t* pack, float* out) {
  const float scale = load_half(pack);
  const float minimum = load_half(pack + 2);
  const uint8_t* nibbles = pack + 4;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(low(nibbles[i])) * scale + minimum;
    out[i + 16] = static_cast<float>(high(nibbles[i])) * scale + minimum;
  }
}

// Values of E2M1 codes; bit 3 is the sign.
constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// A power of two from its biased exponent alone; 255 is NaN.
float e8m0_to_float(uint8_t exponent) {
  if (exponent == 0xff) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, exponent - 127);
}

void unpack_mxfp4(const uint8_t* pack, float* out) {
  const float scale = e8m0_to_float(pack[0]);
  const uint8_t* codes = pack + 1;
  for (int i = 0; i < 16; ++i) {
    out[i] = kE2M1[low(codes[i])] * scale;
    out[i + 16] = kE2M1[high(codes[i])] * scale;
  }
}

// Bit i of `fifth_bits` is bit 4 of weight i.
int with_fifth_bit(int nibble, uint32_t fifth_bits, int i) {
  return nibble | static_cast<int>((fifth_bits >> i) & 1u) << 4;
}

void unpack_q5_0(const uint8_t* pack, float* out) {
  const float scale = load_half(pack);
  const auto fifth_bits = load<uint32_t>(pack + 2);
  const uint8_t* nibbles = pack + 6;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(with_fifth_bit(low(nibbles[i]), fifth_bits, i) - 16) * scale;
    out[i + 16] =
        static_cast<float>(with_fifth_bit(high(nibbles[i]), fifth_bits, i + 16) - 16) * scale;
  }
}

void unpack_q5_1(const uint8_t* pack, float* out) {
  const float scale = load_half(pack);
  const float minimum = load_half(pack + 2);
  const auto fifth_bits = load<uint32_t>(pack + 4);
  const uint8_t* nibbles = pack + 8;
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(with_fifth_bit(low(nibbles[i]), fifth_bits, i)) * scale + minimum;
    out[i + 16] =
        static_cast<float>(with_fifth_bit(high(nibbles[i]), fifth_bits, i + 16)) * scale + minimum;
  }
}

void unpack_q8_0(const uint8_t* pack, float* out) {
  const float scale = load_half(pack);
  for (int i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(pack[2 + i])) * scale;
  }
}

// Q4_K and Q5_K: eight groups of 32 weights, each with a 6-bit scale and minimum. Twelve bytes hold
// the sixteen numbers: groups 0-3 whole, groups 4-7 with their two upper bits in those of 0-3.
struct GroupScale {
  float scale, minimum;
};

GroupScale k_group_scale(const uint8_t* pack, int group) {
  const float scale = load_half(pack);
  const float minimum = load_half(pack + 2);
  const uint8_t* s = pack + 4;
  int scale_bits, minimum_bits;
  if (group < 4) {
    scale_bits = s[group] & 63;
    minimum_bits = s[group + 4] & 63;
  } else {
    scale_bits = low(s[group + 4]) | (s[group - 4] >> 6) << 4;
    minimum_bits = high(s[group + 4]) | (s[group] >> 6) << 4;
  }
  return {scale * static_cast<float>(scale_bits), minimum * static_cast<float>(minimum_bits)};
}

void unpack_q4_k(const uint8_t* pack, float* out) {
  for (int group = 0; group < 8; group += 2) {
    const uint8_t* nibbles = pack + 16 + group * 16;
    const GroupScale first = k_group_scale(pack, group);
    const GroupScale second = k_group_scale(pack, group + 1);
    float* group_out = out + group * 32;
    for (int i = 0; i < 32; ++i) {
      group_out[i] = first.scale * static_cast<float>(low(nibbles[i])) - first.minimum;
      group_out[i + 32] = second.scale * static_cast<float>(high(nibbles[i])) - second.minimum;
    }
  }
}

void unpack_q5_k(const uint8_t* pack, float* out) {
  const uint8_t* fifth_bits = pack + 16;  // bit g of byte i belongs to weight i of group g
  for (int group = 0; group < 8; group += 2) {
    const uint8_t* nibbles = pack + 48 + group * 16;
    const GroupScale first = k_group_scale(pack, group);
    const GroupScale second = k_group_scale(pack, group + 1);
    float* group_out = out + group * 32;
    for (int i = 0; i < 32; ++i) {
      const int q0 = with_fifth_bit(low(nibbles[i]), fifth_bits[i], group);
      const int q1 = with_fifth_bit(high(nibbles[i]), fifth_bits[i], group + 1);
      group_out[i] = first.scale * static_cast<float>(q0) - first.minimum;
      group_out[i + 32] = second.scale * static_cast<float>(q1) - second.minimum;
    }
  }
}

// Q6_K: 16 groups of 16 weights with 8-bit scales; two halves of 128 weights, each in four runs
// of 32.
void unpack_q6_k(const uint8_t* pack, float* out) {
  const float scale = load_half(pack + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* nibbles = pack + half * 64;
    const uint8_t* upper_bits = pack + 128 + half * 32;
    const uint8_t* scales = pack + 192 + half * 8;
    for (int run = 0; run < 4; ++run) {
      const uint8_t* run_nibbles = nibbles + (run % 2) * 32;
      float* run_out = out + half * 128 + run * 32;
      for (int i = 0; i < 32; ++i) {
        const int nibble = run < 2 ? low(run_nibbles[i]) : high(run_nibbles[i]);
        const int q = (nibble | ((upper_bits[i] >> (2 * run)) & 3) << 4) - 32;
        const auto group_scale = static_cast<int8_t>(scales[run * 2 + i / 16]);
        run_out[i] = scale * static_cast<float>(group_scale) * static_cast<float>(q);
      }
    }
  }
}

template <void (*kUnpack)(const uint8_t*, float*)>
void unpack_all(WeightType type, const uint8_t* bytes, std::span<float> out) {
  const int64_t num_packs = static_cast<int64_t>(out.size()) / pack_elements(type);
  for (int64_t pack = 0; pack < num_packs; ++pack) {
    kUnpack(bytes + pack * pack_bytes(type), out.data() + pack * pack_elements(type));
  }
}

}  // namespace

bool can_dequantize(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kF8E4M3:
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ5_0:
    case WeightType::kQ5_1:
    case WeightType::kQ8_0:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
    case WeightType::kQ6_K:
    case WeightType::kMxFp4:
      return true;
    default:
      return false;
  }
}

void dequantize(WeightType type, std::span<const std::byte> bytes, std::span<float> out) {
  const int64_t expected = weight_bytes(type, static_cast<int64_t>(out.size()));
  check_argument(static_cast<int64_t>(bytes.size()) == expected,
                 "{} weights of type {} take {} bytes, got {}", out.size(), weight_type_name(type),
                 expected, bytes.size());
  if (out.empty()) return;
  const auto* in = reinterpret_cast<const uint8_t*>(bytes.data());
  switch (type) {
    case WeightType::kF32:
      std::memcpy(out.data(), in, bytes.size());
      return;
    case WeightType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = load_half(in + 2 * i);
      return;
    case WeightType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = to_float(BFloat16{load<uint16_t>(in + 2 * i)});
      }
      return;
    case WeightType::kF8E4M3:
      for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(Float8E4M3{in[i]});
      return;
    case WeightType::kQ4_0:
      return unpack_all<unpack_q4_0>(type, in, out);
    case WeightType::kQ4_1:
      return unpack_all<unpack_q4_1>(type, in, out);
    case WeightType::kQ5_0:
      return unpack_all<unpack_q5_0>(type, in, out);
    case WeightType::kQ5_1:
      return unpack_all<unpack_q5_1>(type, in, out);
    case WeightType::kQ8_0:
      return unpack_all<unpack_q8_0>(type, in, out);
    case WeightType::kQ4_K:
      return unpack_all<unpack_q4_k>(type, in, out);
    case WeightType::kQ5_K:
      return unpack_all<unpack_q5_k>(type, in, out);
    case WeightType::kQ6_K:
      return unpack_all<unpack_q6_k>(type, in, out);
    case WeightType::kMxFp4:
      return unpack_all<unpack_mxfp4>(type, in, out);
    default:
      break;
  }
  fail(ErrorCode::kUnsupported, "type {} holds no weights", weight_type_name(type));
}

void dequantize_mxfp4(std::span<const std::byte> codes, std::span<const std::byte> exponents,
                      std::span<float> out) {
  check_argument(out.size() % kMxFp4Group == 0 && codes.size() == out.size() / 2 &&
                     exponents.size() == out.size() / kMxFp4Group,
                 "{} MXFP4 weights take {} bytes of codes and {} exponents, got {} and {}",
                 out.size(), out.size() / 2, out.size() / kMxFp4Group, codes.size(),
                 exponents.size());
  for (size_t i = 0; i < out.size(); i += 2) {
    const float scale = e8m0_to_float(static_cast<uint8_t>(exponents[i / kMxFp4Group]));
    const auto pair = static_cast<uint8_t>(codes[i / 2]);
    out[i] = kE2M1[low(pair)] * scale;
    out[i + 1] = kE2M1[high(pair)] * scale;
  }
}

int64_t find_non_finite(std::span<const float> values) {
  // All finite is the usual case: one pass without branches per slice, then a search where it
  // failed.
  constexpr size_t kSlice = 4096;
  constexpr uint32_t kInfinity = 0x7f800000u;
  for (size_t begin = 0; begin < values.size(); begin += kSlice) {
    const auto slice = values.subspan(begin, std::min(kSlice, values.size() - begin));
    uint32_t largest = 0;
    for (const float value : slice) {
      largest = std::max(largest, std::bit_cast<uint32_t>(value) & 0x7fffffffu);
    }
    if (largest < kInfinity) continue;
    for (size_t i = 0; i < slice.size(); ++i) {
      if ((std::bit_cast<uint32_t>(slice[i]) & 0x7fffffffu) >= kInfinity) {
        return static_cast<int64_t>(begin + i);
      }
    }
  }
  return -1;
}

}  // namespace fovea
