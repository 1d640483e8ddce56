#include "apps/cli/bench.h"

#include <gtest/gtest.h>

#include <cmath>

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
