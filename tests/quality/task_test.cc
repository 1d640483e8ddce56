#include "fovea/quality/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "fovea/base/error.h"
#include "fovea/engine/model.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::quality {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

// Tasks for the model that the project carries, in a text that it carries as well.
class Tasks : public testing::Test {
 protected:
  static const Tokenizer& tokenizer() {
    static const std::shared_ptr<const Model> model = Model::load("models/needle_7m");
    return model->tokenizer();
  }
  static std::string decode(std::span<const int32_t> tokens) { return tokenizer().decode(tokens); }
  static TaskMaker make_maker() {
    std::ifstream file("LICENSE");
    const std::string once(std::istreambuf_iterator<char>(file), {});
    return TaskMaker(once + once + once, [](std::string_view part) {
      return tokenizer().encode(part, {.add_bos = false});
    });
  }
  static const TaskMaker& maker() {
    static const TaskMaker maker = make_maker();
    return maker;
  }
};

uint64_t hash_of(std::string_view kind, const TaskMaker& maker) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a over the words
  const auto add = [&](uint64_t word) { hash = (hash ^ word) * 1099511628211u; };
  for (int64_t i = 0; i < 3; ++i) {
    const Task task = maker.make(kind, {.length = 4096, .seed = 7, .bos_id = 0}, i, 3);
    for (const int32_t token : task.tokens) add(static_cast<uint64_t>(token));
    for (const Question& question : task.questions) {
      add(static_cast<uint64_t>(question.answer_begin));
    }
  }
  return hash;
}

// Published results name their seed: the same seed must go on to ask the same.
TEST_F(Tasks, OfPublishedResultsStayAsTheyWere) {
  EXPECT_EQ(hash_of("single", maker()), 0x9a0093e11c5dbf3au);
  EXPECT_EQ(hash_of("lookalike", maker()), 0x3c970e4d3506566eu);
  EXPECT_EQ(hash_of("eight", maker()), 0xe76440d76e227264u);
}

// Every kind, asked in both ways.
class EveryKind : public Tasks, public testing::WithParamInterface<std::tuple<std::string, bool>> {
 protected:
  std::string kind() const { return std::get<0>(GetParam()); }
  bool generated() const { return std::get<1>(GetParam()); }
  Task task(int64_t length, uint64_t seed = 1, int64_t index = 0) const {
    return maker().make(
        kind(), {.length = length, .seed = seed, .bos_id = 0, .generated = generated()}, index, 4);
  }
};

TEST_P(EveryKind, HasTheLengthAndItsAnswersWhereItSays) {
  for (const int64_t length : {1024, 5000}) {
    const Task task = this->task(length);
    EXPECT_EQ(task.kind, kind());
    EXPECT_EQ(static_cast<int64_t>(task.tokens.size()) + task.max_new_tokens, length);
    EXPECT_EQ(task.tokens.front(), 0);
    EXPECT_EQ(static_cast<int64_t>(task.questions.size()), questions_per_task(kind(), generated()));
    const std::string text = decode(task.tokens);
    for (const Question& question : task.questions) {
      ASSERT_FALSE(question.answers.empty());
      EXPECT_THAT(text, HasSubstr(question.fact));
      EXPECT_GE(question.depth, 0);
      EXPECT_LE(question.depth, 0.97);
      if (generated()) {
        EXPECT_NE(task.scoring, Scoring::kForced);
        EXPECT_THAT(text, HasSubstr(question.text));
        continue;
      }
      EXPECT_THAT(question.fact, HasSubstr(question.answers[0]));
      const auto before = static_cast<size_t>(question.answer_begin);
      const std::span<const int32_t> tokens = task.tokens;
      EXPECT_EQ(task.scoring, Scoring::kForced);
      EXPECT_EQ(decode(tokens.subspan(before, question.answer_tokens.size())),
                decode(question.answer_tokens));
      EXPECT_THAT(decode(question.answer_tokens), EndsWith(question.answers[0]));
      const std::string asked = decode(tokens.first(before));
      EXPECT_TRUE(asked.ends_with(question.text) || asked.ends_with(question.text + " "))
          << question.text;
    }
  }
}

TEST_P(EveryKind, DependsOnSeedAndIndexAlone) {
  EXPECT_EQ(task(1024, 3, 1).tokens, task(1024, 3, 1).tokens);
  EXPECT_NE(task(1024, 3, 1).tokens, task(1024, 3, 2).tokens);
  EXPECT_NE(task(1024, 3, 1).tokens, task(1024, 4, 1).tokens);
}

TEST_P(EveryKind, RefusesALengthWithoutRoom) { EXPECT_THROW(task(24), Error); }

