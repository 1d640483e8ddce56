// tokenizer.json is a file from strangers: what is odd but valid loads, what is wrong is one clear
// error.
#include "fovea/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "fovea/base/error.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// Three letters, two merges, one control token; everything a file needs and nothing more.
json small_tokenizer() {
  return json::parse(R"({
    "added_tokens": [{"id": 5, "content": "<end>", "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
              "merges": ["a b", "ab c"]}})");
}

TokenizerData parse_json(const json& root) { return parse_tokenizer_json(root.dump(), {}); }

// Expects Error{code} whose message contains `part`.
void expect_error(const std::string& tokenizer, const std::string& config, ErrorCode code,
                  const std::string& part) {
  try {
    const Tokenizer built(parse_tokenizer_json(tokenizer, config));
    FAIL() << "loaded, expected an error with: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(part));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

void expect_invalid(const json& root, const std::string& part) {
  expect_error(root.dump(), {}, ErrorCode::kInvalidFile, part);
}

void expect_unsupported(const json& root, const std::string& part) {
  expect_error(root.dump(), {}, ErrorCode::kUnsupported, part);
}

TEST(TokenizerJson, MergesByRank) {
  const Tokenizer tokenizer(parse_json(small_tokenizer()));
  EXPECT_THAT(tokenizer.encode("abcabca"), ElementsAre(4, 4, 0));
  EXPECT_THAT(tokenizer.encode("ab<end>c", {.parse_special = true}), ElementsAre(3, 5, 2));
}

TEST(TokenizerJson, LeftmostOfEqualRanksMergesFirst) {
  json root = small_tokenizer();
  root["model"]["vocab"] = {{"a", 0}, {"aa", 1}};
  root["model"]["merges"] = json::array({"a a"});
  EXPECT_THAT(Tokenizer(parse_json(root)).encode("aaa"), ElementsAre(1, 0));
}

TEST(TokenizerJson, ReadsMergesAsPairs) {
  json root = small_tokenizer();
  root["model"]["merges"] = json::parse(R"([["a", "b"], ["ab", "c"]])");
  EXPECT_THAT(Tokenizer(parse_json(root)).encode("abc"), ElementsAre(4));
}

TEST(TokenizerJson, IgnoreMergesTakesWholePieces) {
  json root = small_tokenizer();
  root["model"]["merges"] = json::array({"a b"});
  EXPECT_THAT(Tokenizer(parse_json(root)).encode("abc"), ElementsAre(3, 2));
  root["model"]["ignore_merges"] = true;
  EXPECT_THAT(Tokenizer(parse_json(root)).encode("abc"), ElementsAre(4));
}

TEST(TokenizerJson, BytesWithoutTokenAreDroppedOrUnknown) {
  json root = small_tokenizer();
  EXPECT_THAT(Tokenizer(parse_json(root)).encode("axb"), ElementsAre(0, 1));
  root["model"]["unk_token"] = "<end>";
  EXPECT_THAT(Tokenizer(parse_json(root)).encode("axb"), ElementsAre(0, 5, 1));
}

TEST(TokenizerJson, ReadsSplitDigitsAndSequence) {
  json root = small_tokenizer();
  root["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": true},
    {"type": "Split", "pattern": {"String": "a.b"}, "behavior": "Isolated", "invert": false},
    {"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Removed", "invert": true},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}]})");
  const TokenizerData data = parse_json(root);
  ASSERT_EQ(data.patterns.size(), 4u);
  EXPECT_EQ(data.patterns[0], R"(\p{N})");
  EXPECT_EQ(data.patterns[1], R"(a\.b)");
  EXPECT_EQ(data.patterns[2], "[a-z]+");
}

TEST(TokenizerJson, ReadsTheConfigBesideIt) {
  const TokenizerData data = parse_tokenizer_json(small_tokenizer().dump(), R"({
    "bos_token": {"content": "<end>"}, "eos_token": "<end>", "add_bos_token": true,
    "chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": "y"}]})");
  EXPECT_EQ(data.bos_id, 5);
  EXPECT_EQ(data.eos_id, 5);
  EXPECT_TRUE(data.add_bos);
  EXPECT_EQ(data.chat_template, "y");
  EXPECT_THAT(Tokenizer(data).encode(""), ElementsAre(5));
  EXPECT_THAT(Tokenizer(data).encode("a", {.add_bos = false}), ElementsAre(0));
}

