#include "fovea/quality/score_text.h"

#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::quality {
namespace {

double score(Scoring scoring, std::string_view text, const std::vector<std::string>& answers) {
  return score_text(scoring, text, answers);
}

TEST(ScoreText, FindsReferencesWhateverTheirCase) {
  const std::vector<std::string> answers = {"Apple", "12345"};
  EXPECT_EQ(score(Scoring::kAllFound, "An apple and 12345.", answers), 1);
  EXPECT_EQ(score(Scoring::kAllFound, "an APPLE", answers), 0.5);
  EXPECT_EQ(score(Scoring::kAllFound, "1234", answers), 0);
  EXPECT_EQ(score(Scoring::kAnyFound, "x12345y", answers), 1);
  EXPECT_EQ(score(Scoring::kAnyFound, "", answers), 0);
}

TEST(ScoreText, TakesTheFirstNumberOrTheLastWord) {
  EXPECT_EQ(score(Scoring::kFirstNumber, " is 71432, not 5.", {"71432"}), 1);
  EXPECT_EQ(score(Scoring::kFirstNumber, "5 or 71432", {"71432"}), 0);
  EXPECT_EQ(score(Scoring::kFirstNumber, "714321", {"71432"}), 0);
  EXPECT_EQ(score(Scoring::kFirstNumber, "The number is 12.5.", {"12.5"}), 1);
  EXPECT_EQ(score(Scoring::kFirstNumber, "none", {"1"}), 0);
  EXPECT_EQ(score(Scoring::kLastNumber, "f(3) returns: -17.\n", {"-17"}), 1);
  EXPECT_EQ(score(Scoring::kLastNumber, "-17 it is", {"-17"}), 0);
  EXPECT_EQ(score(Scoring::kLastNumber, "", {"-17"}), 0);
}

TEST(ScoreText, FindsWholeWordsOnly) {
  EXPECT_EQ(score(Scoring::kWordFound, "{\"key\": \"ab-12\"}", {"ab-12"}), 1);
  EXPECT_EQ(score(Scoring::kWordFound, "It is Frank!", {"FRANK"}), 1);
  EXPECT_EQ(score(Scoring::kWordFound, "It is Frankie!", {"FRANK"}), 0);
}

TEST(ScoreText, WordF1IsSymmetricAndForgivesArticles) {
  EXPECT_EQ(score(Scoring::kWordF1, "The old house.", {"an old house"}), 1);
  // said: old house here; answer: old house: p = 2/3, r = 1
  EXPECT_DOUBLE_EQ(score(Scoring::kWordF1, "old house here", {"nothing", "old house"}), 0.8);
  EXPECT_DOUBLE_EQ(score(Scoring::kWordF1, "old old old", {"old house"}), 0.4);
  EXPECT_EQ(score(Scoring::kWordF1, "", {"old house"}), 0);
  EXPECT_EQ(score(Scoring::kWordF1, "the", {"the"}), 0);  // nothing left to compare
}

TEST(ScoreText, RefusesWhatItCannotScore) {
  EXPECT_THROW(score(Scoring::kChoice, "A", {"A"}), Error);
  EXPECT_THROW(score(Scoring::kForced, "A", {"A"}), Error);
  EXPECT_THROW(score(Scoring::kAnyFound, "A", {}), Error);
}

}  // namespace
}  // namespace fovea::quality
