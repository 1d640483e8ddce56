#include "fovea/model_io/quantized.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/model_io/expect_error.h"

namespace fovea {
namespace {

std::vector<std::byte> from_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::optional<WeightType> type_of_name(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(WeightType::kMxFp4); ++i) {
    const auto type = static_cast<WeightType>(i);
    if (weight_type_name(type) == name) return type;
  }
  return std::nullopt;
}

// tests/golden/quantized.json: random packs, unpacked by the Python package gguf
// (tests/golden/make_quantized.py). Both sides compute in f32, in the same order: bits must agree.
TEST(Quantized, AgreesWithGoldenValues) {
  std::ifstream stream("tests/golden/quantized.json");
  const nlohmann::json golden = nlohmann::json::parse(stream);
  ASSERT_EQ(golden.size(), 11u);
  for (const auto& [name, entry] : golden.items()) {
    const auto type = type_of_name(name);
    ASSERT_TRUE(type.has_value()) << name;
    const auto packed = from_hex(entry["bytes"].get<std::string>());
    const auto expected_bytes = from_hex(entry["f32"].get<std::string>());
    std::vector<float> expected(expected_bytes.size() / 4);
    std::memcpy(expected.data(), expected_bytes.data(), expected_bytes.size());
    ASSERT_GE(expected.size(), 64u) << name;
    std::vector<float> values(expected.size(), -1.0f);
    dequantize(*type, packed, values);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], expected[i]) << name << " " << i;
  }
}

TEST(Quantized, Mxfp4OfSafetensors) {
  // Codes 0 ... 15 twice, two in a byte, the first in the low bits; exponents 127 is 1, 126 is 1/2.
  std::vector<std::byte> codes;
  for (int i = 0; i < 32; ++i) codes.push_back(static_cast<std::byte>(0x10 + 0x22 * (i % 8)));
  std::vector<std::byte> exponents = {std::byte{127}, std::byte{126}};
  std::vector<float> values(64);
  dequantize_mxfp4(codes, exponents, values);
  const float steps[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (size_t i = 0; i < 64; ++i) {
    const float sign = i % 16 < 8 ? 1.0f : -1.0f;
    EXPECT_EQ(values[i], sign * steps[i % 8] * (i < 32 ? 1.0f : 0.5f)) << i;
  }
  exponents = {std::byte{0}, std::byte{255}};
  dequantize_mxfp4(codes, exponents, values);
  EXPECT_EQ(values[2], 0x1p-127f);
  EXPECT_EQ(find_non_finite(values), 32);
  EXPECT_THROW(dequantize_mxfp4(codes, exponents, std::span(values).first(32)), Error);
  EXPECT_THROW(dequantize_mxfp4(codes, {}, values), Error);
}

TEST(Quantized, TypesOfTheTableAreInOrder) {
  EXPECT_EQ(weight_type_name(WeightType::kF64), "F64");
  EXPECT_EQ(weight_type_name(WeightType::kBool), "BOOL");
  EXPECT_EQ(weight_type_name(WeightType::kQ6_K), "Q6_K");
  EXPECT_EQ(weight_type_name(WeightType::kMxFp4), "MXFP4");
  EXPECT_EQ(pack_bytes(WeightType::kF8E4M3), 1);
  for (const uint32_t number :
       {0u, 1u, 2u, 3u, 6u, 7u, 8u, 12u, 13u, 14u, 24u, 25u, 26u, 27u, 28u, 30u}) {
    ASSERT_TRUE(weight_type_from_gguf(number).has_value()) << number;
  }
  EXPECT_EQ(weight_type_from_gguf(30), WeightType::kBF16);
  EXPECT_EQ(weight_type_from_gguf(12), WeightType::kQ4_K);
  EXPECT_EQ(weight_type_from_safetensors("I64"), WeightType::kI64);
  EXPECT_FALSE(weight_type_from_safetensors("Q4_0").has_value());
  EXPECT_FALSE(weight_type_from_safetensors("F4").has_value());
}

TEST(Quantized, EveryHalfAgreesWithItsDefinition) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const std::byte bytes[2] = {static_cast<std::byte>(bits & 0xff),
                                static_cast<std::byte>(bits >> 8)};
    float value = 0.0f;
    dequantize(WeightType::kF16, bytes, {&value, 1});
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const int fraction = static_cast<int>(bits & 1023);
    const float sign = (bits & 0x8000u) != 0 ? -1.0f : 1.0f;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), fraction != 0) << bits;
      EXPECT_EQ(std::isinf(value), fraction == 0) << bits;
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      ASSERT_EQ(value, sign * static_cast<float>(magnitude)) << bits;
    }
    EXPECT_EQ(std::signbit(value), sign < 0) << bits;
  }
}

TEST(Quantized, EveryF8E4M3AgreesWithItsDefinition) {
  for (uint32_t bits = 0; bits < 256u; ++bits) {
    const auto byte = static_cast<std::byte>(bits);
    float value = 0.0f;
    dequantize(WeightType::kF8E4M3, {&byte, 1}, {&value, 1});
    const int exponent = static_cast<int>((bits >> 3) & 15);
    const int fraction = static_cast<int>(bits & 7);
    if (exponent == 15 && fraction == 7) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    ASSERT_EQ(value, static_cast<float>((bits & 0x80u) != 0 ? -magnitude : magnitude)) << bits;
  }
}

TEST(Quantized, RefusesSizesThatDoNotFit) {
  std::vector<std::byte> bytes(34);
  std::vector<float> values(32);
  dequantize(WeightType::kQ8_0, bytes, values);
  dequantize(WeightType::kQ8_0, {}, {});
  expect_error(ErrorCode::kInvalidArgument, "take 34 bytes, got 33",
               [&] { dequantize(WeightType::kQ8_0, std::span(bytes).first(33), values); });
  expect_error(ErrorCode::kInvalidArgument, "31 weights of type Q8_0 do not fill packs of 32",
               [&] { dequantize(WeightType::kQ8_0, bytes, std::span(values).first(31)); });
  expect_error(ErrorCode::kUnsupported, "type I32 holds no weights", [&] {
    dequantize(WeightType::kI32, std::span(bytes).first(4), std::span(values).first(1));
  });
  expect_error(ErrorCode::kInvalidArgument, "overflows 64 bits",
               [] { weight_bytes(WeightType::kF64, std::numeric_limits<int64_t>::max()); });
}

TEST(Quantized, FindsTheFirstNonFinite) {
  std::vector<float> values(10'000, std::numeric_limits<float>::max());
  EXPECT_EQ(find_non_finite(values), -1);
  EXPECT_EQ(find_non_finite({}), -1);
  values[9'999] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(find_non_finite(values), 9'999);
  values[4'097] = -std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(find_non_finite(values), 4'097);
}

}  // namespace
}  // namespace fovea
