#include "fovea/quality/rate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fovea::quality {
namespace {

TEST(Rate, WilsonIntervalOfKnownCounts) {
  // 5 of 10: (0.5 + 0.19207) / 1.38415 -+ 1.95996 sqrt(0.025 + 0.0096036) / 1.38415
  const Rate half{5, 10};
  EXPECT_DOUBLE_EQ(half.value(), 0.5);
  EXPECT_NEAR(half.low(), 0.236593, 1e-6);
  EXPECT_NEAR(half.high(), 0.763407, 1e-6);
  const Rate all{32, 32};
  EXPECT_NEAR(all.high(), 1.0, 1e-12);
  EXPECT_NEAR(all.low(), 0.892820, 1e-6);  // 1 / (1 + z^2 / 32)
  EXPECT_TRUE(std::isnan(Rate{}.low()));
}

}  // namespace
}  // namespace fovea::quality
