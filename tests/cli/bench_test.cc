#include "apps/cli/bench.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "apps/cli/report_json.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

TEST(CompareLogits, AgreesWithTheDefinition) {
  // Rows: (1/2, 1/2) against (1/4, 3/4), then equal ones that differ by a constant only.
  const std::vector<float> dense = {0.0f, 0.0f, 2.0f, 1.0f};
  const std::vector<float> other = {0.0f, std::log(3.0f), 5.0f, 4.0f};
  const Agreement agreement = compare_logits(dense, other, 2);
  EXPECT_EQ(agreement.num_rows, 2);
  EXPECT_DOUBLE_EQ(agreement.top1_share, 0.5);
  EXPECT_NEAR(agreement.mean_kl, 0.5 * (0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3.0)), 1e-7);
}

TEST(CompareLogits, RefusesRowsThatDoNotFit) {
  const std::vector<float> three(3), four(4);
  EXPECT_THROW(compare_logits(four, three, 2), Error);
  EXPECT_THROW(compare_logits(three, three, 2), Error);
}

TEST(CompareLogits, EndsWhenCancelled) {
  const std::vector<float> logits(4);
  const std::atomic<bool> raised = true, quiet = false;
  EXPECT_THROW(compare_logits(logits, logits, 2, &raised), Cancelled);
  EXPECT_EQ(compare_logits(logits, logits, 2, &quiet).num_rows, 2);
}

TEST(SummaryJson, KeepsFewSamplesAndQuartilesOfMany) {
  std::vector<double> samples;
  for (int i = 16; i > 0; --i) samples.push_back(i);
  nlohmann::json json = summary_json(samples);
  EXPECT_EQ(json["samples"], samples);
  EXPECT_FALSE(json.contains("q1"));
  samples.push_back(0);  // 0 ... 16
  json = summary_json(samples);
  EXPECT_FALSE(json.contains("samples"));
  EXPECT_EQ(json["q1"], 4);
  EXPECT_EQ(json["median"], 8);
  EXPECT_EQ(json["q3"], 12);
  EXPECT_EQ(json["max"], 16);
}

TEST(WindowBegin, GivesEveryPromptItsOwnPlace) {
  EXPECT_EQ(window_begin(1000, 100, 3, 4), 300);
  EXPECT_EQ(window_begin(400, 100, 3, 4), 300);
  // Too short for four of 200: spread so that the first begins and the last ends with the text.
  EXPECT_EQ(window_begin(500, 200, 0, 4), 0);
  EXPECT_EQ(window_begin(500, 200, 1, 4), 100);
  EXPECT_EQ(window_begin(500, 200, 3, 4), 300);
  EXPECT_EQ(window_begin(200, 200, 3, 4), 0);
}

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_THROW(median({}), Error);
}

TEST(PromptHash, TellsPromptsApart) {
  const std::vector<int32_t> a = {1, 2, 3}, b = {1, 3, 2}, c = {1, 2};
  EXPECT_NE(prompt_hash(a), prompt_hash(b));
  EXPECT_NE(prompt_hash(a), prompt_hash(c));
  EXPECT_EQ(prompt_hash(a), prompt_hash(std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(prompt_hash({}), "cbf29ce484222325");
}

}  // namespace
}  // namespace fovea::cli
