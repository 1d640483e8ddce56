// The tokenizer of the model that the project carries, against ids from the `tokenizers` package.
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/tokenizer/tokenizer.h"
#include "fovea/tokenizer/tokenizer_json.h"

namespace fovea {
namespace {

const Tokenizer& needle() {
  static const Tokenizer tokenizer(read_tokenizer_json("models/needle_7m"));
  return tokenizer;
}

std::string gunzip(const char* path) {
  gzFile file = gzopen(path, "rb");
  std::string content;
  if (file == nullptr) return content;
  std::array<char, 65536> buffer{};
  for (int n = 0; (n = gzread(file, buffer.data(), buffer.size())) > 0;) {
    content.append(buffer.data(), static_cast<size_t>(n));
  }
  gzclose(file);
  return content;
}

uint32_t read_u32(std::string_view bytes) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// As scripts/check_tokenizer.py hashes ids.
uint32_t fnv1a(const std::vector<int32_t>& ids) {
  uint32_t value = 0x811C9DC5;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      value = (value ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x01000193;
    }
  }
  return value;
}

TEST(NeedleTokenizer, EqualsTheOracleOnTenThousandMixedLines) {
  const std::string golden = gunzip("tests/golden/needle_7m_ids.gz");
  std::string_view rest = golden;
  int64_t num_lines = 0;
  int64_t num_different = 0;
  while (rest.size() >= 8) {
    const uint32_t size = read_u32(rest);
    const uint32_t hash = read_u32(rest.substr(4));
    ASSERT_LE(size, rest.size() - 8);
    const std::string_view line = rest.substr(8, size);
    if (fnv1a(needle().encode(line)) != hash) {
      ADD_FAILURE() << "ids differ for line " << num_lines << ": " << line;
      if (++num_different >= 10) return;
    }
    rest.remove_prefix(8 + size);
    ++num_lines;
  }
  EXPECT_EQ(num_lines, 10000);
  EXPECT_TRUE(rest.empty());
}

TEST(NeedleTokenizer, DecodesWhatItEncoded) {
  for (const std::string_view text :
       {"", "a", "Hello, world!\n", "  two  spaces\t\n\n",
        "caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x98\x80", "nul\0byte"}) {
    EXPECT_EQ(needle().decode(needle().encode(text)), text);
  }
  std::string every_byte;
  for (int byte = 0; byte < 128; ++byte) every_byte.push_back(static_cast<char>(byte));
  EXPECT_EQ(needle().decode(needle().encode(every_byte)), every_byte);
}

TEST(NeedleTokenizer, MalformedUtf8BecomesReplacementCharacters) {
  const auto round_trip = [](std::string_view text) {
    return needle().decode(needle().encode(text));
  };
  EXPECT_EQ(round_trip("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(round_trip("\xE2\x82"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(round_trip("\xC1\xA1"), "a");  // overlong
  EXPECT_EQ(round_trip("\xED\xA0\x80"), "\xED\xA0\x80");
  EXPECT_EQ(round_trip("\xF4\x90\x80\x80").size(), 12u);  // above U+10FFFF
}

TEST(NeedleTokenizer, ControlTokensAreLettersUnlessAskedFor) {
  const std::string_view text = "a<|endoftext|>b";
  EXPECT_GT(needle().encode(text).size(), 3u);
  const std::vector<int32_t> ids = needle().encode(text, {.add_bos = true, .parse_special = true});
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(ids[1], 0);
  EXPECT_TRUE(needle().is_eos(0));
  EXPECT_TRUE(needle().is_control(0));
  EXPECT_EQ(needle().decode(ids), "ab");
  EXPECT_EQ(needle().token_bytes(0), "<|endoftext|>");
  EXPECT_EQ(needle().decode(needle().encode(text)), text);
}

TEST(NeedleTokenizer, KnowsItsSizesAndIds) {
  EXPECT_EQ(needle().vocab_size(), 4096);
  EXPECT_EQ(needle().bos_id(), 0);
  EXPECT_EQ(needle().eos_id(), 0);
  EXPECT_FALSE(needle().add_bos());
  EXPECT_TRUE(needle().chat_template().empty());
  EXPECT_EQ(needle().token_id("<|endoftext|>"), 0);
  EXPECT_EQ(needle().token_id("no such token"), -1);
  EXPECT_TRUE(needle().encode("").empty());
}

TEST(NeedleTokenizer, RefusesIdsOutOfRange) {
  const std::array<int32_t, 2> ids = {1, 4096};
  EXPECT_THROW(needle().decode(ids), Error);
  EXPECT_THROW(needle().token_bytes(-1), Error);
  EXPECT_THROW(needle().is_control(4096), Error);
  EXPECT_FALSE(needle().is_eos(4096));
  try {
    needle().token_bytes(4096);
    FAIL() << "token_bytes did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "token id must be in [0, 4096), got 4096");
  }
}

// A run of one character is one piece of a million symbols: merging must not be quadratic in it.
// The test's time limit is what fails.
TEST(NeedleTokenizer, LongRunsAreEncodedWhole) {
  for (const char c : {'a', ' ', '\n', '-', '7', '\xFF', '\0'}) {
    const std::string text(1 << 20, c);
    const std::vector<int32_t> ids = needle().encode(text);
    EXPECT_GT(ids.size(), 0u);
    const std::string decoded = needle().decode(ids);
    EXPECT_EQ(decoded.size(), c == '\xFF' ? 3 * text.size() : text.size());
    EXPECT_EQ(decoded.find_first_not_of(c == '\xFF' ? "\xEF\xBF\xBD" : std::string(1, c)),
              std::string::npos);
  }
}

TEST(StreamDecoder, HoldsBackUnfinishedCharacters) {
  const std::string text = "h\xC3\xA9 \xF0\x9F\x98\x80!";
  StreamDecoder stream(needle());
  std::string streamed;
  for (const int32_t id : needle().encode(text)) {
    streamed += stream.push(id);
    // Every prefix ends at a character's end.
    EXPECT_EQ(text.substr(0, streamed.size()), streamed);
    EXPECT_TRUE(streamed.size() == text.size() ||
                (static_cast<uint8_t>(text[streamed.size()]) & 0xC0) != 0x80);
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(stream.flush(), "");
}

TEST(StreamDecoder, GivesReplacementCharactersForWhatNeverBecomesText) {
  // The file spells the byte C3 as U+00C3 and A9 as U+00A9.
  const int32_t lead = needle().token_id("\xC3\x83");
  const int32_t continuation = needle().token_id("\xC2\xA9");
  ASSERT_EQ(needle().token_bytes(lead), "\xC3");
  ASSERT_EQ(needle().token_bytes(continuation), "\xA9");
  StreamDecoder stream(needle());
  EXPECT_EQ(stream.push(0), "");  // control
  EXPECT_EQ(stream.push(continuation), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.push(lead), "");
  EXPECT_EQ(stream.push(lead), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.push(continuation), "\xC3\xA9");
  EXPECT_EQ(stream.push(lead), "");
  EXPECT_EQ(stream.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.flush(), "");
}

}  // namespace
}  // namespace fovea
