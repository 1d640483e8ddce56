#include "fovea/quality/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

using testing::ElementsAre;

// A reading of `count` positions whose token i is i, with one log-probability.
std::vector<TokenScore> reading(int32_t count, float logprob) {
  std::vector<TokenScore> scores(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    scores[static_cast<size_t>(i)].best_token = i;
    scores[static_cast<size_t>(i)].target_logprob = logprob;
  }
  return scores;
}

TEST(CompareScores, CountsByPositionAndBlock) {
  const auto dense = reading(150, -2);
  auto other = reading(150, -2.5f);
  other[10].best_token = -1;  // before the first position: not looked at
  other[22].best_token = -1;  // the first block's, as 22 = 20 + 2
  other[149].best_token = -1;
  other[149].target_logprob = -4.5f;
  const Agreement result = compare_scores(dense, other, 20);
  EXPECT_EQ(result.num_positions, 130);
  EXPECT_DOUBLE_EQ(result.agreement, 128.0 / 130);
  EXPECT_DOUBLE_EQ(result.nll, 2);
  EXPECT_DOUBLE_EQ(result.perplexity(), std::exp(2.0));
  EXPECT_NEAR(result.nll_increase, (129 * 0.5 + 2.5) / 130, 1e-12);
  EXPECT_EQ(result.position_nll_increase.size(), 130u);
  EXPECT_EQ(result.position_nll_increase.back(), 2.5f);
  ASSERT_EQ(result.blocks.size(), 3u);
  EXPECT_EQ(result.blocks[0].num_positions, 64);
  EXPECT_DOUBLE_EQ(result.blocks[0].agreement, 63.0 / 64);
  EXPECT_DOUBLE_EQ(result.blocks[1].agreement, 1);
  EXPECT_DOUBLE_EQ(result.blocks[1].nll_increase, 0.5);
  EXPECT_EQ(result.blocks[2].num_positions, 2);
  EXPECT_DOUBLE_EQ(result.blocks[2].agreement, 0.5);
  EXPECT_DOUBLE_EQ(result.blocks[2].nll_increase, 1.5);
}

TEST(CompareScores, RefusesWhatCannotBeCompared) {
  const auto scores = reading(10, -1);
  EXPECT_THROW(compare_scores(scores, std::span(scores).first(9)), Error);
  EXPECT_THROW(compare_scores(scores, scores, 10), Error);
  EXPECT_THROW(compare_scores({}, {}), Error);
  EXPECT_THROW(join_agreements({}), Error);
}

TEST(JoinAgreements, WeighsByPositions) {
  const auto dense = reading(64, -1);
  const auto worse = reading(64, -2);
  const std::vector<Agreement> parts = {compare_scores(dense, dense),
                                        compare_scores(dense, worse, 32)};
  const Agreement joined = join_agreements(parts);
  EXPECT_EQ(joined.num_positions, 96);
  EXPECT_NEAR(joined.nll_increase, 1.0 / 3, 1e-12);
  EXPECT_DOUBLE_EQ(joined.agreement, 1);
  EXPECT_EQ(joined.blocks.size(), 2u);
  EXPECT_EQ(joined.position_nll_increase.size(), 96u);
}

TEST(TextWindows, SpreadOverTheText) {
  std::vector<int32_t> text(10);
  std::iota(text.begin(), text.end(), 0);
  EXPECT_THAT(text_windows(text, 4, 2, std::nullopt),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(6, 7, 8, 9)));
  EXPECT_THAT(
      text_windows(text, 4, 3, 99),
      ElementsAre(ElementsAre(99, 0, 1, 2), ElementsAre(99, 3, 4, 5), ElementsAre(99, 7, 8, 9)));
  EXPECT_THAT(text_windows(text, 10, 1, std::nullopt), ElementsAre(text));
  EXPECT_THROW(text_windows(text, 11, 1, std::nullopt), Error);
  EXPECT_THROW(text_windows(text, 4, 0, std::nullopt), Error);
  EXPECT_THROW(text_windows(text, 1, 1, 99), Error);
}

// Attention that reads everything by way of a selection agrees with dense attention throughout, one
// that reads little does not.
TEST(Agreement, OfReadingsOfTheNeedleModel) {
  ModelOptions f32;
  f32.compute = ComputeType::kF32;
  const auto model = Model::load("models/needle_7m", f32);
  std::vector<int32_t> tokens(2048);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 4000);
  const auto scores_of = [&](std::optional<SelectorMethod> method) {
    SessionOptions options;
    options.attention.min_sparse_len = 0;
    if (method) options.attention.selector.emplace().method = *method;
    if (method) options.attention.selector->streaming_local_tokens = 128;
    return Session(model, options).score(tokens);
  };
  const auto dense = scores_of(std::nullopt);
  const Agreement all = compare_scores(dense, scores_of(SelectorMethod::kAll), 1024);
  EXPECT_EQ(all.num_positions, 1023);
  EXPECT_EQ(all.agreement, 1);
  EXPECT_NEAR(all.nll_increase, 0, 1e-4);
  const Agreement streaming = compare_scores(dense, scores_of(SelectorMethod::kStreaming), 1024);
  EXPECT_LT(streaming.agreement, 1);
  EXPECT_GT(std::abs(streaming.nll_increase), 1e-4);
}

}  // namespace
}  // namespace fovea::quality
