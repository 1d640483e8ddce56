#include "fovea/worth/completion_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }
std::string text_event(const std::string& text) {
  return event(R"({"choices": [{"text": ")" + text + R"("}]})");
}
const std::string kDone = "data: [DONE]\n\n";

/// What reading `bytes` throws, "" if nothing.
std::string mistake(const std::string& bytes, int64_t most_tokens = 8) {
  try {
    CompletionStream stream(most_tokens);
    stream.feed(bytes, 0);
    stream.finish();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

TEST(CompletionStream, TimesTextAndTakesUsage) {
  CompletionStream stream(3);
  stream.feed(": hello\n\n" + text_event(""), 1);  // no text yet
  stream.feed(text_event("a"), 2);
  stream.feed(text_event("b") + event(R"({"choices": [{"text": "", "finish_reason": "length"}]})"),
              3);
  EXPECT_FALSE(stream.done());
  const std::string usage = R"({"prompt_tokens": 100, "completion_tokens": 2, )"
                            R"("prompt_tokens_details": {"cached_tokens": 16}})";
  stream.feed(event(R"({"choices": [], "usage": )" + usage + "}") + kDone, 4);
  EXPECT_TRUE(stream.done());
  stream.finish();
  EXPECT_THAT(stream.arrivals_s(), ElementsAre(2, 3));
  EXPECT_EQ(stream.prompt_tokens(), 100);
  EXPECT_EQ(stream.cached_tokens(), 16);
  EXPECT_EQ(stream.output_tokens(), 2);
}

TEST(CompletionStream, ChatAndReasoning) {
  CompletionStream stream(3);
  stream.feed(event(R"({"choices": [{"delta": {"role": "assistant", "content": ""}}]})"), 1);
  stream.feed(event(R"({"choices": [{"delta": {"reasoning_content": "hm"}}]})"), 2);
  stream.feed(event(R"({"choices": [{"delta": {"content": "yes"}}], "usage": null})"), 3);
  stream.feed(
      event(R"({"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": {"cache_n": 7}})"),
      4);
  stream.finish();  // a reason was given: [DONE] may be missing
  EXPECT_THAT(stream.arrivals_s(), ElementsAre(2, 3));
  EXPECT_EQ(stream.cached_tokens(), 7);
  EXPECT_FALSE(stream.prompt_tokens().has_value());
}

// Any cut between the bytes gives the same events, with all of the protocol's line ends.
TEST(CompletionStream, PiecesAndLineEnds) {
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    std::string bytes = "event: x" + end + "data: {\"choices\":" + end +
                        "data:[{\"text\": \"a\"}]}" + end + end + "data: [DONE]" + end + end;
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      CompletionStream stream(3);
      stream.feed(std::string_view(bytes).substr(0, cut), 1);
      stream.feed(std::string_view(bytes).substr(cut), 2);
      stream.finish();
      EXPECT_EQ(stream.arrivals_s().size(), 1u) << cut;
    }
  }
}

TEST(CompletionStream, MistakesAreOneLine) {
  EXPECT_EQ(mistake(text_event("a") + kDone), "");
  EXPECT_THAT(mistake(""), HasSubstr("empty"));
  EXPECT_THAT(mistake(text_event("a") + text_event("b")), HasSubstr("after 2 pieces of text"));
  EXPECT_THAT(mistake("data: {\"choices\": [\n\n"), HasSubstr("event 1 of the stream is not"));
  EXPECT_THAT(mistake("data: 7\n\n"), HasSubstr("not a JSON object: \"7\""));
  EXPECT_THAT(mistake("<html>\n"), HasSubstr("the line \"<html>\""));
  EXPECT_THAT(mistake(event(R"({"error": {"message": "out of\nmemory"}})")),
              HasSubstr("broke off: out of memory"));
  EXPECT_THAT(mistake("data: " + std::string(2 << 20, 'x')), HasSubstr("longer than 1 MiB"));
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "data: " + std::string(1000, 'x') + "\n";
  EXPECT_THAT(mistake(lines), HasSubstr("longer than 1 MiB"));
  std::string endless;
  for (int i = 0; i < 200; ++i) endless += text_event("a");
  EXPECT_THAT(mistake(endless), HasSubstr("more than the 8 tokens"));
}

TEST(CompletionStream, OddCountsAndShapesAreLeftOut) {
  CompletionStream stream(8);
  for (const char* json : {R"({"choices": 5, "usage": [], "timings": "x"})", R"({"choices": [7]})",
                           R"({"choices": [{"text": 7, "delta": "x"}]})",
                           R"({"choices": [null], "usage": {"prompt_tokens": -1}})",
                           R"({"usage": {"prompt_tokens": 1e9, "completion_tokens": "2"}})",
                           R"({"usage": {"prompt_tokens": 18446744073709551615}})"}) {
    stream.feed(event(json), 0);
  }
  stream.feed(kDone, 0);
  stream.finish();
  EXPECT_TRUE(stream.arrivals_s().empty());
  EXPECT_FALSE(stream.prompt_tokens().has_value());
  EXPECT_FALSE(stream.output_tokens().has_value());
}

TEST(ServerErrorText, FindsTheMessage) {
  EXPECT_EQ(server_error_text(R"({"error": {"message": "no such model", "code": 404}})"),
            "no such model");
  EXPECT_EQ(server_error_text(R"({"error": "busy"})"), "busy");
  EXPECT_EQ(server_error_text(R"({"object": "error", "message": "too long"})"), "too long");
  EXPECT_EQ(server_error_text(R"({"detail": "Not Found"})"), "Not Found");
  EXPECT_EQ(server_error_text(R"([{"error": {"message": "quota"}}])"), "quota");
  EXPECT_EQ(server_error_text("<html>\nbad gateway"), "<html> bad gateway");
  EXPECT_EQ(server_error_text(std::string(500, 'x')).size(), 203u);
}

}  // namespace
}  // namespace fovea::worth
