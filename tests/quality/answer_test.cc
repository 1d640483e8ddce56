#include "fovea/quality/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "fovea/base/error.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::quality {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;

// The model that the project carries answers with dense attention, whatever stands around the
// facts.
class NeedleModel : public testing::Test {
 protected:
  NeedleModel() : model_(Model::load("models/needle_7m")), maker_(text(), encoder()) {}
  static std::string text() {
    std::ifstream file("LICENSE");
    const std::string once(std::istreambuf_iterator<char>(file), {});
    return once + once + once;
  }
  EncodeFunction encoder() const {
    return [this](std::string_view part) {
      return model_->tokenizer().encode(part, {.add_bos = false});
    };
  }
  Task task(std::string_view kind, int64_t length, int64_t index) const {
    return maker_.make(kind, {.length = length, .seed = 1, .bos_id = 0}, index, 4);
  }

  std::shared_ptr<const Model> model_;
  TaskMaker maker_;
};

TEST_F(NeedleModel, AnswersEveryQuestionWhenDense) {
  Session session(model_);
  for (int64_t index = 0; index < 4; ++index) {
    const TaskOutcome single = answer_task(session, task("single", 2048, index));
    EXPECT_THAT(single.scores, ElementsAre(1)) << index;
    EXPECT_EQ(single.report.num_tokens, 2047);
  }
  const TaskOutcome eight = answer_task(session, task("eight", 4096, 0));
  EXPECT_THAT(eight.scores, AllOf(SizeIs(8), Each(1)));
}

TEST_F(NeedleModel, CannotAnswerWhatItDoesNotRead) {
  SessionOptions options;
  options.attention.selector.emplace();
  options.attention.selector->method = SelectorMethod::kStreaming;
  options.attention.selector->streaming_sink_tokens = 128;
  options.attention.selector->streaming_local_tokens = 128;
  Session session(model_, options);
  // Facts in the second and third quarter: not in the sink, and further from the question than six
  // layers' windows reach together.
  for (int64_t index = 1; index < 3; ++index) {
    const TaskOutcome outcome = answer_task(session, task("single", 4096, index));
    EXPECT_LT(outcome.report.density(), 0.25);
    EXPECT_THAT(outcome.scores, ElementsAre(0)) << index;
  }
}

}  // namespace
}  // namespace fovea::quality
