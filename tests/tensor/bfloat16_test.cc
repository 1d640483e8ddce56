#include "fovea/tensor/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fovea {
namespace {

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(1.0f + 1.0f / 256).bits, 0x3f80);  // half way, to even
  EXPECT_EQ(to_bfloat16(1.0f + 3.0f / 256).bits, 0x3f82);  // half way, to even
  EXPECT_EQ(to_bfloat16(1.0f + 1.1f / 256).bits, 0x3f81);
  EXPECT_TRUE(std::isinf(to_float(to_bfloat16(std::numeric_limits<float>::max()))));
}

TEST(BFloat16, EveryBitPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    const float wide = to_float(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(wide))));
    } else {
      EXPECT_EQ(to_bfloat16(wide), value);
    }
  }
}

}  // namespace
}  // namespace fovea
