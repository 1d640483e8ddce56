#include "fovea/tensor/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fovea {
namespace {

/// What a code means by the definition: (-1)^s 2^(e - 7) (1 + m / 8), or 2^-6 m / 8 where e is 0.
double definition(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code >= 128 ? -magnitude : magnitude;
}

uint8_t code_of(double value) { return to_float8_e4m3(static_cast<float>(value)).bits; }

TEST(Float8E4M3, EveryCodeMeansWhatItsDefinitionSaysAndSurvivesTheRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const Float8E4M3 value{static_cast<uint8_t>(code)};
    if (std::isnan(definition(code))) {
      EXPECT_TRUE(std::isnan(to_float(value))) << code;
    } else {
      EXPECT_EQ(to_float(value), definition(code)) << code;
      EXPECT_EQ(std::signbit(to_float(value)), code >= 128) << code;
    }
    EXPECT_EQ(to_float8_e4m3(to_float(value)), value) << code;
  }
}

TEST(Float8E4M3, RoundsToTheNearestAndHalfWayToTheEvenCode) {
  for (int code = 0; code < 0x7e; ++code) {  // neighbours of one sign, up to 448
    const double low = definition(code), high = definition(code + 1);
    const double middle = (low + high) / 2, step = (high - low) / 1024;
    const int even = code % 2 == 0 ? code : code + 1;
    for (const int sign : {0, 0x80}) {
      const double unit = sign == 0 ? 1 : -1;
      EXPECT_EQ(code_of(unit * middle), sign | even) << code;
      EXPECT_EQ(code_of(unit * (middle - step)), sign | code) << code;
      EXPECT_EQ(code_of(unit * (middle + step)), sign | (code + 1)) << code;
    }
  }
}

TEST(Float8E4M3, SaturatesAndKeepsNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float value : {448.0f, 449.0f, 465.0f, 1e10f, kInfinity}) {
    EXPECT_EQ(to_float(to_float8_e4m3(value)), kMaxFloat8E4M3);
    EXPECT_EQ(to_float(to_float8_e4m3(-value)), -kMaxFloat8E4M3);
  }
  EXPECT_TRUE(std::isnan(to_float(to_float8_e4m3(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(to_float8_e4m3(std::numeric_limits<float>::denorm_min()).bits, 0);
}

}  // namespace
}  // namespace fovea
