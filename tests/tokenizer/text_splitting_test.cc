// The steps before merging: UTF-8 repair, special tokens, pre-tokenizer patterns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/tokenizer/byte_alphabet.h"
#include "fovea/tokenizer/pretokenizer.h"
#include "fovea/tokenizer/special_tokens.h"
#include "fovea/tokenizer/tokenizer_data.h"
#include "fovea/tokenizer/utf8.h"

namespace fovea {
namespace {

using testing::ElementsAre;

std::vector<std::string> pieces(std::string_view pre, std::string_view text) {
  const PreTokenizer pretokenizer(pretokenizer_patterns(pre));
  std::vector<std::string> out;
  size_t begin = 0;
  for (const size_t end : pretokenizer.split(text)) {
    out.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return out;
}

TEST(PreTokenizer, SplitsAsEachFamilyDoes) {
  const std::string_view text = "It's 12345 a_b\n\n  x";
  EXPECT_THAT(pieces("gpt-2", text),
              ElementsAre("It", "'s", " 12345", " a", "_", "b", "\n\n ", " x"));
  EXPECT_THAT(pieces("smollm", text),
              ElementsAre("It", "'s", " ", "1", "2", "3", "4", "5", " a", "_", "b", "\n\n ", " x"));
  EXPECT_THAT(pieces("llama-bpe", text),
              ElementsAre("It", "'s", " ", "123", "45", " a", "_b", "\n\n", " ", " x"));
  EXPECT_THAT(pieces("qwen2", text),
              ElementsAre("It", "'s", " ", "1", "2", "3", "4", "5", " a", "_b", "\n\n", " ", " x"));
  EXPECT_THAT(pieces("gpt-4o", "camelCASE it's"), ElementsAre("camel", "CASE", " it's"));
}

// Where PCRE2 cannot compile to machine code, it interprets; limits must not cut long runs short
// then.
TEST(PreTokenizer, InterpretsWithTheSameResult) {
  for (const std::string_view pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o"}) {
    std::vector<std::string> interpreted = pretokenizer_patterns(pre);
    for (std::string& pattern : interpreted) pattern.insert(0, "(*NO_JIT)");
    for (const std::string_view unit :
         {"a", "A", " ", "\n", " \n", "7", "!", "\xE6\x97\xA5", "aB"}) {
      std::string text;
      while (text.size() < (1 << 18)) text += unit;
      text += "x 'll";
      EXPECT_EQ(PreTokenizer(interpreted).split(text),
                PreTokenizer(pretokenizer_patterns(pre)).split(text))
          << pre << " " << unit;
    }
  }
}

TEST(PreTokenizer, EmptyTextHasNoPieces) { EXPECT_TRUE(pieces("gpt-2", "").empty()); }

TEST(PreTokenizer, MongolianVowelSeparatorIsNoSpace) {
  EXPECT_THAT(pieces("gpt-2",
                     "a\xE1\xA0\x8E\xE1\xA0\x8E"
                     "b"),
              ElementsAre("a", "\xE1\xA0\x8E\xE1\xA0\x8E", "b"));
}

TEST(PreTokenizer, SurrogatesStayWhole) {
  EXPECT_THAT(pieces("gpt-2",
                     "a\xED\xA0\x80\xED\xBF\xBF"
                     "b"),
              ElementsAre("a", "\xED\xA0\x80\xED\xBF\xBF", "b"));
}

std::vector<std::string> fragments(const std::vector<std::string>& specials,
                                   std::string_view text) {
  TokenizerData data;
  data.tokens = specials;
  data.types.assign(specials.size(), TokenType::kUserDefined);
  std::vector<std::string> out;
  for (const TextFragment& fragment : SpecialTokens(data).split(text, false)) {
    const std::string part(text.substr(fragment.begin, fragment.end - fragment.begin));
    out.push_back(fragment.id < 0 ? part : "[" + part + "]");
  }
  return out;
}

TEST(SpecialTokens, LongestWinsThenLeftmost) {
  EXPECT_THAT(fragments({"ab", "bcd"}, "abcd"), ElementsAre("a", "[bcd]"));
  EXPECT_THAT(fragments({"ab", "bc"}, "abc"), ElementsAre("[ab]", "c"));
  EXPECT_THAT(fragments({"a", "ab", "bcd"}, "abcd"), ElementsAre("[a]", "[bcd]"));
  EXPECT_THAT(fragments({"\n", "\n\n", "\n\n\n"}, "\n\n\n\n\n"), ElementsAre("[\n\n\n]", "[\n\n]"));
  EXPECT_THAT(fragments({"<x>", ""}, "a<x><x"), ElementsAre("a", "[<x>]", "<x"));
  EXPECT_THAT(fragments({}, "abc"), ElementsAre("abc"));
  EXPECT_TRUE(fragments({"a"}, "").empty());
}

TEST(SpecialTokens, ControlTokensNeedToBeAskedFor) {
  TokenizerData data;
  data.tokens = {"<c>", "<u>"};
  data.types = {TokenType::kControl, TokenType::kUserDefined};
  const SpecialTokens specials(data);
  EXPECT_EQ(specials.split("<c><u>", false).front().id, -1);
  EXPECT_EQ(specials.split("<c><u>", false).back().id, 1);
  EXPECT_EQ(specials.split("<c><u>", true).front().id, 0);
}

TEST(Utf8, ClassifiesByTheStandard) {
  const auto kind = [](std::string_view bytes) { return first_utf8_sequence(bytes).kind; };
  for (const char* whole : {"a", "\xC2\x80", "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(kind(whole), Utf8Sequence::kCharacter) << whole;
    EXPECT_EQ(first_utf8_sequence(whole).size, static_cast<int32_t>(std::string(whole).size()));
  }
  for (const char* cut : {"\xC2", "\xE2\x82", "\xF0\x9F\x98", "\xF0"}) {
    EXPECT_EQ(kind(cut), Utf8Sequence::kIncomplete) << cut;
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xE0\x80", "\xED\xA0", "\xF4\x90", "\xF5", "\xFF", "\xE2\x82z"}) {
    EXPECT_EQ(kind(bad), Utf8Sequence::kMalformed) << bad;
  }
}

TEST(Utf8, RepairLeavesWellFormedTextAlone) {
  const std::string text = "caf\xC3\xA9 \xF0\x9F\x98\x80";
  std::string storage;
  const std::string_view repaired = repair_utf8(text, storage);
  EXPECT_EQ(repaired.data(), text.data());
  EXPECT_EQ(repaired, text);
}

TEST(ByteAlphabet, SpellsEveryByteAndBack) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string spelled = alphabet_from_byte(static_cast<uint8_t>(byte));
    EXPECT_EQ(bytes_from_alphabet(spelled), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(alphabet_from_byte(' '), "\xC4\xA0");  // U+0120
  EXPECT_EQ(bytes_from_alphabet("a b"), std::nullopt);
  EXPECT_EQ(bytes_from_alphabet("\xE2\x96\x81"), std::nullopt);
}

}  // namespace
}  // namespace fovea
