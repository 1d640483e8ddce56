#include "fovea/ops/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "fovea/base/error.h"
#include "fovea/ops/sampling_rule.h"

namespace fovea {
namespace {

TEST(Sampling, GreedyTakesTheHighestAndTheLowerIdOnATie) {
  const std::vector<float> logits = {1, 5, 2, 5};
  EXPECT_EQ(argmax(logits), 1);
  EXPECT_EQ(Sampler({}).sample(logits), 1);
}

TEST(Sampling, GreedyFindsTheFirstHighestInALargeVocabulary) {
  std::vector<float> logits(50000, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(argmax(logits), 0);
  logits[49999] = 3;
  EXPECT_EQ(argmax(logits), 49999);
  logits[8192] = 3;
  EXPECT_EQ(argmax(logits), 8192);
  logits[4095] = 3;
  EXPECT_EQ(argmax(logits), 4095);
  logits[30000] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(argmax(logits), 30000);
  logits[45000] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(argmax(logits), Error);
}

TEST(Sampling, RefusesNanAndEmptyLogits) {
  const std::vector<float> logits = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_THROW(argmax(logits), Error);
  EXPECT_THROW(argmax({}), Error);
}

TEST(Sampling, RefusesSettingsOutOfRange) {
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.temperature = std::numeric_limits<float>::quiet_NaN()}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  EXPECT_THROW(Sampler({.top_p = 0}), Error);
  EXPECT_THROW(Sampler({.top_p = 1.5f}), Error);
  EXPECT_THROW(Sampler({.min_p = 2}), Error);
}

TEST(Sampling, DrawsInProportion) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f)};
  Sampler sampler({.temperature = 1, .seed = 7});
  std::map<int32_t, int> counts;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.sample(logits)];
  // Five standard deviations of a binomial count.
  EXPECT_NEAR(counts[0], 0.5 * kDraws, 5 * std::sqrt(kDraws * 0.25));
  EXPECT_NEAR(counts[1], 0.3 * kDraws, 5 * std::sqrt(kDraws * 0.21));
  EXPECT_NEAR(counts[2], 0.2 * kDraws, 5 * std::sqrt(kDraws * 0.16));
}

std::map<int32_t, int> draw(const SamplingSettings& settings, const std::vector<float>& logits) {
  Sampler sampler(settings);
  std::map<int32_t, int> counts;
  for (int i = 0; i < 2000; ++i) ++counts[sampler.sample(logits)];
  return counts;
}

TEST(Sampling, CutsLeaveOnlyWhatTheyShould) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.5f), std::log(0.15f),
                                     std::log(0.25f)};
  EXPECT_EQ(draw({.temperature = 1, .top_k = 2}, logits).size(), 2u);
  EXPECT_EQ(draw({.temperature = 1, .top_k = 2}, logits).count(3), 1u);
  EXPECT_EQ(draw({.temperature = 1, .top_p = 0.7f}, logits).size(), 2u);
  EXPECT_EQ(draw({.temperature = 1, .top_p = 0.4f}, logits).size(), 1u);
  EXPECT_EQ(draw({.temperature = 1, .min_p = 0.25f}, logits).size(), 3u);
  EXPECT_EQ(draw({.temperature = 1}, logits).size(), 4u);
}

TEST(Sampling, WeightsAreExponentialsInWholeNumbers) {
  EXPECT_EQ(sampling_weight(3.f, 3.f, 0.7f), kTopSamplingWeight);
  for (float logit = -20; logit < 5; logit += 0.0371f) {
    const double exact = std::exp((static_cast<double>(logit) - 5) / 0.9);
    const auto weight = static_cast<double>(sampling_weight(logit, 5.f, 0.9f));
    // The exponent is rounded to a float and to 2^-24.
    EXPECT_NEAR(weight / static_cast<double>(kTopSamplingWeight), exact, 2e-6 * exact + 0x1p-40)
        << logit;
  }
  EXPECT_EQ(sampling_weight(-100.f, 0.f, 1.f), 0u);
  EXPECT_EQ(sampling_weight(-std::numeric_limits<float>::infinity(), 0.f, 1.f), 0u);
}

TEST(Sampling, TokensAsProbableAsTheLastOneAreKept) {
  const std::vector<float> logits = {0, 1, 0, 2, 0};
  EXPECT_EQ(draw({.temperature = 1, .top_k = 2}, logits).size(), 2u);
  EXPECT_EQ(draw({.temperature = 1, .top_k = 3}, logits).size(), 5u);
  EXPECT_EQ(draw({.temperature = 1, .top_p = 0.9f}, logits).size(), 5u);
}

TEST(Sampling, AllCutsTogetherInALargeVocabulary) {
  std::vector<float> logits(50000);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = -0.01f * static_cast<float>(i * 7919 % logits.size());  // ids in no order
  }
  // By rank: k = 300 leaves 1 - e^-3 of all; 0.9 of that are 0.855 of all, which 194 reach, of
  // which 139 are within a quarter of the best.
  const auto ranks_of = [&](const SamplingSettings& settings) {
    int most = 0;
    for (const auto& [token, count] : draw(settings, logits)) {
      most = std::max(most, static_cast<int>(-100 * logits[static_cast<size_t>(token)] + 0.5f));
    }
    return most + 1;
  };
  EXPECT_LE(ranks_of({.temperature = 1, .top_k = 300, .top_p = 0.9f}), 194);
  EXPECT_GT(ranks_of({.temperature = 1, .top_k = 300, .top_p = 0.9f}), 180);
  EXPECT_LE(ranks_of({.temperature = 1, .top_k = 300, .top_p = 0.9f, .min_p = 0.25f}), 139);
  EXPECT_GT(ranks_of({.temperature = 1, .top_k = 300, .top_p = 0.9f, .min_p = 0.25f}), 130);
}

TEST(Sampling, TheSeedDecides) {
  const std::vector<float> logits(100, 0.0f);
  Sampler a({.temperature = 1, .seed = 3}), b({.temperature = 1, .seed = 3}),
      c({.temperature = 1, .seed = 4});
  bool differs = false;
  for (int i = 0; i < 20; ++i) {
    const int32_t token = a.sample(logits);
    EXPECT_EQ(token, b.sample(logits));
    differs = differs || token != c.sample(logits);
  }
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace fovea
