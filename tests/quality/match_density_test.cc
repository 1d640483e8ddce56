#include "fovea/quality/match_density.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

struct Counted {
  MatchedBudget budget;
  int num_measurements = 0;
};
template <typename Measure>
Counted match(double target, const Measure& measure) {
  Counted counted;
  counted.budget = match_density(target, [&](double setting) {
    ++counted.num_measurements;
    return measure(setting);
  });
  return counted;
}

TEST(MatchDensity, TakesTheTargetWhereItHolds) {
  const Counted counted = match(0.0534, [](double setting) { return setting + 0.0009; });
  EXPECT_EQ(counted.num_measurements, 1);
  EXPECT_TRUE(counted.budget.matched);
  EXPECT_EQ(counted.budget.setting, 0.0534);
  EXPECT_DOUBLE_EQ(counted.budget.measured, 0.0543);
}

TEST(MatchDensity, CorrectsWhatForcedBlocksAdd) {
  // Forced blocks add 2 points; and a method whose density is a curve of its setting.
  for (const auto& measure : {+[](double setting) { return 0.02 + 0.98 * setting; },
                              +[](double setting) { return std::pow(setting, 0.7); },
                              +[](double setting) { return setting * setting; }}) {
    for (const double target : {0.03, 0.0534, 0.1, 0.2, 0.5}) {
      const Counted counted = match(target, measure);
      EXPECT_TRUE(counted.budget.matched) << target;
      EXPECT_NEAR(measure(counted.budget.setting), target, kDensityTolerance);
      EXPECT_LE(counted.num_measurements, 7);
    }
  }
}

TEST(MatchDensity, SaysWhereNoBudgetWillDo) {
  const Counted floor = match(0.0534, [](double setting) { return std::max(setting, 0.09); });
  EXPECT_FALSE(floor.budget.matched);
  EXPECT_EQ(floor.budget.measured, 0.09);
  EXPECT_EQ(floor.budget.setting, 0.0534);
  EXPECT_EQ(floor.num_measurements, 2);
  const Counted steps = match(0.15, [](double setting) { return setting < 0.15 ? 0.1 : 0.2; });
  EXPECT_FALSE(steps.budget.matched);
  EXPECT_LE(steps.num_measurements, 7);
}

TEST(MatchDensity, RefusesWhatIsNoDensity) {
  const auto same = [](double setting) { return setting; };
  EXPECT_THROW(match_density(0, same), Error);
  EXPECT_THROW(match_density(1.01, same), Error);
  EXPECT_THROW(match_density(std::numeric_limits<double>::quiet_NaN(), same), Error);
}

}  // namespace
}  // namespace fovea::quality
