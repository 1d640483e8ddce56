// Sessions on the model that the project carries, with made-up tokens: what must hold whatever they
// say.
#include "fovea/engine/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "fovea/base/error.h"
#include "fovea/engine/kv_cache.h"
#include "fovea/engine/page_key.h"
#include "fovea/model_io/model_config.h"
#include "fovea/ops/matmul.h"
#include "fovea/ops/sampling.h"
#include "fovea/selector/selection_rules.h"
#include "tests/support/relative_error.h"

namespace fovea {
namespace {

using test::relative_error;

constexpr const char* kModelPath = "models/needle_7m";

std::shared_ptr<const Model> needle(ComputeType compute = ComputeType::kAuto) {
  static const auto automatic = Model::load(kModelPath);
  static const auto f32 = Model::load(kModelPath, {.compute = ComputeType::kF32, .progress = {}});
  return compute == ComputeType::kF32 ? f32 : automatic;
}

std::vector<int32_t> made_up_tokens(int64_t count, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(1 + random() % 4000);
  return tokens;
}

SessionOptions sparse_options(SelectorMethod method, float density = 0) {
  SelectorSettings settings;
  settings.method = method;
  settings.density = density;
  SessionOptions options;
  options.attention.selector = settings;
  options.attention.min_sparse_len = 0;
  return options;
}

std::vector<float> copy(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

/// Runs `body` and returns the message of the fovea::Error it throws.
template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// K and V of the first `num_pages` pages of every layer.
std::string kv_bytes(const KvCache& cache, int64_t num_pages) {
  std::string bytes;
  for (int64_t layer = 0; layer < cache.shape().num_layers; ++layer) {
    const KvView kv = cache.kv(layer);
    for (const TensorView* view : {&kv.k, &kv.v}) {
      bytes.append(view->as<char>(),
                   static_cast<size_t>(num_pages * view->stride[0] * dtype_bytes(view->dtype)));
    }
  }
  return bytes;
}

class Selectors : public testing::TestWithParam<SelectorMethod> {};

TEST_P(Selectors, ChunkSizeChangesNothing) {
  // Keys and values of a layer depend on every selection before it: equal bits in all pages of all
  // layers mean equal selections.
  constexpr int64_t kTokens = 1500;
  const std::vector<int32_t> tokens = made_up_tokens(kTokens);
  std::string first_bytes;
  std::vector<double> first_density;
  std::vector<float> first_logits;
  for (const int64_t chunk_size : {2048, 128, 384, 640}) {
    SCOPED_TRACE(chunk_size);
    SessionOptions options = sparse_options(GetParam());
    options.chunk_size = chunk_size;
    options.max_len = kTokens;
    options.cache =
        std::make_shared<KvCache>(kv_cache_shape(*needle(), options.attention, kTokens));
    Session session(needle(), options);
    const std::vector<float> logits = copy(session.prefill(tokens));
    EXPECT_TRUE(session.report().sparse);
    const std::string bytes = kv_bytes(*options.cache, kTokens / 128);
    if (first_bytes.empty()) {
      first_bytes = bytes;
      first_density = session.report().head_density;
      first_logits = logits;
      EXPECT_LT(session.report().density(), 1.0);
      EXPECT_GT(session.report().forced_share(), 0.0);
    }
    EXPECT_TRUE(bytes == first_bytes);
    EXPECT_EQ(session.report().head_density, first_density);
    EXPECT_LT(relative_error(logits, first_logits), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Selectors,
                         testing::Values(SelectorMethod::kRescue, SelectorMethod::kWitness,
                                         SelectorMethod::kCentroid, SelectorMethod::kStreaming),
                         [](const auto& test) {
                           return std::string(selector_method_name(test.param));
                         });

TEST(Session, SelectingEverythingIsDense) {
  const std::vector<int32_t> tokens = made_up_tokens(700);
  Session dense(needle());
  const std::vector<float> want = copy(dense.prefill(tokens));
  EXPECT_EQ(dense.report().density(), 1.0);
  EXPECT_FALSE(dense.report().sparse);
  Session everything(needle(), sparse_options(SelectorMethod::kRescue, 1.0f));
  const std::vector<float> got = copy(everything.prefill(tokens));
  EXPECT_TRUE(everything.report().sparse);
  EXPECT_EQ(everything.report().density(), 1.0);
  EXPECT_LT(relative_error(got, want), 2e-3);
}

TEST(Session, DecodeContinuesAsAPrefillWould) {
  for (const ComputeType compute : {ComputeType::kF32, ComputeType::kAuto}) {
    const std::vector<int32_t> tokens = made_up_tokens(300);
    Session whole(needle(compute)), parts(needle(compute));
    const std::vector<float> want = copy(whole.prefill(tokens));
    parts.prefill(std::span(tokens).first(290));
    std::vector<float> got;
    for (size_t i = 290; i < 300; ++i) got = copy(parts.decode(tokens[i]));
    EXPECT_EQ(parts.length(), 300);
    EXPECT_LT(relative_error(got, want), compute == ComputeType::kF32 ? 1e-4 : 2e-2);
  }
}

TEST(Session, ATokenDrawnWithinAStepIsTheSamplers) {
  Session drawing(needle()), plain(needle());
  const SamplingSettings settings{.temperature = 1.1f, .top_p = 0.95f, .seed = 4};
  Sampler within(settings), outside(settings);
  int32_t token = within.sample(drawing.prefill(made_up_tokens(200)));
  ASSERT_EQ(outside.sample(plain.prefill(made_up_tokens(200))), token);
  for (int i = 0; i < 8; ++i) {
    const int32_t next = drawing.decode(token, within);
    const std::vector<float> logits = copy(plain.decode(token));
    EXPECT_EQ(next, outside.sample(logits));
    EXPECT_EQ(copy(drawing.decode_logits()), logits);
    token = next;
  }
}

TEST(Session, DecodeLogitsAreThoseOfTheLastCallOrNone) {
  const std::vector<int32_t> tokens = made_up_tokens(40);
  Session session(needle());
  const auto expect_none = [&] {
    EXPECT_THAT(error_of([&] { session.decode_logits(); }),
                testing::HasSubstr("the last call was not a decode()"));
  };
  expect_none();
  session.prefill(tokens);
  expect_none();
  const std::vector<float> logits = copy(session.decode(7));
  EXPECT_EQ(copy(session.decode_logits()), logits);
  session.score(tokens);
  expect_none();
}

TEST(Session, ATextCanBeContinuedWithinABlock) {
  const std::vector<int32_t> tokens = made_up_tokens(1000);
  Session whole(needle(ComputeType::kF32)), parts(needle(ComputeType::kF32));
  const std::vector<float> want = copy(whole.prefill(tokens));
  parts.prefill(std::span(tokens).first(300));
  const std::vector<float> got = copy(parts.prefill(std::span(tokens).subspan(300)));
  EXPECT_LT(relative_error(got, want), 1e-4);
  Session sparse(needle(), sparse_options(SelectorMethod::kRescue));
  sparse.prefill(std::span(tokens).first(300));
  sparse.prefill(std::span(tokens).subspan(300));
  EXPECT_EQ(sparse.length(), 1000);
}

TEST(Session, ScoresAgreeWithLogits) {
  const std::vector<int32_t> tokens = made_up_tokens(200);
  PrefillOptions all_rows;
  all_rows.num_logit_rows = 200;
  Session a(needle()), b(needle());
  const std::vector<float> logits = copy(a.prefill(tokens, all_rows));
  const std::vector<TokenScore> scores = b.score(tokens);
  ASSERT_EQ(scores.size(), 199u);
  for (size_t i = 0; i < scores.size(); ++i) {
    const std::span<const float> row(logits.data() + i * 4096, 4096);
    const int32_t best = argmax(row);
    double sum = 0;
    for (const float logit : row) {
      sum += std::exp(static_cast<double>(logit - row[static_cast<size_t>(best)]));
    }
    const auto target = static_cast<size_t>(tokens[i + 1]);
    const double logprob =
        static_cast<double>(row[target] - row[static_cast<size_t>(best)]) - std::log(sum);
    EXPECT_NEAR(scores[i].target_logprob, logprob, 1e-3);
    EXPECT_NEAR(scores[i].best_logit, row[static_cast<size_t>(best)], 1e-3);
    EXPECT_GE(scores[i].margin, 0.0f);
  }
}

TEST(Session, APrefixHitGivesTheSameBits) {
  SessionOptions options = sparse_options(SelectorMethod::kRescue);
  options.max_len = 1000;
  options.cache = std::make_shared<KvCache>(kv_cache_shape(*needle(), options.attention, 3000));
  std::vector<int32_t> tokens = made_up_tokens(1000);
  Session fresh(needle(), options);
  const std::vector<float> want = copy(fresh.prefill(tokens));
  EXPECT_EQ(fresh.report().num_cached_tokens, 0);
  Session again(needle(), options);
  const std::vector<float> got = copy(again.prefill(tokens));
  EXPECT_EQ(again.report().num_cached_tokens, 896);
  EXPECT_EQ(got, want);

  tokens[200] = 1;  // in the second page
  Session changed(needle(), options);
  changed.prefill(tokens);
  EXPECT_EQ(changed.report().num_cached_tokens, 128);
}

TEST(Session, KvOfOneSelectionIsNotServedToAnother) {
  SessionOptions options = sparse_options(SelectorMethod::kRescue);
  options.max_len = 1000;
  options.cache = std::make_shared<KvCache>(kv_cache_shape(*needle(), options.attention, 6000));
  const std::vector<int32_t> tokens = made_up_tokens(1000);
  Session(needle(), options).prefill(tokens);
  SessionOptions other = options;
  other.attention.selector->alpha_rescue = 0.17f;
  Session changed(needle(), other);
  changed.prefill(tokens);
  EXPECT_EQ(changed.report().num_cached_tokens, 0);
  other = options;
  other.attention.periphery = true;
  Session blurred(needle(), other);
  blurred.prefill(tokens);
  EXPECT_EQ(blurred.report().num_cached_tokens, 0);
  other = options;
  other.attention.min_sparse_len = 5000;  // dense below
  Session dense(needle(), other);
  dense.prefill(tokens);
  EXPECT_EQ(dense.report().num_cached_tokens, 0);
  Session same(needle(), options);
  same.prefill(tokens);
  EXPECT_EQ(same.report().num_cached_tokens, 896);
}

TEST(Session, SparseStepsAsideForShortPromptsAndSaysSo) {
  SessionOptions options = sparse_options(SelectorMethod::kRescue);
  options.attention.min_sparse_len = 800;
  const std::vector<int32_t> tokens = made_up_tokens(799);
  Session session(needle(), options);
  const std::vector<float> got = copy(session.prefill(tokens));
  EXPECT_FALSE(session.report().sparse);
  EXPECT_EQ(session.report().density(), 1.0);
  EXPECT_THAT(session.report().note, testing::HasSubstr("799 tokens are below"));
  Session dense(needle());
  EXPECT_EQ(got, copy(dense.prefill(tokens)));
}

TEST(Session, SparseStepsAsideOfItselfWhereItWouldNotBeFaster) {
  SessionOptions options = sparse_options(SelectorMethod::kRescue);
  options.attention.min_sparse_len = -1;
  const std::vector<int32_t> tokens = made_up_tokens(500);
  Session session(needle(), options);
  session.prefill(tokens);
  EXPECT_FALSE(session.report().sparse);
  EXPECT_THAT(session.report().note,
              testing::HasSubstr("500 tokens are below the break-even length"));
  // What it would cost is nothing: no statistics, no lists.
  EXPECT_EQ(session.report().times.selection_ms, 0);
  EXPECT_EQ(session.report().selection_scratch_bytes, 0);
}

TEST(Session, ThePeripheryChangesTheResultAndStaysFinite) {
  const std::vector<int32_t> tokens = made_up_tokens(1500);
  SessionOptions options = sparse_options(SelectorMethod::kStreaming);
  options.attention.selector->streaming_local_tokens = 256;
  Session sharp(needle(), options);
  const std::vector<float> without = copy(sharp.prefill(tokens));
  options.attention.periphery = true;
  Session blurred(needle(), options);
  const std::vector<float> with = copy(blurred.prefill(tokens));
  EXPECT_NE(with, without);
  for (const float logit : with) ASSERT_TRUE(std::isfinite(logit));
}

TEST(Session, ACancelledPrefillLeavesTheSessionAsItWas) {
  const std::vector<int32_t> tokens = made_up_tokens(1000);
  Session session(needle());
  session.prefill(std::span(tokens).first(100));
  std::atomic<bool> cancel{false};
  PrefillOptions options;
  options.cancel = &cancel;
  options.progress = [&](double share) { cancel = share > 0.4; };
  EXPECT_THROW(session.prefill(std::span(tokens).subspan(100), options), Cancelled);
  EXPECT_EQ(session.length(), 100);
  const std::vector<float> got = copy(session.prefill(std::span(tokens).subspan(100)));
  Session fresh(needle());
  fresh.prefill(std::span(tokens).first(100));
  EXPECT_EQ(got, copy(fresh.prefill(std::span(tokens).subspan(100))));
}

TEST(Session, ReportsWhereTheTimeWentAndTheWorkDone) {
  const std::vector<int32_t> tokens = made_up_tokens(1500);
  Session session(needle(), sparse_options(SelectorMethod::kWitness, 0.3f));
  std::vector<double> shares;
  PrefillOptions options;
  options.progress = [&](double share) { shares.push_back(share); };
  session.prefill(tokens, options);
  const PrefillReport& report = session.report();
  EXPECT_EQ(report.num_tokens, 1500);
  EXPECT_GT(report.times.attention_ms, 0);
  EXPECT_GT(report.times.selection_ms, 0);
  EXPECT_GT(report.times.matmul_ms, 0);
  EXPECT_NEAR(report.times.total_ms,
              report.times.attention_ms + report.times.selection_ms + report.times.matmul_ms +
                  report.times.other_ms,
              1e-6 * report.times.total_ms);
  EXPECT_EQ(report.head_density.size(), 6u * 4u);
  EXPECT_EQ(report.kv_bytes, 12 * 128 * needle()->kv_bytes_per_token());
  EXPECT_GT(report.stats_bytes, 0);
  EXPECT_GT(report.selection_scratch_bytes, 0);
  ASSERT_FALSE(shares.empty());
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_DOUBLE_EQ(shares.back(), 1.0);
}

TEST(SessionErrors, BadPromptsAreNamed) {
  Session session(needle(), {.attention = {}, .max_len = 256, .cache = {}});
  const std::vector<int32_t> bad = {5, 4096}, negative = {-1};
  EXPECT_THAT(error_of([&] { session.prefill({}); }), testing::HasSubstr("empty"));
  EXPECT_THAT(error_of([&] { session.prefill(bad); }), testing::HasSubstr("token 1"));
  EXPECT_THAT(error_of([&] { session.prefill(negative); }), testing::HasSubstr("-1"));
  EXPECT_THAT(error_of([&] { session.prefill(made_up_tokens(257)); }), testing::HasSubstr("256"));
  EXPECT_THAT(error_of([&] { session.prefill(made_up_tokens(131073)); }),
              testing::HasSubstr("131072"));
  EXPECT_EQ(session.length(), 0);
}

TEST(SessionErrors, BadOptionsAreNamed) {
  EXPECT_THROW(Session(nullptr), Error);
  EXPECT_THROW(Session(needle(), {.attention = {}, .chunk_size = -1, .cache = {}}), Error);
  EXPECT_THROW(Session(needle(), {.attention = {}, .max_len = 131073, .cache = {}}), Error);
  SessionOptions options;
  options.attention.periphery = true;
  EXPECT_THROW(Session(needle(), options), Error);
  options = sparse_options(SelectorMethod::kRescue);
  options.cache = std::make_shared<KvCache>(kv_cache_shape(*needle(), {}, 256));  // no statistics
  EXPECT_THROW(Session(needle(), options), Error);
}

TEST(SessionErrors, ASharedCacheThatIsFullSaysSo) {
  SessionOptions options;
  options.cache = std::make_shared<KvCache>(kv_cache_shape(*needle(), {}, 256));
  Session a(needle(), options), b(needle(), options);
  a.prefill(made_up_tokens(200));
  EXPECT_THAT(error_of([&] { b.prefill(made_up_tokens(100, 2)); }), testing::HasSubstr("pages"));
  a.reset();
  EXPECT_NO_THROW(b.prefill(made_up_tokens(100, 2)));
}

TEST(Model, AProgressThatThrowsStopsTheLoading) {
  int num_calls = 0;
  ModelOptions options;
  options.progress = [&](double share) {
    ++num_calls;
    if (share > 0.3) throw Cancelled();
    EXPECT_LE(share, 0.3);
  };
  EXPECT_THROW(Model::load(kModelPath, options), Cancelled);
  EXPECT_GT(num_calls, 1);
}

TEST(ModelErrors, BadOptionsAreRefused) {
  EXPECT_THROW(Model::load(kModelPath, {.num_threads = -1, .progress = {}}), Error);
  EXPECT_THROW(Model::load("models/no_such_model"), Error);
  if (!matmul_is_native(DType::kBF16)) {
    EXPECT_THROW(Model::load(kModelPath, {.compute = ComputeType::kBF16, .progress = {}}), Error);
  }
}

// Pages that a dense prompt or the answer has filled get their statistics before a later prompt
// selects among them: what another text left in the same pages must not matter.
TEST(Session, SelectsAmongPagesThatWereFilledDensely) {
  SessionOptions options = sparse_options(SelectorMethod::kWitness, 0.3f);
  options.attention.min_sparse_len = 1500;
  const std::vector<int32_t> first = made_up_tokens(1100, 1), second = made_up_tokens(1000, 2);
  const auto read_both = [&](Session& session) {
    session.prefill(first);
    EXPECT_FALSE(session.report().sparse);
    const std::vector<float> logits = copy(session.prefill(second));
    EXPECT_TRUE(session.report().sparse);
    return logits;
  };
  Session fresh(needle(), options);
  const std::vector<float> want = read_both(fresh);

  options.cache = std::make_shared<KvCache>(kv_cache_shape(*needle(), options.attention, 4096));
  Session used(needle(), options);
  used.prefill(made_up_tokens(4096, 3));
  used.reset();
  EXPECT_EQ(read_both(used), want);
}

TEST(Session, SparseDecodeOfEverythingIsDenseAndItsPagesGetStatistics) {
  const std::vector<int32_t> prompt = made_up_tokens(200, 5), answer = made_up_tokens(70, 6);
  // Budget 1 keeps every block, but by the way of statistics, scores and lists.
  SessionOptions options = sparse_options(SelectorMethod::kWitness, 1);
  options.attention.selector->block_size = 32;
  options.attention.sparse_decode = true;
  Session sparse(needle(), options), dense(needle());
  sparse.prefill(prompt);
  dense.prefill(prompt);
  for (const int32_t token : answer) {
    const std::vector<float> want = copy(dense.decode(token));
    ASSERT_LT(relative_error(sparse.decode(token), want), 0.02);
  }
  EXPECT_EQ(sparse.decode_density(), 1);
}

TEST(Session, SparseDecodeReadsTheShareAskedFor) {
  SessionOptions options = sparse_options(SelectorMethod::kRescue, 0.2f);
  options.attention.sparse_decode = true;
  Session session(needle(), options);
  session.prefill(made_up_tokens(5000, 7));
  EXPECT_EQ(session.decode_density(), 1) << "no step yet";
  for (int i = 0; i < 3; ++i) session.decode(5);
  const std::vector<int32_t> budget = budget_counts(*options.attention.selector, 40);
  EXPECT_EQ(session.decode_density(), budget.back() / 40.0);

  options.attention.min_sparse_len = 6000;  // below it decode is dense
  Session aside(needle(), options);
  aside.prefill(made_up_tokens(5000, 7));
  aside.decode(5);
  EXPECT_EQ(aside.decode_density(), 1);
}

SessionOptions coded_options(DType codes, SessionOptions options = {}) {
  options.attention.kv_codes = codes;
  return options;
}

TEST(F8Kv, AnswersAlmostAsTheModelsOwnType) {
  const std::vector<int32_t> tokens = made_up_tokens(1500);
  for (const SessionOptions& options :
       {SessionOptions{}, sparse_options(SelectorMethod::kWitness, 0.3f),
        sparse_options(SelectorMethod::kOracle, 0.3f)}) {
    Session whole(needle(ComputeType::kF32), options);
    Session rounded(needle(ComputeType::kF32), coded_options(DType::kF8E4M3, options));
    const std::vector<float> want = copy(whole.prefill(tokens));
    const double error = relative_error(rounded.prefill(tokens), want);
    EXPECT_GT(error, 1e-4);
    EXPECT_LT(error, 0.15);
    EXPECT_NEAR(rounded.report().density(), whole.report().density(), 0.01);
    // A code in place of an f32, and two scales for the 2 x 128 x head_dim of a page and head.
    const auto page = static_cast<double>(128 * kv_cache_shape(*needle(), {}, 1).head_dim);
    EXPECT_DOUBLE_EQ(static_cast<double>(rounded.report().kv_bytes),
                     static_cast<double>(whole.report().kv_bytes) * (page + 4) / (4 * page));
  }
}

TEST(F8Kv, NeitherChunksNorDecodeChangeWhatIsHeld) {
  const std::vector<int32_t> tokens = made_up_tokens(700);
  const auto model = needle(ComputeType::kF32);
  std::string first_bytes;
  std::vector<float> want;
  for (const int64_t chunk_size : {1024, 128, 256}) {
    SessionOptions options = coded_options(DType::kF8E4M3);
    options.chunk_size = chunk_size;
    options.cache = std::make_shared<KvCache>(kv_cache_shape(*model, options.attention, 700));
    Session session(model, options);
    const std::vector<float> logits = copy(session.prefill(tokens));
    const std::string bytes = kv_bytes(*options.cache, 5);
    if (want.empty()) {
      first_bytes = bytes;
      want = logits;
    }
    EXPECT_TRUE(bytes == first_bytes) << chunk_size;
    // The last rows' own last bits may turn a code.
    EXPECT_LT(relative_error(logits, want), 0.01) << chunk_size;
  }
  // A page's scale grows token by token; codes of small numbers may be rounded twice.
  Session stepwise(model, coded_options(DType::kF8E4M3));
  stepwise.prefill(std::span(tokens).first(650));
  std::vector<float> got;
  for (size_t i = 650; i < tokens.size(); ++i) got = copy(stepwise.decode(tokens[i]));
  EXPECT_LT(relative_error(got, want), 0.1);
}

TEST(I8Kv, AnswersAsTheModelsOwnTypeButForAPercent) {
  const std::vector<int32_t> tokens = made_up_tokens(1500);
  for (const SessionOptions& options :
       {SessionOptions{}, sparse_options(SelectorMethod::kWitness, 0.3f)}) {
    Session whole(needle(ComputeType::kF32), options);
    Session rounded(needle(ComputeType::kF32), coded_options(DType::kI8, options));
    const std::vector<float> want = copy(whole.prefill(tokens));
    EXPECT_LT(relative_error(rounded.prefill(tokens), want), 0.04);
    EXPECT_LT(rounded.report().kv_bytes * 3, whole.report().kv_bytes);
    const std::vector<float> next = copy(whole.decode(7));
    const double error = relative_error(rounded.decode(7), next);
    EXPECT_GT(error, 1e-5);
    EXPECT_LT(error, 0.04);
  }
}

TEST(I8Kv, PagesOfOtherTypesAreRefused) {
  const auto model = needle();
  SessionOptions options = coded_options(DType::kI8);
  options.cache = std::make_shared<KvCache>(kv_cache_shape(*model, options.attention, 1024));
  options.attention.kv_codes = DType::kF8E4M3;
  EXPECT_THAT(error_of([&] { Session other(model, options); }),
              testing::HasSubstr("the cache holds i8, the session wants f8e4m3"));
  options.attention.kv_codes = DType::kI32;
  EXPECT_THAT(error_of([&] { Session other(model, options); }),
              testing::HasSubstr("kv_codes must be f8e4m3 or i8, got i32"));
}

TEST(ValueShare, OfDecodeMovesLogitsLittleAndPrefillNotAtAll) {
  const std::vector<int32_t> tokens = made_up_tokens(3000);
  SessionOptions options;
  options.attention.value_share = 0.98f;
  Session whole(needle()), skipping(needle(), options);
  EXPECT_EQ(copy(skipping.prefill(tokens)), copy(whole.prefill(tokens)));
  const std::vector<float> want = copy(whole.decode(7));
  const double error = relative_error(skipping.decode(7), want);
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 0.1);
  for (const float share : {0.0f, 1.5f}) {
    options.attention.value_share = share;
    EXPECT_THAT(error_of([&] { Session session(needle(), options); }),
                testing::HasSubstr("value_share must be in (0, 1]"));
  }
}

TEST(LayerBudgets, MultiplyEachLayersDensity) {
  const auto model = needle();
  const auto num_layers = static_cast<size_t>(model->config().num_layers);
  const std::vector<int32_t> tokens = made_up_tokens(4096);
  SessionOptions options = sparse_options(SelectorMethod::kCentroid, 0.2f);
  const uint64_t alike = root_page_key(*model, options.attention, true);
  const auto first_heads = [&] {
    Session session(model, options);
    session.prefill(tokens);
    std::vector<double> density;
    for (size_t layer = 0; layer < num_layers; ++layer) {
      density.push_back(
          session.report().head_density[layer * session.report().head_density.size() / num_layers]);
    }
    return density;
  };
  const std::vector<double> fifth = first_heads();
  options.attention.selector->density = 0.4f;
  const std::vector<double> two_fifths = first_heads();
  EXPECT_GT(two_fifths[1], fifth[1]);

  options.attention.selector->density = 0.2f;
  options.attention.layer_budgets.assign(num_layers, 1);
  options.attention.layer_budgets[1] = 2;
  options.attention.layer_budgets[2] = 100;
  const std::vector<double> mixed = first_heads();
  EXPECT_EQ(mixed[0], fifth[0]);
  EXPECT_EQ(mixed[1], two_fifths[1]);
  EXPECT_EQ(mixed[2], 1);
  EXPECT_NE(root_page_key(*model, options.attention, true), alike);
}

TEST(LayerBudgets, MustBeOneForEachLayerAndMultiplyADensity) {
  const auto model = needle();
  SessionOptions options = sparse_options(SelectorMethod::kCentroid, 0.2f);
  options.attention.layer_budgets = {1, 1};
  EXPECT_THAT(error_of([&] { Session session(model, options); }),
              testing::HasSubstr("one for each layer, got 2"));
  options.attention.layer_budgets.assign(static_cast<size_t>(model->config().num_layers), 0);
  EXPECT_THAT(error_of([&] { Session session(model, options); }),
              testing::HasSubstr("positive and finite, got 0"));
  options.attention.layer_budgets.assign(static_cast<size_t>(model->config().num_layers), 1);
  options.attention.selector->density = 0;
  EXPECT_THAT(error_of([&] { Session session(model, options); }),
              testing::HasSubstr("kept by threshold"));
}

TEST(F8Kv, PagesOfTheTwoTypesDoNotMix) {
  const auto model = needle();
  SessionOptions options = coded_options(DType::kF8E4M3);
  options.cache = std::make_shared<KvCache>(kv_cache_shape(*model, options.attention, 1024));
  const std::vector<int32_t> tokens = made_up_tokens(400);
  Session first(model, options);
  const std::vector<float> want = copy(first.prefill(tokens));
  first.reset();
  Session second(model, options);
  // Few rows come by other products; what that does to their last bits may turn a code.
  EXPECT_LT(relative_error(second.prefill(tokens), want), 0.05);
  EXPECT_EQ(second.report().num_cached_tokens, 384);
  options.attention.kv_codes.reset();
  EXPECT_THAT(error_of([&] { Session other(model, options); }),
              testing::HasSubstr("the cache holds f8e4m3"));
  EXPECT_NE(root_page_key(*model, options.attention, false),
            root_page_key(*model, coded_options(DType::kF8E4M3).attention, false));
}

}  // namespace
}  // namespace fovea
