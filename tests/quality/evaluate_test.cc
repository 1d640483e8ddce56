#include "fovea/quality/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "fovea/base/error.h"
#include "fovea/tokenizer/tokenizer.h"

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

TEST(NeedleTaskKind, NamesGoBothWays) {
  for (const auto kind :
       {NeedleTaskKind::kSingle, NeedleTaskKind::kLookalike, NeedleTaskKind::kEight}) {
    EXPECT_EQ(parse_task_kind(task_kind_name(kind)), kind);
  }
  EXPECT_THROW(parse_task_kind("triple"), Error);
}

TEST(NeedleTaskKind, LookalikesStandEvery256Tokens) {
  EXPECT_EQ(needle_settings(NeedleTaskKind::kSingle, 32768, 1, {}).num_distractors, 0);
  EXPECT_EQ(needle_settings(NeedleTaskKind::kLookalike, 32768, 1, {}).num_distractors, 127);
  EXPECT_EQ(needle_settings(NeedleTaskKind::kEight, 32768, 1, {}).num_distractors, 120);
  EXPECT_EQ(needle_settings(NeedleTaskKind::kEight, 1024, 1, {}).num_distractors, 0);
}

// The model that the project carries answers with dense attention, whatever stands around the
// facts.
class NeedleModel : public testing::Test {
 protected:
  NeedleModel() : model_(Model::load("models/needle_7m")) {
    std::ifstream file("LICENSE");
    text_.assign(std::istreambuf_iterator<char>(file), {});
    for (int i = 0; i < 3; ++i) {
      for (const int32_t token : encode(text_)) filler_.push_back(token);
    }
  }
  std::vector<int32_t> encode(std::string_view text) const {
    return model_->tokenizer().encode(text, {.add_bos = false, .parse_special = false});
  }
  NeedleTask task(NeedleTaskKind kind, int64_t length, int64_t index) const {
    const EncodeFunction encoder = [this](std::string_view text) { return encode(text); };
    return make_needle_task(needle_settings(kind, length, 1, 0), index, 4, filler_,
                            needle_names(text_, encoder), encoder);
  }

  std::shared_ptr<const Model> model_;
  std::string text_;
  std::vector<int32_t> filler_;
};

TEST_F(NeedleModel, AnswersEveryQuestionWhenDense) {
  Session session(model_);
  for (int64_t index = 0; index < 4; ++index) {
    const TaskOutcome single = answer_task(session, task(NeedleTaskKind::kSingle, 2048, index));
    EXPECT_EQ(single.right, std::vector<bool>{true}) << index;
    EXPECT_EQ(single.report.num_tokens, 2047);
  }
  const TaskOutcome eight = answer_task(session, task(NeedleTaskKind::kEight, 4096, 0));
  EXPECT_EQ(eight.right, std::vector<bool>(8, true));
}

TEST_F(NeedleModel, CannotAnswerWhatItDoesNotRead) {
  SessionOptions options;
  options.attention.selector.emplace();
  options.attention.selector->method = SelectorMethod::kStreaming;
  options.attention.selector->streaming_sink_tokens = 128;
  options.attention.selector->streaming_local_tokens = 128;
  Session session(model_, options);
  int64_t num_right = 0;
  // Facts in the second and third quarter: not in the sink, and further from the question than six
  // layers' windows reach together.
  for (int64_t index = 1; index < 3; ++index) {
    const TaskOutcome outcome = answer_task(session, task(NeedleTaskKind::kSingle, 4096, index));
    EXPECT_LT(outcome.report.density(), 0.25);
    num_right += outcome.right[0] ? 1 : 0;
  }
  EXPECT_EQ(num_right, 0);
}

}  // namespace
}  // namespace fovea::quality
