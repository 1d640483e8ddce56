// Greedy text of the model that the project carries. It continues " Recall: the red code of apple
// is" with the number that the fact before it gave.
#include "fovea/engine/generate.h"

#include <gtest/gtest.h>

#include "fovea/base/error.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea {
namespace {

std::shared_ptr<const Model> needle() {
  static const auto model = Model::load("models/needle_7m");
  return model;
}

std::vector<int32_t> encode(const std::string& text) {
  std::vector<int32_t> ids = needle()->tokenizer().encode(text);
  ids.insert(ids.begin(), 0);  // prompts start with token 0
  return ids;
}

const char* const kPrompt =
    " The red code of apple is 12345. def main(): return 0\n The blue code of apple is 54321."
    " import os\n Recall: the red code of apple is";

TEST(Generate, TheModelRecallsAFact) {
  for (const ComputeType compute : {ComputeType::kF32, ComputeType::kAuto}) {
    const auto model = Model::load("models/needle_7m", {.compute = compute, .progress = {}});
    Session session(model);
    GenerateOptions options;
    options.max_new_tokens = 8;
    std::string streamed;
    options.on_text = [&](std::string_view text) {
      streamed += text;
      return true;
    };
    const GenerateResult result = generate(session, encode(kPrompt), options);
    EXPECT_EQ(result.text.substr(0, 7), " 12345.");
    EXPECT_EQ(result.text, streamed);
    EXPECT_EQ(result.tokens.size(), 8u);
    EXPECT_EQ(result.itl_ms.size(), 7u);
    EXPECT_GT(result.ttft_ms, 0);
    EXPECT_GT(result.decode_tokens_per_s(), 0);
    EXPECT_EQ(result.stop, StopReason::kMaxTokens);
    EXPECT_EQ(result.prompt_tokens, static_cast<int64_t>(encode(kPrompt).size()));
  }
}

TEST(Generate, StopsWhenTheCallbackSaysSo) {
  Session session(needle());
  GenerateOptions options;
  options.on_text = [](std::string_view) { return false; };
  const GenerateResult result = generate(session, encode(kPrompt), options);
  EXPECT_EQ(result.stop, StopReason::kCallback);
  EXPECT_EQ(result.tokens.size(), 1u);
}

TEST(Generate, StopsWhenTheSessionIsFull) {
  const std::vector<int32_t> prompt = encode(kPrompt);
  Session session(
      needle(), {.attention = {}, .max_len = static_cast<int64_t>(prompt.size()) + 3, .cache = {}});
  const GenerateResult result = generate(session, prompt);
  EXPECT_EQ(result.stop, StopReason::kContextFull);
  EXPECT_EQ(result.tokens.size(), 4u);
}

TEST(Generate, ACancelFlagEndsTheAnswer) {
  std::atomic<bool> cancel{false};
  Session session(needle());
  GenerateOptions options;
  options.prefill.cancel = &cancel;
  options.on_text = [&](std::string_view) {
    cancel = true;
    return true;
  };
  EXPECT_EQ(generate(session, encode(kPrompt), options).stop, StopReason::kCancelled);
  Session other(needle());
  EXPECT_THROW(generate(other, encode(kPrompt), options), Cancelled);
}

TEST(Generate, TheSeedDecidesWhatIsDrawn) {
  GenerateOptions options;
  options.max_new_tokens = 12;
  options.sampling = {.temperature = 1.5f, .seed = 5};
  Session a(needle()), b(needle()), c(needle());
  const GenerateResult first = generate(a, encode("import"), options);
  EXPECT_EQ(first.tokens, generate(b, encode("import"), options).tokens);
  options.sampling.seed = 6;
  EXPECT_NE(first.tokens, generate(c, encode("import"), options).tokens);
}

TEST(Generate, RefusesBadOptions) {
  Session session(needle());
  EXPECT_THROW(generate(session, {}), Error);
  GenerateOptions options;
  options.max_new_tokens = -1;
  EXPECT_THROW(generate(session, encode("a"), options), Error);
  options.max_new_tokens = 1;
  options.sampling.top_p = 0;
  EXPECT_THROW(generate(session, encode("a"), options), Error);
  EXPECT_EQ(session.length(), 0);
}

TEST(Generate, NoTokensMeansReadOnly) {
  Session session(needle());
  GenerateOptions options;
  options.max_new_tokens = 0;
  const GenerateResult result = generate(session, encode("a"), options);
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_GT(result.ttft_ms, 0);
}

}  // namespace
}  // namespace fovea
