// Sessions on a GPU against the same on the CPU, and what must hold of a GPU by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "fovea/base/error.h"
#include "fovea/engine/kv_cache.h"
#include "fovea/engine/page_key.h"
#include "fovea/engine/session.h"
#include "fovea/tensor/device_memory.h"
#include "tests/support/relative_error.h"

namespace fovea {
namespace {

using test::relative_error;
using testing::HasSubstr;

constexpr const char* kModelPath = "models/needle_7m";
constexpr Device kGpu{DeviceType::kCuda, 0};

std::shared_ptr<const Model> on_gpu() {
  static const auto model = Model::load(kModelPath, {.device = kGpu, .progress = {}});
  return model;
}

std::shared_ptr<const Model> on_cpu() {
  static const auto model = Model::load(kModelPath, {.compute = ComputeType::kF32, .progress = {}});
  return model;
}

std::vector<int32_t> made_up_tokens(int64_t count) {
  std::mt19937 random(1);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(1 + random() % 4000);
  return tokens;
}

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

class EngineOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_unusable(kGpu); !reason.empty()) GTEST_SKIP() << reason;
  }
};

SessionOptions sparse_options(SelectorMethod method, float density, bool periphery = false) {
  SelectorSettings settings;
  settings.method = method;
  settings.density = density;
  SessionOptions options;
  options.attention.selector = settings;
  options.attention.min_sparse_len = 0;
  options.attention.periphery = periphery;
  return options;
}

TEST_F(EngineOnGpu, DenseLogitsAreTheCpus) {
  for (const int64_t count : {1, 5, 127, 128, 129, 1000}) {
    SCOPED_TRACE(count);
    const std::vector<int32_t> tokens = made_up_tokens(count);
    Session cpu(on_cpu());
    Session gpu(on_gpu());
    const std::vector<float> want = copy(cpu.prefill(tokens));
    EXPECT_LT(relative_error(gpu.prefill(tokens), want), 0.02);
    EXPECT_GT(gpu.report().times.matmul_ms, 0);
    EXPECT_GT(gpu.report().times.attention_ms, 0);
  }
}

TEST_F(EngineOnGpu, SyntheticModelsAnswerAsOnTheCpu) {
  const std::vector<int32_t> tokens = [] {
    std::vector<int32_t> bytes(300);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<int32_t>(i * 37 % 256);
    return bytes;
  }();
  for (const char* name : {"Test-1M", "Test-MoE", "Test-OSS"}) {
    SCOPED_TRACE(name);
    Session cpu(Model::synthetic(name, 5, {.compute = ComputeType::kF32, .progress = {}}));
    Session gpu(Model::synthetic(name, 5, {.device = kGpu, .progress = {}}));
    const std::vector<float> want = copy(cpu.prefill(tokens));
    EXPECT_LT(relative_error(gpu.prefill(tokens), want), 0.03);
    // Steps that are recorded and replayed, across the border of a page.
    for (const int32_t token : {7, 8, 9, 10}) {
      const std::vector<float> next = copy(cpu.decode(token));
      EXPECT_LT(relative_error(gpu.decode(token), next), 0.03) << token;
    }
  }
}

TEST_F(EngineOnGpu, WeightsInF8AnswerAlmostAlike) {
  const std::vector<int32_t> tokens(200, 65);
  for (const char* name : {"Test-1M", "Test-MoE"}) {
    SCOPED_TRACE(name);
    const auto whole = Model::synthetic(name, 5, {.device = kGpu, .progress = {}});
    const auto small =
        Model::synthetic(name, 5, {.f8_weights = true, .device = kGpu, .progress = {}});
    EXPECT_EQ(small->weight_dtype(), DType::kF8E4M3);
    EXPECT_LT(small->weight_bytes(), whole->weight_bytes());
    Session want(whole);
    Session got(small);
    const std::vector<float> logits = copy(want.prefill(tokens));
    const double error = relative_error(got.prefill(tokens), logits);
    EXPECT_GT(error, 1e-4);
    EXPECT_LT(error, 0.15);
  }
}

TEST_F(EngineOnGpu, DecodeContinuesAsThePrefillWould) {
  const std::vector<int32_t> tokens = made_up_tokens(300);
  Session whole(on_gpu());
  const std::vector<float> want = copy(whole.prefill(tokens));
  Session stepwise(on_gpu());
  stepwise.prefill(std::span(tokens).first(250));
  std::vector<float> got;
  for (size_t i = 250; i < tokens.size(); ++i) got = copy(stepwise.decode(tokens[i]));
  EXPECT_LT(relative_error(got, want), 0.02);
}

class SelectorsOnGpu : public EngineOnGpu, public testing::WithParamInterface<SelectorMethod> {};

