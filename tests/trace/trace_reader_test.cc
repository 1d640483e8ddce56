#include "fovea/trace/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <random>
#include <vector>

#include "fovea/base/error.h"
#include "tests/trace/trace_builder.h"

namespace fovea::trace {
namespace {

struct Read {
  std::vector<std::string> names;
  std::vector<TraceEvent> events;  // views are gone; numbers are good
  ReadSummary summary;
};

Read read(const std::string& content, const std::string& suffix = ".json") {
  const TemporaryFile file(content, suffix);
  Read result;
  result.summary = read_trace(file.path(), [&](const TraceEvent& event) {
    result.names.emplace_back(event.name);
    result.events.push_back(event);
  });
  return result;
}

std::string refusal(const std::string& content) {
  try {
    read(content);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidFile);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(TraceReader, FieldsOfAnEvent) {
  const Read result = read(
      R"({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU A"}, {"id": 1, "name": "GPU A"}],
        "traceEvents": [
        {"args": {"External id": 5, "stream": 7, "correlation": 42}, "dur": 2.5, "ts": 10.25,
         "tid": "stream 7", "pid": 3, "name": "a\"b\\c\u0041", "cat": "kernel", "ph": "X"},
        {"ph": "i", "name": "instant", "ts": 1}
      ], "distributedInfo": {"rank": 3}, "with_stack": 1})");
  ASSERT_EQ(result.events.size(), 1u);
  EXPECT_EQ(result.names[0], "a\"b\\cA");
  const TraceEvent& event = result.events[0];
  EXPECT_EQ(event.kind, EventKind::kKernel);
  EXPECT_DOUBLE_EQ(event.ts_us, 10.25);
  EXPECT_DOUBLE_EQ(event.dur_us, 2.5);
  EXPECT_EQ(event.pid, 3);
  EXPECT_LT(event.tid, 0);
  EXPECT_EQ(event.correlation, 42);
  EXPECT_EQ(event.external_id, 5);
  EXPECT_EQ(result.summary.num_events, 2);
  EXPECT_EQ(result.summary.devices, "GPU A");
  EXPECT_EQ(result.summary.rank, 3);
  EXPECT_TRUE(result.summary.with_stack);
  EXPECT_FALSE(result.summary.truncated);
}

TEST(TraceReader, PlainArrayGzipAndConcatenatedGzipAreTheSame) {
  TraceBuilder builder;
  for (int i = 0; i < 2000; ++i) builder.launched(fmt::format("k{}", i % 7), i, 100 + 20 * i, 5);
  const std::string json = builder.json();
  const std::string array = json.substr(json.find('['), json.rfind('}') - json.find('['));
  const size_t half = json.size() / 2;
  const Read plain = read(json);
  EXPECT_EQ(plain.events.size(), 4000u);
  EXPECT_FALSE(plain.summary.compressed);
  EXPECT_EQ(read(array).names, plain.names);
  const Read packed = read(gzip(json), ".json.gz");
  EXPECT_EQ(packed.names, plain.names);
  EXPECT_TRUE(packed.summary.compressed);
  EXPECT_EQ(packed.summary.json_bytes, static_cast<int64_t>(json.size()));
  EXPECT_EQ(read(gzip(json.substr(0, half)) + gzip(json.substr(half)), ".gz").names, plain.names);
}

// Blocks of bytes are read at once: quotes, escapes, brackets and control characters must be right
// wherever they fall.
TEST(TraceReader, StringsOfAnyContentAtAnyPlace) {
  std::mt19937 random(7);
  const std::string pieces[] = {"a", "bc", "{", "}", "[", "]", "\\\"", "\\\\", "\x01", " , ", ": "};
  const std::string meanings[] = {"a", "bc", "{", "}", "[", "]", "\"", "\\", " ", " , ", ": "};
  TraceBuilder builder;
  std::vector<std::string> names;
  int64_t num_controls = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string written, meant;
    const bool plain = random() % 2 == 0;  // such blocks take another way
    for (auto left = random() % 150; left > 0; --left) {
      const size_t piece = random() % (plain ? 6 : std::size(pieces));
      written += pieces[piece];
      meant += meanings[piece];
      num_controls += pieces[piece] == "\x01";
    }
    names.push_back("n" + meant);
    builder.kernel("n" + written, i, i, 1);
  }
  const Read result = read(builder.json());
  EXPECT_EQ(result.names, names);
  EXPECT_EQ(result.summary.num_control_characters, num_controls);
  EXPECT_EQ(result.summary.num_malformed, 0);
}

// Every cut of a small file gives the events before the cut, or a plain refusal; never a crash.
TEST(TraceReader, AnyTruncation) {
  TraceBuilder builder;
  builder.header(R"("schemaVersion": 1, "s": "a\"}]{[")");
  builder.launched("void f<int>(\\\"x\\\")", 1, 100, 5).launched("g", 2, 200, 5);
  const std::string json = builder.json();
  ASSERT_EQ(read(json).events.size(), 4u);
  size_t most = 0;
  for (size_t length = 0; length < json.size(); ++length) {
    try {
      const Read result = read(json.substr(0, length));
      EXPECT_TRUE(result.summary.truncated) << length;
      EXPECT_GE(result.events.size(), most);
      most = result.events.size();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidFile);
      EXPECT_EQ(most, 0u) << "refused after events had been readable: " << error.what();
    }
  }
  EXPECT_EQ(most, 4u);
}

