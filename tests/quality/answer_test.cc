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
using testing::HasSubstr;
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

TEST_F(NeedleModel, MayGiveTheAnswersOfASetInAnyOrder) {
  Session session(model_);
  Task task = this->task("single", 2048, 1);
  Question& question = task.questions[0];
  const int32_t right = question.answer_tokens.front();
  question.answer_tokens.front() = right + 1;
  EXPECT_THAT(answer_task(session, task).scores, ElementsAre(0));
  question.other_first_tokens = {right};
  EXPECT_THAT(answer_task(session, task).scores, ElementsAre(1));
}

// What a model would write, scored: here the gap that the needle model was trained to fill.
TEST_F(NeedleModel, WritesAnswersAndScoresThem) {
  const Task forced = task("single", 2048, 1);
  Task task = forced;
  task.scoring = Scoring::kAllFound;
  task.tokens.resize(static_cast<size_t>(forced.questions[0].answer_begin));
  task.max_new_tokens = 8;
  task.questions[0].answers.push_back("never said");
  Session session(model_);
  const TaskOutcome outcome = answer_task(session, task);
  EXPECT_THAT(outcome.text, HasSubstr(forced.questions[0].answers[0]));
  EXPECT_THAT(outcome.scores, ElementsAre(0.5));
  task.scoring = Scoring::kAnyFound;
  EXPECT_THAT(answer_task(session, task).scores, ElementsAre(1));
}

TEST_F(NeedleModel, ChoosesTheLetterWithTheLargestLogit) {
  Task task = this->task("single", 1024, 0);
  task.scoring = Scoring::kChoice;
  Session session(model_);
  const std::string best = answer_task(session, task).text;
  for (const std::string letter : {"A", "B", "C", "D"}) {
    task.questions[0].answers = {letter};
    EXPECT_THAT(answer_task(session, task).scores, ElementsAre(letter == best ? 1 : 0));
  }
  session.reset();
  const std::span<const float> logits = session.prefill(task.tokens);
  const auto logit = [&](const std::string& letter) {
    return logits[static_cast<size_t>(encoder()(letter).front())];
  };
  for (const std::string letter : {"A", "B", "C", "D"}) EXPECT_GE(logit(best), logit(letter));
}

}  // namespace
}  // namespace fovea::quality