TEST_P(SelectorsOnGpu, KeepAsMuchAsOnTheCpuAndAnswerAlike) {
  const std::vector<int32_t> tokens = made_up_tokens(3000);
  for (const bool periphery : {false, true}) {
    SCOPED_TRACE(periphery);
    const SessionOptions options = sparse_options(GetParam(), 0.4f, periphery);
    Session cpu(on_cpu(), options);
    Session gpu(on_gpu(), options);
    const std::vector<float> want = copy(cpu.prefill(tokens));
    const std::vector<float> got = copy(gpu.prefill(tokens));
    EXPECT_NEAR(gpu.report().density(), cpu.report().density(), 1e-3);
    EXPECT_NEAR(gpu.report().forced_share(), cpu.report().forced_share(), 1e-3);
    EXPECT_LT(relative_error(got, want), 0.05);
    EXPECT_GT(gpu.report().times.selection_ms, 0);
    // What the GPU has no kernel for was selected on the CPU, and the report says so.
    const bool on_cpu = GetParam() == SelectorMethod::kOracle;
    EXPECT_THAT(gpu.report().note, HasSubstr(on_cpu ? "selected on the CPU" : ""));
    EXPECT_EQ(gpu.report().note.empty(), !on_cpu);
  }
}

TEST_P(SelectorsOnGpu, ChunkSizeChangesNoSelection) {
  constexpr int64_t kTokens = 3000;
  const std::vector<int32_t> tokens = made_up_tokens(kTokens);
  std::vector<double> first_density;
  std::vector<float> first_logits;
  for (const int64_t chunk_size : {4096, 512, 128, 1280}) {
    SCOPED_TRACE(chunk_size);
    SessionOptions options = sparse_options(GetParam(), 0);
    options.chunk_size = chunk_size;
    Session session(on_gpu(), options);
    const std::vector<float> logits = copy(session.prefill(tokens));
    if (first_density.empty()) {
      first_density = session.report().head_density;
      first_logits = logits;
    }
    EXPECT_EQ(session.report().head_density, first_density);
    EXPECT_LT(relative_error(logits, first_logits), 0.01);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SelectorsOnGpu,
                         testing::Values(SelectorMethod::kRescue, SelectorMethod::kWitness,
                                         SelectorMethod::kCentroid, SelectorMethod::kStreaming,
                                         SelectorMethod::kOracle),
                         [](const auto& test) {
                           return std::string(selector_method_name(test.param));
                         });

TEST_F(EngineOnGpu, APrefixHitAnswersAsAFreshPromptDoes) {
  const std::vector<int32_t> tokens = made_up_tokens(1100);
  SessionOptions options = sparse_options(SelectorMethod::kRescue, 0.5f);
  options.cache = std::make_shared<KvCache>(kv_cache_shape(*on_gpu(), options.attention, 4096));
  Session first(on_gpu(), options);
  const std::vector<float> want = copy(first.prefill(tokens));
  first.reset();
  Session second(on_gpu(), options);
  const std::vector<float> got = copy(second.prefill(tokens));
  EXPECT_EQ(second.report().num_cached_tokens, 1024);
  EXPECT_LT(relative_error(got, want), 0.01);
}

TEST_F(EngineOnGpu, ARaisedFlagEndsAPrefillAndTheSessionGoesOn) {
  const std::vector<int32_t> tokens = made_up_tokens(2000);
  Session session(on_gpu());
  std::atomic<bool> cancel{true};
  PrefillOptions options;
  options.cancel = &cancel;
  EXPECT_THROW(session.prefill(tokens, options), Cancelled);
  EXPECT_EQ(session.length(), 0);
  cancel = false;
  Session fresh(on_gpu());
  const std::vector<float> want = copy(fresh.prefill(tokens));
  EXPECT_LT(relative_error(session.prefill(tokens, options), want), 1e-6);
}

TEST_F(EngineOnGpu, ScoresAreTheCpus) {
  const std::vector<int32_t> tokens = made_up_tokens(200);
  Session cpu(on_cpu());
  Session gpu(on_gpu());
  const std::vector<TokenScore> want = cpu.score(tokens);
  const std::vector<TokenScore> got = gpu.score(tokens);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].target_logprob, want[i].target_logprob, 0.5) << i;
    if (want[i].margin <= 0.5f) continue;  // bf16 may turn it
    EXPECT_EQ(got[i].best_token, want[i].best_token) << i;
  }
}

TEST(EngineWithoutGpu, SaysWhatIsMissing) {
  try {
    Model::load(kModelPath, {.device = {DeviceType::kCuda, 63}, .progress = {}});
    FAIL() << "loaded onto a GPU that is not there";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("no GPU"), HasSubstr("no CUDA")));
  }
}

}  // namespace
}  // namespace fovea