TEST(TokenizerJson, ReadsBosFromThePostProcessor) {
  json root = small_tokenizer();
  root["post_processor"] = json::parse(R"({"type": "Sequence", "processors": [
    {"type": "ByteLevel"},
    {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}},
                                              {"Sequence": {"id": "A", "type_id": 0}}]}]})");
  EXPECT_THAT(Tokenizer(parse_json(root)).encode("a"), ElementsAre(5, 0));
}

TEST(TokenizerJson, SparseIdsLeaveHoles) {
  json root = small_tokenizer();
  root["added_tokens"][0]["id"] = 900;
  const Tokenizer tokenizer(parse_json(root));
  EXPECT_EQ(tokenizer.vocab_size(), 901);
  EXPECT_EQ(tokenizer.token_bytes(500), "");
  EXPECT_THAT(tokenizer.encode("a<end>", {.parse_special = true}), ElementsAre(0, 900));
}

TEST(TokenizerJson, RefusesDuplicateKeys) {
  std::string text = small_tokenizer().dump();
  text.replace(text.find(R"("a":0)"), 5, R"("a":0,"a":1)");
  expect_error(text, {}, ErrorCode::kInvalidFile, "'tokenizer.json': duplicate key 'a'");
  expect_error(small_tokenizer().dump(), R"({"bos_token": "a", "bos_token": "b"})",
               ErrorCode::kInvalidFile, "'tokenizer_config.json': duplicate key 'bos_token'");
}

TEST(TokenizerJson, RefusesWhatIsNotJson) {
  for (const std::string text : {"", "{", "nonsense", "{\"model\": \"\xFF\"}", "1e999999"}) {
    expect_error(text, {}, ErrorCode::kInvalidFile, "'tokenizer.json': broken JSON");
  }
  expect_error(small_tokenizer().dump(), "[1, 2", ErrorCode::kInvalidFile,
               "'tokenizer_config.json': broken JSON");
}

TEST(TokenizerJson, RefusesDeepNesting) {
  expect_error(std::string(1'000'000, '['), {}, ErrorCode::kInvalidFile,
               "nested deeper than 32 levels");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"model":)";
  expect_error(objects, {}, ErrorCode::kInvalidFile, "nested deeper than 32 levels");
}

TEST(TokenizerJson, RefusesWrongTypes) {
  for (const char* text :
       {"null", "[]", "7", "{}", R"({"model": 3})", R"({"model": {"vocab": []}})"}) {
    expect_error(text, {}, ErrorCode::kInvalidFile, "must");
  }
  const auto with = [](const char* path, const json& value) {
    json root = small_tokenizer();
    root[json::json_pointer(path)] = value;
    return root;
  };
  expect_invalid(with("/model/vocab", "abc"), "\"vocab\" must be an object");
  expect_invalid(with("/model/vocab/a", "0"), "\"id\" must be an integer");
  expect_invalid(with("/model/vocab/a", 1.5), "\"id\" must be an integer");
  expect_invalid(with("/model/merges", 3), "\"merges\" must be an array");
  expect_invalid(with("/model/merges/0", 3), "\"merges\" must be a string");
  expect_invalid(with("/model/merges/0", json::array({"a", "b", "c"})), "2 parts, got 3");
  expect_invalid(with("/model/merges/0", json::array({"a", 1})), "\"merges\" must be a string");
  expect_invalid(with("/model/merges/0", "ab"), "two tokens and a space");
  expect_invalid(with("/model/merges/0", "a b c"), "two tokens and a space");
  expect_invalid(with("/model/ignore_merges", "yes"), "\"ignore_merges\" must be true or false");
  expect_invalid(with("/model/unk_token", "<unk>"), "must be of the vocabulary, got \"<unk>\"");
  expect_invalid(with("/added_tokens", 3), "\"added_tokens\" must be an array");
  expect_invalid(with("/added_tokens/0", 3), "must have \"content\"");
  expect_invalid(with("/added_tokens/0/content", ""), "must not be empty");
  expect_invalid(with("/added_tokens/0/special", 1), "\"special\" must be true or false");
  expect_invalid(with("/pre_tokenizer", "ByteLevel"), "must have \"type\"");
  expect_invalid(with("/pre_tokenizer/use_regex", 1), "\"use_regex\" must be true or false");
  expect_error(small_tokenizer().dump(), "[]", ErrorCode::kInvalidFile, "must be an object");
  expect_error(small_tokenizer().dump(), R"({"eos_token": 3})", ErrorCode::kInvalidFile,
               "\"eos_token\" must be a string");
}

