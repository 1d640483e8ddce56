// Sessions on a GPU against the same on the CPU, and what must hold of a GPU by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "fovea/base/error.h"
#include "fovea/engine/generate.h"
#include "fovea/engine/kv_cache.h"
#include "fovea/engine/memory_plan.h"
#include "fovea/engine/page_key.h"
#include "fovea/engine/session.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tokenizer/tokenizer.h"
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

// The rule of a draw is in whole numbers: the CPU draws the same from the same logits.
TEST_F(EngineOnGpu, TokensDrawnThereAreThoseDrawnHereFromItsLogits) {
  const std::vector<int32_t> tokens = made_up_tokens(300);
  const std::vector<SamplingSettings> all = {
      {},
      {.temperature = 1.2f, .seed = 3},
      {.temperature = 0.9f, .top_k = 50, .top_p = 0.9f, .min_p = 0.01f}};
  for (const SamplingSettings& settings : all) {
    SCOPED_TRACE(settings.temperature);
    Session there(on_gpu()), here(on_gpu());
    Sampler sampler_there(settings), sampler_here(settings);
    int32_t token = sampler_there.sample(there.prefill(tokens));
    ASSERT_EQ(sampler_here.sample(here.prefill(tokens)), token);
    for (int i = 0; i < 24; ++i) {  // first as they come, then recorded and replayed
      const int32_t next = there.decode(token, sampler_there);
      const std::vector<float> logits = copy(here.decode(token));
      ASSERT_EQ(next, sampler_here.sample(logits)) << i;
      EXPECT_EQ(copy(there.decode_logits()), logits) << i;
      token = next;
    }
  }
}

TEST_F(EngineOnGpu, TheSeedDecidesTheText) {
  GenerateOptions options;
  options.max_new_tokens = 40;
  options.stop_at_eos = false;
  options.sampling = {.temperature = 1.5f, .top_p = 0.95f, .seed = 5};
  const std::vector<int32_t> tokens = made_up_tokens(200);
  const auto answer = [&] {
    Session session(on_gpu());
    return generate(session, tokens, options).tokens;
  };
  const std::vector<int32_t> first = answer();
  EXPECT_EQ(answer(), first);
  options.sampling.seed = 6;
  EXPECT_NE(answer(), first);
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

TEST_F(EngineOnGpu, F8KeysAndValuesAreTheCpus) {
  std::vector<int32_t> tokens(1500);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * i % 251);
  const auto gpu_model = Model::synthetic("Test-D128", 5, {.device = kGpu, .progress = {}});
  const auto cpu_model =
      Model::synthetic("Test-D128", 5, {.compute = ComputeType::kF32, .progress = {}});
  for (SessionOptions options : {SessionOptions{}, sparse_options(SelectorMethod::kRescue, 0.3f),
                                 sparse_options(SelectorMethod::kRescue, 0.3f, true),
                                 sparse_options(SelectorMethod::kWitness, 0.3f)}) {
    options.attention.kv_codes = DType::kF8E4M3;
    Session cpu(cpu_model, options);
    Session gpu(gpu_model, options);
    const std::vector<float> want = copy(cpu.prefill(tokens));
    EXPECT_LT(relative_error(gpu.prefill(tokens), want), 0.05);
    EXPECT_NEAR(gpu.report().density(), cpu.report().density(), 1e-3);
    EXPECT_EQ(gpu.report().kv_bytes, cpu.report().kv_bytes);
    for (int32_t token = 0; token < 40; ++token) {  // over the border of a page
      const std::vector<float> next = copy(cpu.decode(token));
      EXPECT_LT(relative_error(gpu.decode(token), next), 0.05) << token;
    }
  }
}

TEST_F(EngineOnGpu, WhatItsKernelsLackIsRefused) {
  SessionOptions f8, fewer_values;
  f8.attention.kv_codes = DType::kF8E4M3;
  fewer_values.attention.value_share = 0.9f;
  const auto expect_refusal = [](const SessionOptions& options, const char* reason) {
    try {
      Session session(Model::synthetic("Test-1M", 0, {.device = kGpu, .progress = {}}), options);
      FAIL() << "accepted, although: " << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.what(), HasSubstr(reason));
    }
  };
  expect_refusal(f8, "need head_dim 128 (the model has 64)");
  expect_refusal(fewer_values, "a value_share under 1 is for the CPU");
}

