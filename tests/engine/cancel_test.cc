// Ctrl-C must end a run within a second whatever the model: the cancel flag is looked at before
// every slab of rows and every piece of attention, so no gap is longer than one of them.
#include <gtest/gtest.h>

#include <atomic>

#include "fovea/engine/generate.h"
#include "fovea/engine/kv_cache.h"
#include "fovea/engine/page_key.h"
#include "fovea/engine/transformer.h"
#include "fovea/model_io/model_config.h"

namespace fovea {
namespace {

std::shared_ptr<const Model> needle() {
  static const auto model = Model::load("models/needle_7m");
  return model;
}

class Cancel : public testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kTokens = 1024;
  static constexpr int64_t kSlabs = kTokens / 128;

  Cancel() {
    settings_.density = 0.3f;
    if (is_sparse()) attention_.selector = settings_;
  }
  bool is_sparse() const { return GetParam(); }

  /// Runs all layers; `look` is called whenever the flag would be looked at.
  void forward(const std::function<void()>& look) {
    KvCache cache(kv_cache_shape(*needle(), attention_, kTokens));
    const std::vector<int32_t> tokens(kTokens, 7);
    std::vector<int32_t> pages;
    for (int64_t i = 0; i < kTokens / cache.shape().page_size; ++i) {
      pages.push_back(cache.acquire());
    }
    ForwardStep step;
    step.tokens = tokens;
    step.cache = &cache;
    step.page_table = pages;
    step.selector = is_sparse() ? &settings_ : nullptr;
    step.prompt_len = kTokens;
    step.check_cancel = look;
    Transformer(*needle(), kTokens).forward(step);
  }

  SelectorSettings settings_;
  AttentionSettings attention_;
};

TEST_P(Cancel, TheFlagIsLookedAtBeforeEverySlabAndEveryPieceOfAttention) {
  std::atomic<int64_t> looks{0};
  forward([&] { ++looks; });
  const int64_t num_layers = needle()->config().num_layers;
  EXPECT_GE(looks.load(), (num_layers + 1) * kSlabs + num_layers);
}

TEST_P(Cancel, ALookThatThrowsEndsTheStepThereAndThen) {
  for (int64_t allowed : {0, 3, 8, 20, 53}) {
    std::atomic<int64_t> looks{0};
    EXPECT_THROW(forward([&] {
                   if (++looks > allowed) throw Cancelled();
                 }),
                 Cancelled);
    // Threads that were at work on a slab may look once more each.
    EXPECT_LE(looks.load(), allowed + needle()->context().num_threads);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Cancel, testing::Bool(), [](const auto& test) {
  return test.param ? std::string("Sparse") : std::string("Dense");
});

TEST(CancelScore, ARaisedFlagEndsIt) {
  const std::vector<int32_t> tokens(300, 5);
  std::atomic<bool> cancel{false};
  Session session(needle());
  PrefillOptions options;
  options.cancel = &cancel;
  options.progress = [&](double share) { cancel = share == 1.0; };  // the layers are done
  EXPECT_THROW(session.score(tokens, options), Cancelled);
  EXPECT_EQ(session.length(), 0);
}

TEST(CancelDecode, NotOneMoreTokenIsComputed) {
  std::atomic<bool> cancel{false};
  int64_t num_said = 0;
  Session session(needle());
  GenerateOptions options;
  options.stop_at_eos = false;
  options.prefill.cancel = &cancel;
  options.on_text = [&](std::string_view) {
    cancel = ++num_said == 3;
    return true;
  };
  const std::vector<int32_t> prompt = {0, 17, 4, 99};
  const GenerateResult result = generate(session, prompt, options);
  EXPECT_EQ(result.stop, StopReason::kCancelled);
  // The last token was drawn, but never read.
  EXPECT_EQ(session.length(), static_cast<int64_t>(prompt.size() + result.tokens.size()) - 1);
}

}  // namespace
}  // namespace fovea