INSTANTIATE_TEST_SUITE_P(, EveryKind,
                         testing::Combine(testing::ValuesIn(task_kinds()), testing::Bool()),
                         [](const auto& test) {
                           return std::get<0>(test.param) +
                                  (std::get<1>(test.param) ? "_generated" : "_forced");
                         });

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(Tasks, TraceAsksForOneChainAmongOthers) {
  const Task task = maker().make("trace", {.length = 5000, .bos_id = 0}, 0, 1);
  const std::string text = decode(task.tokens);
  ASSERT_EQ(task.questions.size(), 4u);
  EXPECT_EQ(count(text, " Let "), 16);  // a sentence in 256 tokens, four a chain
  for (size_t i = 1; i < 4; ++i) {  // each variable is set to the next one, which stands before it
    EXPECT_THAT(task.questions[i].fact, HasSubstr(" Let " + task.questions[i - 1].answers[0]));
    EXPECT_LT(task.questions[i].depth, task.questions[i - 1].depth);
  }
  EXPECT_EQ(task.questions[3].answers[0].size(), 5u);
}

TEST_F(Tasks, CommonWordsOccurThirtyTimesAndOthersThree) {
  const Task task = maker().make("common_words", {.length = 4096, .bos_id = 0}, 0, 1);
  std::map<std::string, int> counts;
  std::string text = decode(task.tokens);
  for (size_t at = text.find(" Words: "); at != std::string::npos;
       at = text.find(" Words: ", at + 1)) {
    std::istringstream line(text.substr(at + 8, text.find('.', at) - at - 8));
    for (std::string word; line >> word;) ++counts[word];
  }
  ASSERT_GT(counts.size(), 50u);
  std::vector<std::string> asked;
  for (const Question& question : task.questions) asked.push_back(question.answers[0]);
  for (const auto& [word, times] : counts) {
    const bool is_asked = std::find(asked.begin(), asked.end(), word) != asked.end();
    EXPECT_EQ(times, is_asked ? 30 : 3) << word;
  }
  EXPECT_LT(text.find(asked[0]), text.find(asked[1]));
  const auto first_token = [&](size_t i) { return task.questions[i].answer_tokens.front(); };
  EXPECT_THAT(task.questions[0].other_first_tokens, ElementsAre(first_token(1), first_token(2)));
  EXPECT_THAT(task.questions[1].other_first_tokens, ElementsAre(first_token(2)));
  EXPECT_THAT(task.questions[2].other_first_tokens, IsEmpty());
}

TEST_F(Tasks, FrequentWordsAreAskedForInOrder) {
  const Task task = maker().make("frequent_words", {.length = 4096, .bos_id = 0}, 0, 1);
  std::string text = decode(task.tokens);
  std::vector<int64_t> counts;
  for (const Question& question : task.questions) {
    counts.push_back(count(text, " " + question.answers[0]));
  }
  // 1024 words; the share of rank r is r^-2 / zeta(2): 61 %, 15 %, 7 %
  EXPECT_NEAR(static_cast<double>(counts[0]), 622, 5);
  EXPECT_NEAR(static_cast<double>(counts[1]), 155, 5);
  EXPECT_NEAR(static_cast<double>(counts[2]), 69, 5);
}

TEST_F(Tasks, TwoHopsNeedBothSentences) {
  const Task task = maker().make("qa_two_hop", {.length = 4096, .bos_id = 0}, 0, 1);
  const std::string text = decode(task.tokens);
  const Question& question = task.questions[0];
  const std::string fact = question.fact;  // " The unless office is in around."
  const std::string office = fact.substr(5, fact.find(" office") - 5);
  const std::string person = question.text.substr(12, question.text.find(" work?") - 12);
  EXPECT_EQ(count(text, fact), 1);
  EXPECT_EQ(count(text, " " + person + " works for the " + office + " office."), 1);
}

TEST(ChatFrame, StandsAroundTheUsersWords) {
  const auto model = Model::load("models/needle_7m");  // has no chat template
  const PromptFrame frame = chat_frame(model->tokenizer());
  EXPECT_TRUE(frame.before.empty());  // its tokenizer adds no bos
  EXPECT_EQ(model->tokenizer().decode(frame.after), "\n");
}

TEST_F(Tasks, OfAnUnknownKindNameTheKnownOnes) {
  EXPECT_THROW(questions_per_task("triple"), Error);
  try {
    maker().make("triple", {.length = 1024}, 0, 1);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown task \"triple\", use single, lookalike, eight"));
  }
}

}  // namespace
}  // namespace fovea::quality
