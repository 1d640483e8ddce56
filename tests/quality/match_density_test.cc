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
// With a plan that says nothing: that every budget keeps what it is.
template <typename Measure>
Counted match(
    double target, const Measure& measure,
    const DensityOf& plan = [](double setting) { return setting; }) {
  Counted counted;
  counted.budget = match_density(target, plan, [&](double setting) {
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

TEST(MatchDensity, MeasuresOnceWhereThePlanIsRight) {
  const auto measure = [](double setting) { return 0.02 + 0.98 * setting; };
  const Counted without = match(0.1, measure);
  const Counted with = match(0.1, measure, measure);
  EXPECT_GT(without.num_measurements, 1);
  EXPECT_EQ(with.num_measurements, 1);
  EXPECT_EQ(with.budget.setting, without.budget.setting);
  EXPECT_EQ(with.budget.measured, without.budget.measured);
  EXPECT_TRUE(with.budget.matched);
}

TEST(MatchDensity, GoesOnFromAPlanThatIsWrong) {
  const Counted counted = match(
      0.1, [](double setting) { return 0.04 + setting; },
      [](double setting) { return 0.02 + 0.98 * setting; });
  EXPECT_TRUE(counted.budget.matched);
  EXPECT_GT(counted.num_measurements, 1);
}

TEST(MatchDensity, MeasuresOnceWhereThePlanKnowsThatNoBudgetWillDo) {
  const auto measure = [](double setting) { return std::max(setting, 0.09); };
  const Counted known = match(0.03, measure, measure);
  EXPECT_EQ(known.num_measurements, 1);
  EXPECT_FALSE(known.budget.matched);
  EXPECT_EQ(known.budget.measured, 0.09);
  // It is believed only when the first measurement bears it out.
  const Counted wrong = match(
      0.03, [](double setting) { return setting + 0.01; }, measure);
  EXPECT_TRUE(wrong.budget.matched);
  EXPECT_GT(wrong.num_measurements, 1);
}

TEST(MatchDensity, PlansByWhatTheBudgetGivesEachQueryBlock) {
  SelectorSettings settings;
  settings.block_size = 64;
  settings.density = 1;
  EXPECT_EQ(planned_density(settings, 8192), 1);
  settings.density = 0.001f;  // first, previous and own block alone: 1 + 2 + 126 * 3 of 8256
  EXPECT_DOUBLE_EQ(planned_density(settings, 8192), 381.0 / 8256);
  settings.dense_tail_blocks = 1;
  EXPECT_DOUBLE_EQ(planned_density(settings, 8192), (381.0 - 3 + 128) / 8256);
  settings.dense_tail_blocks = 1000;
  EXPECT_EQ(planned_density(settings, 8192), 1);
  settings.dense_tail_blocks = 0;
  settings.local_blocks = 1;
  EXPECT_DOUBLE_EQ(planned_density(settings, 8192), 255.0 / 8256);
  settings.density = 0.2f;
  EXPECT_NEAR(planned_density(settings, 8192), 0.2, 1e-3);
  EXPECT_EQ(planned_density(settings, 8191), planned_density(settings, 8192));
}

TEST(MatchDensity, PlansLayerByLayer) {
  ModelConfig config;
  config.num_layers = 3;
  AttentionSettings settings;
  settings.selector.emplace().density = 0.2f;
  EXPECT_NEAR(planned_density(settings, config, 32768), 0.2, 1e-3);
  settings.layer_budgets = {0.5f, 1, 100};  // the last reads everything
  EXPECT_NEAR(planned_density(settings, config, 32768), (0.1 + 0.2 + 1) / 3, 1e-3);
}

TEST(MatchDensity, ForcedBlocksAreWhatNoBudgetLeavesOut) {
  SelectorSettings settings;
  settings.block_size = 64;
  settings.density = 0.5f;  // does not matter
  EXPECT_DOUBLE_EQ(forced_density(settings, 8192), 381.0 / 8256);
}

TEST(MatchDensity, RefusesWhatIsNoDensity) {
  const auto same = [](double setting) { return setting; };
  EXPECT_THROW(match_density(0, same, same), Error);
  EXPECT_THROW(match_density(1.01, same, same), Error);
  EXPECT_THROW(match_density(std::numeric_limits<double>::quiet_NaN(), same, same), Error);
}

}  // namespace
}  // namespace fovea::quality
