#include "apps/cli/parse_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SplitList, TrimsPartsAndRefusesEmptyOnes) {
  EXPECT_THAT(split_list("dense, rescue,witness ", "--attention"),
              ElementsAre("dense", "rescue", "witness"));
  EXPECT_THAT(split_list("", "--attention"), IsEmpty());
  for (const char* text : {",", "a,", ",a", "a,,b", "a, ,b", " "}) {
    try {
      split_list(text, "--attention");
      ADD_FAILURE() << "accepted \"" << text << '"';
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), fmt::format("--attention has an empty entry in \"{}\"", text));
    }
  }
}

TEST(ParseTokens, KnowsUnits) {
  EXPECT_EQ(parse_tokens("4096", "--length"), 4096);
  EXPECT_EQ(parse_tokens("32K", "--length"), 32768);
  EXPECT_EQ(parse_tokens("1m", "--length"), 1048576);
  EXPECT_THAT(parse_tokens_list("1K,2048", "--lengths"), ElementsAre(1024, 2048));
}

TEST(ParseTokens, RangesDouble) {
  EXPECT_THAT(parse_tokens_list("1K..4K", "--lengths"), ElementsAre(1024, 2048, 4096));
  EXPECT_THAT(parse_tokens_list("256,1K..5K", "--lengths"),
              ElementsAre(256, 1024, 2048, 4096, 5120));
  EXPECT_EQ(parse_tokens_list("1..9223372036854775807", "--lengths").size(), 64u);
  for (const char* text : {"4K..1K", "1K..1K", "..4K", "1K..", "1K...2K"}) {
    EXPECT_THROW(parse_tokens_list(text, "--lengths"), Error) << text;
  }
}

TEST(ParsePositiveNumbers, TakesThemOrNamesWhatIsWrong) {
  EXPECT_THAT(parse_positive_numbers("1.5, 0.25,3", "--layer-budgets"), ElementsAre(1.5, 0.25, 3));
  for (const char* text : {"", "0", "-1", "nan", "inf", "1e99", "1,,2", "1x"}) {
    EXPECT_THROW(parse_positive_numbers(text, "--layer-budgets"), Error) << text;
  }
}

TEST(ParseTokens, NamesWhatIsWrong) {
  for (const char* text :
       {"", "0", "-5", "K", "4.5K", "8KB", "99999999999999999999", "9223372036854775807K"}) {
    try {
      parse_tokens(text, "--length");
      ADD_FAILURE() << "accepted \"" << text << '"';
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string("--length")));
      EXPECT_THAT(error.what(), HasSubstr(std::string("\"") + text + '"'));
    }
  }
  EXPECT_THROW(parse_tokens_list(",", "--lengths"), Error);
}

}  // namespace
}  // namespace fovea::cli
