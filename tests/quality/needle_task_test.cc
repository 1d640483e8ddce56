#include "fovea/quality/needle_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A toy tokenizer: a byte is a token, except that " apple", " grape" and " melon" are one each.
std::vector<int32_t> encode(std::string_view text) {
  std::vector<int32_t> tokens;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, 6);
    const int32_t id = word == " apple"   ? 300
                       : word == " grape" ? 301
                       : word == " melon" ? 302
                                          : -1;
    tokens.push_back(id >= 0 ? id : static_cast<unsigned char>(text[0]));
    text.remove_prefix(id >= 0 ? 6 : 1);
  }
  return tokens;
}

const std::vector<std::string> kNames = {"apple", "grape", "melon"};

std::vector<int32_t> filler_tokens(int64_t count) {
  std::vector<int32_t> filler(static_cast<size_t>(count));
  std::iota(filler.begin(), filler.end(), 1000);
  return filler;
}

int64_t occurrences(const std::vector<int32_t>& in, const std::vector<int32_t>& of) {
  int64_t count = 0;
  for (auto at = in.begin();; ++at) {
    at = std::search(at, in.end(), of.begin(), of.end());
    if (at == in.end()) return count;
    ++count;
  }
}

TEST(NeedleNames, KeepsLowerCaseWordsOfOneToken) {
  const std::string text = "an apple (not grape) or Melon melon, apple pear grape_x x grape.";
  EXPECT_THAT(needle_names(text, encode), ElementsAre("apple", "grape", "melon"));
  EXPECT_THAT(needle_names("grape_x apples", encode), ElementsAre());
}

bool ends_with(std::span<const int32_t> tokens, const std::vector<int32_t>& end) {
  return tokens.size() >= end.size() && std::equal(end.rbegin(), end.rend(), tokens.rbegin());
}

TEST(NeedleTask, HasTheLengthTheFactOnceAndTheQuestionLast) {
  const auto filler = filler_tokens(5000);
  for (int64_t index = 0; index < 8; ++index) {
    const Task task =
        make_needle_task({.length = 1000, .bos_id = 7}, index, 8, filler, kNames, encode);
    ASSERT_EQ(task.questions.size(), 1u);
    const Question& question = task.questions[0];
    EXPECT_EQ(task.tokens.size(), 1000u);
    EXPECT_EQ(task.tokens.front(), 7);
    EXPECT_EQ(occurrences(task.tokens, encode(question.fact)), 1);
    EXPECT_TRUE(ends_with(task.prompt(), encode(question.text + " ")));
    EXPECT_TRUE(ends_with(task.tokens, encode(question.text + " " + question.answers[0])));
    EXPECT_THAT(question.fact, HasSubstr(question.answers[0]));
    EXPECT_EQ(question.answers[0].size(), 5u);
    EXPECT_GE(question.depth, 0.97 * static_cast<double>(index) / 8);
    EXPECT_LT(question.depth, 0.97 * static_cast<double>(index + 1) / 8);
  }
}

TEST(NeedleTask, AnswersStandWhereTheQuestionsSay) {
  const Task task = make_needle_task({.length = 2000, .num_questions = 3, .num_distractors = 5}, 0,
                                     1, filler_tokens(5000), kNames, encode);
  ASSERT_EQ(task.questions.size(), 3u);
  EXPECT_EQ(task.tokens.size(), 2000u);
  for (const Question& question : task.questions) {
    EXPECT_EQ(occurrences(task.tokens, encode(question.fact)), 1);
    const auto at = static_cast<size_t>(question.answer_begin);
    EXPECT_TRUE(std::equal(question.answer_tokens.begin(), question.answer_tokens.end(),
                           task.tokens.begin() + static_cast<ptrdiff_t>(at)));
    EXPECT_TRUE(ends_with(std::span(task.tokens).first(at), encode(question.text + " ")));
  }
}

TEST(NeedleTask, LeavesTheFillerInOrder) {
  const Task task = make_needle_task({.length = 400, .num_distractors = 2}, 1, 2,
                                     filler_tokens(5000), kNames, encode);
  std::vector<int32_t> kept;
  std::copy_if(task.tokens.begin(), task.tokens.end(), std::back_inserter(kept),
               [](int32_t token) { return token >= 1000; });
  ASSERT_GT(kept.size(), 200u);
  for (size_t i = 1; i < kept.size(); ++i) EXPECT_EQ(kept[i], kept[i - 1] + 1);
}

TEST(NeedleTask, DistractorsHaveTheSameFormAndShareNames) {
  const Task task = make_needle_task({.length = 1500, .num_distractors = 11}, 0, 1,
                                     filler_tokens(2000), kNames, encode);
  EXPECT_EQ(occurrences(task.tokens, encode(" code of")), 13);  // twelve facts and the question
  EXPECT_EQ(occurrences(task.tokens, encode(task.questions[0].fact)), 1);
  EXPECT_EQ(occurrences(task.tokens, {300}) + occurrences(task.tokens, {301}) +
                occurrences(task.tokens, {302}),
            13);
}

TEST(NeedleTask, DependsOnSeedAndIndexAlone) {
  const auto filler = filler_tokens(5000);
  const Task a = make_needle_task({.length = 500, .seed = 3}, 1, 4, filler, kNames, encode);
  const Task b = make_needle_task({.length = 500, .seed = 3}, 1, 4, filler, kNames, encode);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_NE(a.tokens,
            make_needle_task({.length = 500, .seed = 3}, 2, 4, filler, kNames, encode).tokens);
  EXPECT_NE(a.tokens,
            make_needle_task({.length = 500, .seed = 4}, 1, 4, filler, kNames, encode).tokens);
}

std::string error_of(const NeedleSettings& settings, int64_t index, int64_t num_tasks,
                     int64_t num_filler) {
  try {
    make_needle_task(settings, index, num_tasks, filler_tokens(num_filler), kNames, encode);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(NeedleTask, RefusesWhatDoesNotFit) {
  EXPECT_THAT(error_of({.length = 20}, 0, 1, 5000), HasSubstr("20 tokens has no room"));
  EXPECT_THAT(error_of({.length = 9000}, 0, 1, 5000), HasSubstr("the text has 5000 tokens"));
  EXPECT_THAT(error_of({.length = 900, .num_distractors = 72}, 0, 1, 5000),
              HasSubstr("73 facts need more names than the 3"));
  EXPECT_THAT(error_of({.length = 900, .num_questions = 0}, 0, 1, 5000),
              HasSubstr("num_questions must be positive, is 0"));
  EXPECT_THAT(error_of({.length = 900, .num_distractors = INT64_MAX}, 0, 1, 5000),
              HasSubstr("overflows"));
  EXPECT_THAT(error_of({.length = 900}, 2, 2, 5000), HasSubstr("task 2 is not one of 2"));
}

TEST(NeedleAnswer, AsksForTheDigitsAndNoMore) {
  EXPECT_TRUE(is_needle_answer(" 12345.", "12345"));
  EXPECT_TRUE(is_needle_answer("12345", "12345"));
  EXPECT_FALSE(is_needle_answer(" 123456.", "12345"));
  EXPECT_FALSE(is_needle_answer(" 1234", "12345"));
  EXPECT_FALSE(is_needle_answer(" is 12345.", "12345"));
  EXPECT_FALSE(is_needle_answer("", "12345"));
}

}  // namespace
}  // namespace fovea::quality