TEST(TokenizerJson, RefusesIdsOutOfRange) {
  for (const json& id :
       {json(-1), json(INT64_MIN), json(70000), json(INT64_MAX), json(UINT64_MAX)}) {
    json root = small_tokenizer();
    root["model"]["vocab"]["a"] = id;
    expect_invalid(root, "token ids must be in [0, 65542)");
    root = small_tokenizer();
    root["added_tokens"][0]["id"] = id;
    expect_invalid(root, "token ids must be in [0, 65542)");
  }
}

TEST(TokenizerJson, RefusesTwoTokensOfOneId) {
  json root = small_tokenizer();
  root["model"]["vocab"]["c"] = 1;
  expect_invalid(root, "each id must have one token");
}

TEST(TokenizerJson, RefusesMergesOfUnknownTokens) {
  json root = small_tokenizer();
  root["model"]["merges"] = json::array({"a x"});
  expect_invalid(root, "merges must name tokens of the vocabulary, got \"x\" at 0");
  root["model"]["merges"] = json::array({"b a"});
  expect_invalid(root, "merges must name tokens of the vocabulary, got \"ba\" at 0");
}

TEST(TokenizerJson, RefusesWhatIsNotBuilt) {
  const auto with = [](const char* path, const json& value) {
    json root = small_tokenizer();
    root[json::json_pointer(path)] = value;
    return root;
  };
  expect_unsupported(with("/model/type", "Unigram"),
                     "tokenizer model must be BPE, got \"Unigram\"");
  expect_unsupported(with("/model/byte_fallback", true), "byte_fallback");
  expect_unsupported(with("/model/end_of_word_suffix", "</w>"), "word suffix");
  expect_unsupported(with("/model/continuing_subword_prefix", "##"), "subword prefix");
  expect_unsupported(with("/normalizer", {{"type", "Lowercase"}}), "got \"Lowercase\"");
  expect_unsupported(with("/pre_tokenizer/type", "Metaspace"), "got \"Metaspace\"");
  expect_unsupported(with("/pre_tokenizer/add_prefix_space", true), "add_prefix_space");
  expect_unsupported(with("/pre_tokenizer", nullptr), "without a ByteLevel");
  expect_unsupported(with("/added_tokens/0/lstrip", true), "lstrip");
  json root = small_tokenizer();
  root["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Contiguous"}};
  expect_unsupported(root, "a Split other than Isolated");
  root = small_tokenizer();
  root["normalizer"] = {{"type", "NFC"}};
  EXPECT_THAT(Tokenizer(parse_json(root)).encode("abc"), ElementsAre(4));
}

json with_regex(const std::string& regex) {
  json root = small_tokenizer();
  root["pre_tokenizer"] = json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})");
  root["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = regex;
  return root;
}

TEST(TokenizerJson, RefusesRegexesThatDoNotCompile) {
  for (const char* regex : {"(", "[a", "a{2,1}", "\\p{Nonsense}", "(?<n>", "\\C", "*"}) {
    expect_invalid(with_regex(regex), "pre-tokenizer pattern 0 does not compile");
  }
  expect_invalid(with_regex(std::string(10000, 'a')), "at most 8192 bytes, got 10000");
  expect_invalid(with_regex(std::string(4000, '(') + std::string(4000, ')')), "does not compile");
  expect_invalid(with_regex("(((a{1,1000}){1,1000}){1,1000}){1,1000}"), "does not compile");
}

TEST(TokenizerJson, GivesUpOnCatastrophicRegexes) {
  const Tokenizer tokenizer(parse_json(with_regex("(a+a+)+$|(b|b)+c")));
  for (const char letter : {'a', 'b'}) {
    try {
      tokenizer.encode(std::string(60, letter) + "x");
      FAIL() << "encode did not throw";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.what(), HasSubstr("pre-tokenizer pattern cannot be matched"));
    }
  }
}

TEST(TokenizerJson, OddRegexesLoseNoText) {
  for (const char* regex :
       {"", "x*", "(?=b)", "\\b", "b\\K", "(?<=a)b", "^a", "\\z", "(*ANYCRLF)b"}) {
    const Tokenizer tokenizer(parse_json(with_regex(regex)));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("abcabc")), "abcabc") << regex;
  }
}

TEST(TokenizerJson, RefusesAMissingFile) {
  EXPECT_THROW(read_tokenizer_json("tests/no_such_directory"), Error);
}

}  // namespace
}  // namespace fovea
