#include "fovea/quality/layer_losses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

using testing::Each;
using testing::FloatNear;

// Losses that fall as `scale` times the logarithm of the density, to nothing at 1.
std::vector<double> falling(const std::vector<double>& densities, double scale) {
  std::vector<double> loss;
  for (const double density : densities) loss.push_back(-scale * std::log(density));
  return loss;
}

double mean(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST(SpreadDensity, LayersAlikeGetTheSame) {
  LayerLosses losses;
  losses.densities = {0.02, 0.1, 0.4};
  losses.loss.assign(4, falling(losses.densities, 1));
  // Within one step of the logarithm, 6 %.
  EXPECT_THAT(spread_density(losses, 0.1), Each(FloatNear(1, 0.07f)));
}

TEST(SpreadDensity, IsProportionalToWhatTheLogarithmWeighs) {
  // The sum of -s_i log(d_i) under a given mean is least where d_i is proportional to s_i.
  LayerLosses losses;
  losses.densities = {0.01, 0.1, 0.4};
  for (const double scale : {1.0, 2.0, 6.0}) {
    losses.loss.push_back(falling(losses.densities, scale));
  }
  const std::vector<float> budgets = spread_density(losses, 0.1);
  EXPECT_NEAR(budgets[0], 1.0 / 3, 0.03);
  EXPECT_NEAR(budgets[1], 2.0 / 3, 0.05);
  EXPECT_NEAR(budgets[2], 2, 0.15);
  EXPECT_NEAR(mean(budgets), 1, 1e-5);
}

TEST(SpreadDensity, ALayerThatLosesNothingGetsTheLeast) {
  LayerLosses losses;
  losses.densities = {0.05, 0.2};
  losses.loss = {{0, 0}, falling(losses.densities, 1)};
  const std::vector<float> budgets = spread_density(losses, 0.2);
  EXPECT_NEAR(budgets[0], 0.25, 1e-5);
  EXPECT_NEAR(budgets[1], 1.75, 1e-5);
}

TEST(SpreadDensity, NoiseThatRisesIsTakenAsLevelAndLocalLayersAreLeftOut) {
  LayerLosses losses;
  losses.densities = {0.05, 0.2, 0.5};
  losses.loss = {{0.1, 0.3, 0}, {}, {0.3, 0.3, 0}};
  const std::vector<float> budgets = spread_density(losses, 0.3);
  EXPECT_EQ(budgets[1], 1);
  EXPECT_NEAR(budgets[0], budgets[2], 0.07);  // a step of the logarithm
  EXPECT_NEAR(budgets[0] + budgets[2], 2, 1e-5);
}

TEST(SpreadDensity, ReachesBothEnds) {
  LayerLosses losses;
  losses.densities = {0.05, 0.4};
  losses.loss = {falling(losses.densities, 1), falling(losses.densities, 3)};
  EXPECT_THAT(spread_density(losses, 0.05), Each(FloatNear(1, 1e-5f)));
  EXPECT_THAT(spread_density(losses, 1), Each(FloatNear(1, 1e-5f)));
}

TEST(SpreadDensity, RefusesWhatItCannotSpread) {
  LayerLosses losses;
  EXPECT_THROW(spread_density(losses, 0.1), Error);
  losses.densities = {0.05, 0.4};
  losses.loss = {{}};
  EXPECT_THROW(spread_density(losses, 0.1), Error);  // no layer selects
  losses.loss = {{1, 0.5}};
  EXPECT_THROW(spread_density(losses, 0.04), Error);
  EXPECT_THROW(spread_density(losses, 1.01), Error);
}

}  // namespace
}  // namespace fovea::quality