TEST(TraceReader, TruncatedGzipKeepsWhatCameBefore) {
  TraceBuilder builder;
  for (int i = 0; i < 20000; ++i) builder.launched("k", i, 100 + 20 * i, 5);
  const std::string packed = gzip(builder.json());
  const Read result = read(packed.substr(0, packed.size() / 2), ".gz");
  EXPECT_TRUE(result.summary.truncated);
  EXPECT_GT(result.events.size(), 1000u);
}

TEST(TraceReader, CorruptGzipIsRefused) {
  TraceBuilder builder;
  for (int i = 0; i < 2000; ++i) builder.launched("k", i, 100 + 20 * i, 5);
  std::string packed = gzip(builder.json());
  for (size_t i = 200; i < 260; ++i) packed[i] = static_cast<char>(packed[i] ^ 0x5a);
  EXPECT_THAT(refusal(packed), testing::HasSubstr("not valid gzip"));
}

TEST(TraceReader, ControlCharactersAreReadAsSpacesAndCounted) {
  TraceBuilder builder;
  builder.launched(
      "a\x01"
      "b\nc",
      1, 100, 5);
  const Read result = read(builder.json());
  ASSERT_EQ(result.events.size(), 2u);
  EXPECT_EQ(result.names[1], "a b c");
  EXPECT_EQ(result.summary.num_control_characters, 2);
  EXPECT_EQ(result.summary.num_malformed, 0);
}

TEST(TraceReader, InvalidUtf8IsReplacedAndCounted) {
  TraceBuilder builder;
  builder.launched("a\xff\xfe", 1, 100, 5);
  const Read result = read(builder.json());
  ASSERT_EQ(result.events.size(), 2u);
  EXPECT_EQ(result.names[1], "a??");
  EXPECT_EQ(result.summary.num_invalid_utf8, 1);
}

TEST(TraceReader, OneBadEventSpoilsOnlyItself) {
  TraceBuilder builder;
  builder.launched("a", 1, 100, 5);
  builder.raw(R"({"ph": "X", "cat": "kernel", "name": oops, "ts": 1, "dur": 1})");
  builder.raw(R"({"ph": "X" "cat" "kernel"})");
  builder.raw(R"({"ph": "X", "cat": "kernel", "ts": 1, "dur": 1})");  // no name
  builder.raw("17");
  builder.launched("b", 2, 200, 5);
  const Read result = read(builder.json());
  EXPECT_EQ(result.events.size(), 4u);
  EXPECT_EQ(result.summary.num_malformed, 4);
}

TEST(TraceReader, TimesThatAreNoNumbersAreCounted) {
  TraceBuilder builder;
  for (const char* times : {R"("ts": NaN, "dur": 1)", R"("ts": 1, "dur": Infinity)", R"("dur": 1)",
                            R"("ts": 1, "dur": -5)", R"("ts": 1e999, "dur": 1)",
                            R"("ts": 1, "dur": 1e300)", R"("ts": -1e20, "dur": 1)"}) {
    builder.raw(fmt::format(R"({{"ph": "X", "cat": "kernel", "name": "k", {}}})", times));
  }
  const Read result = read(builder.json());
  EXPECT_EQ(result.events.size(), 0u);
  EXPECT_EQ(result.summary.num_not_a_number + result.summary.num_malformed, 7);
  EXPECT_GE(result.summary.num_not_a_number, 6);
}

TEST(TraceReader, OtherFilesAreRefusedInPlainWords) {
  EXPECT_THAT(refusal(""), testing::HasSubstr("it is empty"));
  EXPECT_THAT(refusal("hello"), testing::HasSubstr("not a Chrome trace"));
  EXPECT_THAT(refusal("{\"a\": [1, 2], \"b\": {\"traceEvents\": [1]}}"),
              testing::HasSubstr("no \"traceEvents\""));
  EXPECT_THAT(refusal("{\"a\": \"never ends"), testing::HasSubstr("ends before"));
  EXPECT_THAT(refusal("{\"a\" 5}"), testing::HasSubstr("expected ':'"));
  EXPECT_THAT(refusal("PK\x03\x04zip"), testing::HasSubstr("zip archive"));
  EXPECT_THAT(refusal("SQLite format 3"), testing::HasSubstr("SQLite"));
  EXPECT_THROW(read_trace("/does/not/exist.json", [](const TraceEvent&) {}), Error);
  EXPECT_THROW(read_trace(testing::TempDir(), [](const TraceEvent&) {}), Error);
}

// 300 MB of spaces in 300 KB: the ratio gives it away long before the end.
TEST(TraceReader, ZipBombIsRefused) {
  const std::string spaces = gzip(std::string(64 << 20, ' '));
  std::string bomb = gzip("[");
  for (int i = 0; i < 12; ++i) bomb += spaces;
  EXPECT_THAT(refusal(bomb), testing::HasSubstr("zip bomb"));
}

TEST(TraceReader, LargeHeaderMembersAndLongEventsPass) {
  TraceBuilder builder;
  builder.header("\"stackFrames\": \"" + std::string(3 << 20, 'x') + "\"");
  builder.launched(std::string(2 << 20, 'n'), 1, 100, 5).launched("b", 2, 200, 5);
  const Read result = read(builder.json());
  ASSERT_EQ(result.events.size(), 4u);
  EXPECT_EQ(result.names[1].size(), size_t{2} << 20);
  EXPECT_EQ(result.names[3], "b");
}

}  // namespace
}  // namespace fovea::trace