/// A model of real weights that FOVEA_TEST_MODEL names, too large to be carried by the project:
///
///     FOVEA_TEST_MODEL=SmolLM2-135M.gguf engine_gpu_test --gtest_filter=*RealWeights*
class RealWeightsOnGpu : public EngineOnGpu {
 protected:
  void SetUp() override {
    EngineOnGpu::SetUp();
    if (IsSkipped()) return;
    const char* path = std::getenv("FOVEA_TEST_MODEL");
    if (path == nullptr) GTEST_SKIP() << "FOVEA_TEST_MODEL names no model";
    gpu_ = Model::load(path, {.device = kGpu, .progress = {}});
    cpu_ = Model::load(path, {.compute = ComputeType::kF32, .progress = {}});
    std::ifstream file("docs/kernels.md");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    tokens_ = cpu_->tokenizer().encode(text);
    ASSERT_GT(tokens_.size(), 3000u);
    tokens_.resize(3000);
  }
  std::shared_ptr<const Model> gpu_, cpu_;
  std::vector<int32_t> tokens_;
};

TEST_F(RealWeightsOnGpu, LogitsAndGreedyTextAreTheCpus) {
  constexpr double kMargin = 0.25;  // logits that bf16 may exchange
  for (const SessionOptions& options :
       {SessionOptions{}, sparse_options(SelectorMethod::kRescue, 0.3f),
        sparse_options(SelectorMethod::kWitness, 0.3f)}) {
    Session cpu(cpu_, options);
    Session gpu(gpu_, options);
    std::vector<float> want = copy(cpu.prefill(tokens_));
    std::vector<float> got = copy(gpu.prefill(tokens_));
    for (int i = 0; i < 32; ++i) {
      EXPECT_LT(relative_error(got, want), 0.05) << "token " << i;
      const auto best = std::max_element(want.begin(), want.end());
      const auto chosen = std::max_element(got.begin(), got.end()) - got.begin();
      EXPECT_LT(*best - want[static_cast<size_t>(chosen)], kMargin) << "token " << i;
      const auto token = static_cast<int32_t>(best - want.begin());
      want = copy(cpu.decode(token));
      got = copy(gpu.decode(token));
    }
  }
}

TEST_F(RealWeightsOnGpu, ChunkSizeChangesNoSelection) {
  std::vector<double> first_density;
  std::vector<float> first_logits;
  for (const int64_t chunk_size : {0, 512, 1024}) {
    SessionOptions options = sparse_options(SelectorMethod::kRescue, 0);
    options.chunk_size = chunk_size;
    Session session(gpu_, options);
    const std::vector<float> logits = copy(session.prefill(tokens_));
    if (first_density.empty()) {
      first_density = session.report().head_density;
      first_logits = logits;
    }
    EXPECT_EQ(session.report().head_density, first_density) << chunk_size;
    EXPECT_LT(relative_error(logits, first_logits), 0.01) << chunk_size;
  }
}

TEST_F(EngineOnGpu, WhatDoesNotFitIsRefusedBeforeAnythingIsTaken) {
  const auto refusal = [&](SessionOptions options) -> std::string {
    try {
      Session session(on_gpu(), options);
      session.prefill(made_up_tokens(3000));
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      return error.what();
    }
  };
  SessionOptions options = sparse_options(SelectorMethod::kWitness, 0.2f);
  options.max_len = 4096;
  const int64_t free_before = device_memory(kGpu).free_bytes;
  options.memory_limit = int64_t{1} << 20;
  EXPECT_THAT(refusal(options),
              testing::AllOf(HasSubstr("a session of 4096 tokens in chunks of 4096 needs "),
                             HasSubstr("K and V "), HasSubstr("scratch "), HasSubstr("selection "),
                             HasSubstr(", GPU 0 has 1 MiB free; try ")));
  EXPECT_EQ(device_memory(kGpu).free_bytes, free_before);
  options.memory_limit = int64_t{1} << 30;
  EXPECT_EQ(refusal(options), "");
}

TEST_F(EngineOnGpu, ASessionTakesNoMoreThanPlanned) {
  for (const char* name : {"Test-1M", "Test-MoE"}) {
    for (const bool f8_weights : {false, true}) {
      SCOPED_TRACE(testing::Message() << name << (f8_weights ? " f8" : ""));
      const auto model =
          Model::synthetic(name, 5, {.f8_weights = f8_weights, .device = kGpu, .progress = {}});
      SessionOptions options = sparse_options(SelectorMethod::kRescue, 0.1f);
      options.max_len = 65536;
      options.chunk_size = 32768;
      const MemoryPlan plan =
          plan_memory({.config = &model->config(),
                       .compute_dtype = model->compute_dtype(),
                       .weight_dtype = model->weight_dtype(),
                       .context = model->context(),
                       .cache = kv_cache_shape(*model, options.attention, options.max_len),
                       .attention = options.attention,
                       .max_len = options.max_len,
                       .chunk_rows = options.chunk_size});
      const int64_t free_before = device_memory(kGpu).free_bytes;
      Session session(model, options);
      session.prefill(std::vector<int32_t>(65536, 65));
      EXPECT_LE(free_before - device_memory(kGpu).free_bytes, plan.total());
    }
  }
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
