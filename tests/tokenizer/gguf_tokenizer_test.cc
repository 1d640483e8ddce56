// Tokenizers from GGUF metadata: SentencePiece vocabularies, defaults of absent fields, hostile
// values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A SentencePiece vocabulary as GGUF fields. Ids: 0 <unk>, 1 <s>, 2 </s>, 3.. the rest.
struct SpmFields {
  std::vector<std::string_view> tokens = {"<unk>",
                                          "<s>",
                                          "</s>",
                                          "a",
                                          "b",
                                          "ab",
                                          "ba",
                                          "\xE2\x96\x81",
                                          "\xE2\x96\x81"
                                          "a",
                                          "<0xE2>",
                                          "<0x82>",
                                          "<tag>",
                                          "<0x0A>"};
  std::vector<float> scores = {0, 0, 0, -1, -2, -4, -3, -5, -6, 0, 0, 0, 0};
  std::vector<int32_t> token_type = {2, 3, 3, 1, 1, 1, 1, 1, 1, 6, 6, 4, 6};

  GgufTokenizerFields fields() const {
    GgufTokenizerFields out;
    out.model = "llama";
    out.tokens = tokens;
    out.scores = scores;
    out.token_type = token_type;
    return out;
  }
};

Tokenizer build(const GgufTokenizerFields& fields) {
  return Tokenizer(tokenizer_data_from_gguf(fields));
}

void expect_error(const GgufTokenizerFields& fields, ErrorCode code, const std::string& part) {
  try {
    build(fields);
    FAIL() << "loaded, expected an error with: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(SpmTokenizer, MergesByScore) {
  const SpmFields spm;
  GgufTokenizerFields fields = spm.fields();
  fields.add_bos_token = false;
  fields.add_space_prefix = false;
  const Tokenizer tokenizer = build(fields);
  EXPECT_THAT(tokenizer.encode("aba"), ElementsAre(3, 6));  // "ba" has the better score
  EXPECT_THAT(tokenizer.encode("abab"), ElementsAre(3, 6, 4));
  EXPECT_THAT(tokenizer.encode("a a"), ElementsAre(3, 8));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a ab")), "a ab");
}

TEST(SpmTokenizer, DefaultsAreBosAndASpaceInFront) {
  const SpmFields spm;
  const Tokenizer tokenizer = build(spm.fields());
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_THAT(tokenizer.encode(""), ElementsAre(1));
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(1, 7, 5));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab")), "ab");
  // After a special token text starts afresh.
  EXPECT_THAT(tokenizer.encode("a<tag>a"), ElementsAre(1, 8, 11, 8));
}

TEST(SpmTokenizer, UnknownCharactersBecomeBytes) {
  const SpmFields spm;
  GgufTokenizerFields fields = spm.fields();
  fields.add_bos_token = false;
  fields.add_space_prefix = false;
  const Tokenizer tokenizer = build(fields);
  // E2 82 AC, of which AC has no byte token.
  EXPECT_THAT(tokenizer.encode("\xE2\x82\xAC\n"), ElementsAre(9, 10, 0, 12));
  EXPECT_THAT(tokenizer.encode("a\xE2\x82"), ElementsAre(3, 9, 10));  // cut short: no byte is lost
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xE2\x82")), "a\xE2\x82");
}

TEST(SpmTokenizer, LongRunsAreEncodedWhole) {
  const SpmFields spm;
  const Tokenizer tokenizer = build(spm.fields());
  for (const std::string unit : {"a", "ab", " ", "\xE2\x82", "<tag>", "<"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    EXPECT_GT(tokenizer.encode(text).size(), 1000u) << unit;
  }
}

TEST(SpmTokenizer, RefusesWhatDisagrees) {
  SpmFields spm;
  spm.scores.pop_back();
  expect_error(spm.fields(), ErrorCode::kInvalidFile, "one score per token, 13, got 12");
  spm.scores.push_back(std::numeric_limits<float>::quiet_NaN());
  expect_error(spm.fields(), ErrorCode::kInvalidFile, "got NaN for token 12");
  spm = {};
  spm.token_type.pop_back();
  expect_error(spm.fields(), ErrorCode::kInvalidFile, "one entry per token, 13, got 12");
  spm.token_type.push_back(77);
  expect_error(spm.fields(), ErrorCode::kInvalidFile, "in [1, 6], got 77 for token 12");
  spm = {};
  GgufTokenizerFields fields = spm.fields();
  fields.eos_token_id = 13;
  expect_error(fields, ErrorCode::kInvalidFile, "eos_token_id must be in [0, 13), got 13");
  fields.eos_token_id = -1;
  expect_error(fields, ErrorCode::kInvalidFile, "eos_token_id must be in [0, 13), got -1");
  fields = spm.fields();
  fields.tokens = {};
  fields.scores = {};
  fields.token_type = {};
  expect_error(fields, ErrorCode::kInvalidFile, "must have tokens");
  fields.model = "bert";
  expect_error(fields, ErrorCode::kUnsupported, "got \"bert\"");
}

TEST(SpmTokenizer, OddVocabulariesLoad) {
  SpmFields spm;
  spm.tokens[3] = "b";  // twice: the later id is the one that text becomes
  spm.tokens[5] = "";
  spm.scores[6] = -std::numeric_limits<float>::infinity();
  GgufTokenizerFields fields = spm.fields();
  fields.add_bos_token = false;
  fields.add_space_prefix = false;
  const Tokenizer tokenizer = build(fields);
  EXPECT_THAT(tokenizer.encode("b"), ElementsAre(4));
  EXPECT_EQ(tokenizer.token_bytes(3), "b");
  EXPECT_EQ(tokenizer.token_bytes(5), "");
}

TEST(GgufBpeTokenizer, ReadsMergesAndRefusesBadOnes) {
  const std::vector<std::string_view> tokens = {"a", "b", "ab", "<|im_end|>"};
  std::vector<std::string_view> merges = {"a b"};
  GgufTokenizerFields fields;
  fields.model = "gpt2";
  fields.pre = "smollm";
  fields.tokens = tokens;
  fields.merges = merges;
  fields.unknown_token_id = 0;
  const Tokenizer tokenizer = build(fields);
  EXPECT_THAT(tokenizer.encode("abza"), ElementsAre(2, 0));
  EXPECT_EQ(tokenizer.bos_id(), -1);
  EXPECT_EQ(tokenizer.eos_id(), -1);
  EXPECT_FALSE(tokenizer.is_eos(-1));
  // An end-of-turn token is a control token even when the file forgets to say so.
  EXPECT_TRUE(tokenizer.is_eos(3));
  EXPECT_TRUE(tokenizer.is_control(3));
  for (const std::string_view bad : {"ab", "", "a", " "}) {
    merges[0] = bad;
    expect_error(fields, ErrorCode::kInvalidFile, "two tokens and a space");
  }
  merges[0] = "a c";
  expect_error(fields, ErrorCode::kInvalidFile, "merges must name tokens of the vocabulary");
  merges[0] = "a b";
  fields.pre = "no-such-pre";
  expect_error(fields, ErrorCode::kUnsupported, "got \"no-such-pre\"");
  fields.pre = "two\nlines\xff";
  expect_error(fields, ErrorCode::kUnsupported, "got \"two?lines?\"");
  fields.pre = "smollm";
  fields.add_bos_token = true;
  expect_error(fields, ErrorCode::kInvalidFile, "needs a bos_token_id");
}

}  // namespace
}  // namespace fovea
