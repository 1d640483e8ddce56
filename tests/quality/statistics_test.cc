#include "fovea/quality/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

TEST(WilsonInterval, KnownValues) {
  const Interval eight_of_ten = wilson_interval(0.8, 10);
  EXPECT_NEAR(eight_of_ten.low, 0.4902, 1e-4);
  EXPECT_NEAR(eight_of_ten.high, 0.9433, 1e-4);
  const Interval none_of_ten = wilson_interval(0, 10);
  EXPECT_EQ(none_of_ten.low, 0);
  EXPECT_NEAR(none_of_ten.high, 0.2775, 1e-4);
  const Interval all_of_200 = wilson_interval(1, 200);
  EXPECT_NEAR(all_of_200.low, 0.9812, 1e-4);
  EXPECT_EQ(all_of_200.high, 1);
  EXPECT_TRUE(std::isnan(wilson_interval(0.5, 0).low));
}

TEST(MeanScore, QuestionsOfOnePromptAreNotIndependent) {
  const PromptScores right(8, 1.0), wrong(8, 0.0);
  const std::vector<PromptScores> alike = {right, wrong, right, wrong};
  const MeanScore clustered = mean_score(alike);
  EXPECT_EQ(clustered.value, 0.5);
  EXPECT_EQ(clustered.num_prompts, 4);
  EXPECT_EQ(clustered.num_questions, 32);
  EXPECT_EQ(clustered.interval.low, wilson_interval(0.5, 4).low);

  const std::vector<PromptScores> mixed(4, PromptScores{1, 0, 1, 0, 1, 0, 1, 0});
  EXPECT_EQ(mean_score(mixed).interval.low, wilson_interval(0.5, 32).low);

  const std::vector<PromptScores> single = {{1}, {0}, {1}, {1}};
  EXPECT_EQ(mean_score(single).value, 0.75);
  EXPECT_NEAR(mean_score(single).interval.high, wilson_interval(0.75, 4).high, 1e-12);
}

TEST(MeanScore, NothingMeasuredIsNotAScore) {
  EXPECT_TRUE(std::isnan(mean_score({}).value));
  EXPECT_TRUE(std::isnan(mean_score({}).interval.high));
}

// `ones` prompts that only a answers, `both` that both do.
PairedValues won(size_t ones, size_t both) {
  PairedValues values;
  values.a.assign(ones + both, 1.0);
  values.b.assign(ones, 0.0);
  values.b.resize(ones + both, 1.0);
  return values;
}

TEST(PairedDifference, HasTheWidthOfTheNormalApproximation) {
  const std::vector<PairedValues> half = {won(200, 200)};
  const Difference difference = paired_difference(half);
  EXPECT_EQ(difference.mean, 0.5);
  EXPECT_EQ(difference.num_prompts, 400);
  EXPECT_EQ(difference.num_differing, 200);
  const double half_width = 1.96 * std::sqrt(0.25 / 400);
  EXPECT_NEAR(difference.interval.low, 0.5 - half_width, 0.003);
  EXPECT_NEAR(difference.interval.high, 0.5 + half_width, 0.003);
  EXPECT_TRUE(difference.significant);
}

TEST(PairedDifference, PairsByPrompt) {
  // Means of .5 on both sides; a wins 20 prompts and loses 20.
  PairedValues values;
  for (int i = 0; i < 40; ++i) {
    values.a.push_back(i % 2);
    values.b.push_back(1 - i % 2);
  }
  const Difference none = paired_difference(std::vector{values});
  EXPECT_EQ(none.mean, 0);
  EXPECT_LT(none.interval.low, -0.2);
  EXPECT_GT(none.interval.high, 0.2);
  EXPECT_FALSE(none.significant);
  // The same means, no prompt differs.
  values.b = values.a;
  const Difference same = paired_difference(std::vector{values});
  EXPECT_EQ(same.interval.low, 0);
  EXPECT_EQ(same.interval.high, 0);
  EXPECT_FALSE(same.significant);
}

TEST(PairedDifference, FewPromptsAreNeverSignificant) {
  EXPECT_FALSE(paired_difference(std::vector{won(5, 0)}).significant);
  EXPECT_TRUE(paired_difference(std::vector{won(6, 0)}).significant);
  // Four of 200: the percentiles alone would exclude zero, a sign test would not.
  const Difference four = paired_difference(std::vector{won(4, 196)});
  EXPECT_GT(four.interval.low, 0);
  EXPECT_FALSE(four.significant);
}

TEST(PairedDifference, TasksWeighTheSame) {
  const std::vector<PairedValues> groups = {won(10, 0), won(0, 90)};
  const Difference difference = paired_difference(groups);
  EXPECT_EQ(difference.mean, 0.5);
  EXPECT_EQ(difference.num_prompts, 100);
  EXPECT_EQ(difference.interval.low, 0.5);  // no group varies within itself
}

TEST(PairedDifference, SameSeedSameBits) {
  std::vector<PairedValues> values(1);
  for (int i = 0; i < 60; ++i) {
    values[0].a.push_back(std::sin(i));
    values[0].b.push_back(std::cos(i));
  }
  const Difference first = paired_difference(values, {.seed = 7});
  const Difference again = paired_difference(values, {.seed = 7});
  const Difference other = paired_difference(values, {.seed = 8, .num_resamples = 500});
  EXPECT_EQ(first.interval.low, again.interval.low);
  EXPECT_EQ(first.interval.high, again.interval.high);
  EXPECT_NE(first.interval.low, other.interval.low);
}

TEST(PairedDifference, OnePromptHasNoInterval) {
  const Difference single = paired_difference(std::vector{won(10, 0), won(1, 0)});
  EXPECT_EQ(single.mean, 1);
  EXPECT_TRUE(std::isnan(single.interval.low));
  EXPECT_FALSE(single.significant);
}

TEST(PairedDifference, RefusesWhatIsNotPaired) {
  PairedValues values = won(3, 3);
  values.b.pop_back();
  EXPECT_THROW(paired_difference(std::vector{values}), Error);
  EXPECT_THROW(paired_difference(std::vector{won(3, 3)}, {.num_resamples = 0}), Error);
  EXPECT_TRUE(std::isnan(paired_difference({}).mean));
}

}  // namespace
}  // namespace fovea::quality
