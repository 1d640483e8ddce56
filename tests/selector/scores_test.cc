// Every backend of this machine against the double reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "fovea/selector/cpu/cpu_selector.h"
#include "tests/selector/list_judge.h"
#include "tests/selector/selector_case.h"

namespace fovea {
namespace {

using testing::Call;
using testing::CaseShape;
using testing::list_of;
using testing::make_prompt;
using testing::PagedCase;
using testing::Prompt;
using testing::WholePrompt;

// Expects the lists of `backend` to be the reference's. Logits here stay below 30, of which f32
// resolves 2e-6.
void expect_like_reference(const SelectorParams& params, const SelectorBackend& backend) {
  BlockSelection got;
  backend.run(params, {}, got);
  testing::expect_reference_lists(params, got, {.near_tie = 1e-4, .share = 0.01});
}

using Variant = std::tuple<SelectorMethod, Aggregation, float /*density*/, DType, int64_t>;
class ScoresTest : public ::testing::TestWithParam<Variant> {};

TEST_P(ScoresTest, EveryBackendFollowsTheReference) {
  SelectorSettings settings;
  CaseShape shape;
  std::tie(settings.method, settings.aggregation, settings.density, shape.dtype, shape.head_dim) =
      GetParam();
  settings.uplift_clamp = settings.density > 0 ? 0.9f : 0.0f;
  settings.forced_in_maximum = shape.dtype == DType::kBF16;
  Prompt prompt = make_prompt(shape, 37 * shape.block_size + 5, 23);
  WholePrompt whole(shape, std::move(prompt), settings);
  int compared = 0;
  for (const SelectorBackend* backend : cpu_selectors()) {
    if (!backend->why_unsupported(whole.call.params, {}).empty()) continue;
    SCOPED_TRACE(std::string(backend->name()));
    expect_like_reference(whole.call.params, *backend);
    ++compared;
  }
  EXPECT_GE(compared, 1);
  BlockSelection selection;
  select_blocks(whole.call.params, {}, selection);
  EXPECT_GT(selection.kept_pairs, selection.forced_pairs);
  EXPECT_LT(selection.density(), 0.9);  // a case that keeps everything would show nothing
}

// The query of a decode step, in the middle of a block or at its start; there it is also the last
// row of a prompt that is read at once, and must get the same list.
TEST_P(ScoresTest, ASingleRowFollowsTheReferenceWhateverComesWithIt) {
  SelectorSettings settings;
  CaseShape shape;
  std::tie(settings.method, settings.aggregation, settings.density, shape.dtype, shape.head_dim) =
      GetParam();
  for (const int64_t row : {0, 5}) {
    const Prompt prompt = make_prompt(shape, 37 * shape.block_size + row + 1, 29);
    WholePrompt whole(shape, prompt, settings);
    Call step(whole.pages, {&prompt}, {1}, settings);
    for (const SelectorBackend* backend : cpu_selectors()) {
      if (!backend->why_unsupported(step.params, {}).empty()) continue;
      SCOPED_TRACE(std::string(backend->name()));
      expect_like_reference(step.params, *backend);
      if (row != 0) continue;
      BlockSelection of_step, of_whole;
      backend->run(step.params, {}, of_step);
      backend->run(whole.call.params, {}, of_whole);
      for (int64_t h = 0; h < shape.num_q_heads; ++h) {
        EXPECT_EQ(list_of(of_step, h, 0), list_of(of_whole, h, 37));
      }
    }
  }
}

std::string variant_name(const ::testing::TestParamInfo<Variant>& info) {
  const auto& [method, aggregation, density, dtype, head_dim] = info.param;
  return fmt::format("{}_{}_{}_{}_{}", selector_method_name(method), aggregation_name(aggregation),
                     density > 0 ? "budget" : "thresholds", dtype_name(dtype), head_dim);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, ScoresTest,
    ::testing::Combine(::testing::Values(SelectorMethod::kCentroid, SelectorMethod::kRescue,
                                         SelectorMethod::kWitness, SelectorMethod::kBound,
                                         SelectorMethod::kOracle),
                       ::testing::Values(Aggregation::kSum, Aggregation::kMax),
                       ::testing::Values(0.0f, 0.3f), ::testing::Values(DType::kF32, DType::kBF16),
                       ::testing::Values(64, 80)),
    variant_name);

INSTANTIATE_TEST_SUITE_P(OverMeans, ScoresTest,
                         ::testing::Combine(::testing::Values(SelectorMethod::kWitness),
                                            ::testing::Values(Aggregation::kMaxOverMeans),
                                            ::testing::Values(0.0f, 0.3f),
                                            ::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(64, 80)),
                         variant_name);

// A normaliser of its own changes lists, or the variant would show nothing.
TEST(Scores, TheNormaliserOverMeansIsAnother) {
  SelectorSettings settings;
  settings.method = SelectorMethod::kWitness;
  settings.density = 0.3f;
  settings.aggregation = Aggregation::kMax;
  WholePrompt whole({}, make_prompt({}, 37 * 16, 23), settings);
  BlockSelection over_all, over_means;
  select_blocks(whole.call.params, {}, over_all);
  whole.call.params.settings.aggregation = Aggregation::kMaxOverMeans;
  select_blocks(whole.call.params, {}, over_means);
  EXPECT_NE(over_all.blocks, over_means.blocks);
}

TEST(Scores, ListsPerKvHeadFollowTheReferenceAndAreShared) {
  for (const SelectorMethod method :
       {SelectorMethod::kCentroid, SelectorMethod::kRescue, SelectorMethod::kWitness}) {
    for (const Aggregation aggregation : {Aggregation::kSum, Aggregation::kMax}) {
      for (const float density : {0.0f, 0.3f}) {
        SelectorSettings settings;
        settings.method = method;
        settings.aggregation = aggregation;
        settings.density = density;
        settings.lists_per_kv_head = true;
        CaseShape shape;
        shape.num_q_heads = 6;
        WholePrompt whole(shape, make_prompt(shape, 37 * shape.block_size + 5, 23), settings);
        for (const SelectorBackend* backend : cpu_selectors()) {
          if (!backend->why_unsupported(whole.call.params, {}).empty()) continue;
          SCOPED_TRACE(std::string(backend->name()));
          expect_like_reference(whole.call.params, *backend);
        }
        BlockSelection selection;
        select_blocks(whole.call.params, {}, selection);
        for (int64_t i = 0; i < selection.num_q_blocks; ++i) {
          EXPECT_EQ(list_of(selection, 1, i), list_of(selection, 0, i));
          EXPECT_EQ(list_of(selection, 2, i), list_of(selection, 0, i));
        }
        EXPECT_NE(list_of(selection, 3, 37), list_of(selection, 0, 37));
      }
    }
  }
}

// One head's bad query leaves nothing to judge the others' list by.
TEST(Scores, ABadQueryKeepsEverythingForAllThatShareItsList) {
  const CaseShape shape;
  SelectorSettings settings;
  settings.method = SelectorMethod::kWitness;
  settings.density = 0.2f;
  settings.lists_per_kv_head = true;
  Prompt prompt = make_prompt(shape, 20 * shape.block_size, 41);
  const int64_t row = 15 * shape.block_size + 2;
  prompt.q[static_cast<size_t>((row * shape.num_q_heads + 1) * shape.head_dim)] =
      std::numeric_limits<float>::quiet_NaN();  // q head 1, which shares with 0
  WholePrompt whole(shape, std::move(prompt), settings);
  BlockSelection selection;
  select_blocks(whole.call.params, {}, selection);
  EXPECT_EQ(list_of(selection, 0, 15).size(), 16u);
  EXPECT_EQ(list_of(selection, 1, 15).size(), 16u);
  EXPECT_LT(list_of(selection, 2, 15).size(), 16u);
  EXPECT_EQ(selection.non_finite_pairs, 2 * 15);
}

TEST(Scores, PromptQuantilesFollowTheReference) {
  SelectorSettings settings;
  settings.quantiles = QuantileMode::kPrompt;
  WholePrompt whole({}, make_prompt({}, 30 * 16, 29), settings);
  expect_like_reference(whole.call.params, *cpu_selectors().back());
}

// Sums are kept relative to the first row's logit; here the other rows rise 2^300 above it.
TEST(Scores, LogitsFarAboveTheFirstRowsDoNotOverflow) {
  for (const SelectorMethod method :
       {SelectorMethod::kCentroid, SelectorMethod::kRescue, SelectorMethod::kWitness}) {
    const CaseShape shape;
    Prompt prompt = make_prompt(shape, 30 * shape.block_size, 41);
    const int64_t width = shape.num_q_heads * shape.head_dim;
    for (size_t i = 0; i < prompt.q.size(); ++i) {
      const bool first_row = static_cast<int64_t>(i) / width % shape.block_size == 0;
      prompt.q[i] *= first_row ? 0.0f : 40.0f;
    }
    SelectorSettings settings;
    settings.method = method;
    settings.density = 0.3f;
    WholePrompt whole(shape, std::move(prompt), settings);
    for (const SelectorBackend* backend : cpu_selectors()) {
      if (!backend->why_unsupported(whole.call.params, {}).empty()) continue;
      SCOPED_TRACE(std::string(backend->name()));
      expect_like_reference(whole.call.params, *backend);
    }
  }
}

TEST(Scores, ContiguousKeysGiveTheListsOfPagedOnes) {
  const CaseShape shape;
  SelectorSettings settings;
  settings.method = SelectorMethod::kWitness;
  const Prompt prompt = make_prompt(shape, 25 * shape.block_size + 3, 31);
  WholePrompt whole(shape, prompt, settings);
  BlockSelection paged;
  select_blocks(whole.call.params, {}, paged);

  const int64_t row = shape.num_kv_heads * shape.head_dim;
  const int64_t first = 3, entries_before = 2;
  std::vector<float> k(static_cast<size_t>((first + prompt.len) * row)), v(k.size());
  std::copy(prompt.k.begin(), prompt.k.end(), k.begin() + first * row);
  std::copy(prompt.v.begin(), prompt.v.end(), v.begin() + first * row);
  SelectorParams params = whole.call.params;
  params.kv = {};
  params.kv.k =
      make_view(k.data(), DType::kF32, {first + prompt.len, shape.num_kv_heads, shape.head_dim});
  params.kv.v =
      make_view(v.data(), DType::kF32, {first + prompt.len, shape.num_kv_heads, shape.head_dim});
  params.kv.kv_offsets = &first;
  params.block_offsets = &entries_before;
  BlockStats stats(DType::kF32, 30, shape.num_kv_heads, shape.head_dim, shape.block_size,
                   shape.num_witnesses);
  compute_block_stats(params.kv, 0, 0, 25, entries_before, stats.view(), {});
  params.stats = stats.view();
  for (SelectorMethod method : {SelectorMethod::kWitness, SelectorMethod::kOracle}) {
    params.settings.method = whole.call.params.settings.method = method;
    BlockSelection contiguous;
    select_blocks(whole.call.params, {}, paged);
    select_blocks(params, {}, contiguous);
    EXPECT_EQ(contiguous.blocks, paged.blocks);
    EXPECT_EQ(contiguous.len, paged.len);
  }
}

// One key that points straight at the queries, in a block that is otherwise noise.
TEST(Scores, WitnessFindsTheNeedleThatTheMeanDilutes) {
  CaseShape shape;
  shape.block_size = 128;
  shape.num_q_heads = shape.num_kv_heads = 1;
  Prompt prompt = make_prompt(shape, 20 * 128, 37);
  const int64_t needle = 7 * 128 + 50, d = shape.head_dim;
  for (int64_t c = 0; c < d; ++c) {
    prompt.k[static_cast<size_t>(needle * d + c)] = c == 0 ? 12.0f : 0.0f;
    for (int64_t t = 19 * 128; t < 20 * 128; ++t) {
      prompt.q[static_cast<size_t>(t * d + c)] = c == 0 ? 8.0f : 0.1f * static_cast<float>(t % 3);
    }
  }
  SelectorSettings settings;
  settings.density = 0.25f;
  for (auto [method, finds] :
       {std::pair(SelectorMethod::kCentroid, false), std::pair(SelectorMethod::kWitness, true)}) {
    settings.method = method;
    WholePrompt whole(shape, prompt, settings);
    BlockSelection selection;
    select_blocks(whole.call.params, {}, selection);
    const std::vector<int32_t> list = list_of(selection, 0, 19);
    EXPECT_EQ(std::count(list.begin(), list.end(), 7), finds ? 1 : 0);
  }
}

// Finite logits may lie far below any number that "masked" could be written as.
TEST(Scores, HugeNegativeLogitsAreJudgedLikeOthers) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const CaseShape shape{.dtype = dtype};
    Prompt prompt = make_prompt(shape, 37 * shape.block_size + 5, 43);
    for (float& x : prompt.q) x = -1e16f * (1 + std::abs(x));
    for (float& x : prompt.k) x = 1e16f * (1 + std::abs(x));
    for (const Aggregation aggregation : {Aggregation::kSum, Aggregation::kMax}) {
      SelectorSettings settings;
      settings.method = SelectorMethod::kCentroid;
      settings.aggregation = aggregation;
      settings.density = 0.3f;
      WholePrompt whole(shape, prompt, settings);
      for (const SelectorBackend* backend : cpu_selectors()) {
        if (!backend->why_unsupported(whole.call.params, {}).empty()) continue;
        SCOPED_TRACE(std::string(backend->name()));
        expect_like_reference(whole.call.params, *backend);
      }
    }
  }
}

std::string method_name(const ::testing::TestParamInfo<SelectorMethod>& method) {
  return std::string(selector_method_name(method.param));
}

class NonFiniteTest : public ::testing::TestWithParam<SelectorMethod> {};

TEST_P(NonFiniteTest, KeyBlockIsKeptAndCounted) {
  const CaseShape shape;
  SelectorSettings settings;
  settings.method = GetParam();
  settings.density = 0.2f;
  Prompt prompt = make_prompt(shape, 24 * shape.block_size, 41);
  const int64_t row = 9 * shape.block_size + 2;  // KV head 1: q heads 2 and 3
  prompt.k[static_cast<size_t>((row * shape.num_kv_heads + 1) * shape.head_dim)] =
      std::numeric_limits<float>::quiet_NaN();
  WholePrompt whole(shape, prompt, settings);
  for (const SelectorBackend* backend : cpu_selectors()) {
    if (!backend->why_unsupported(whole.call.params, {}).empty()) continue;
    SCOPED_TRACE(std::string(backend->name()));
    expect_like_reference(whole.call.params, *backend);
    BlockSelection selection;
    backend->run(whole.call.params, {}, selection);
    for (int64_t h : {2, 3}) {
      for (int64_t i = 9; i < 24; ++i) {
        EXPECT_THAT(list_of(selection, h, i), ::testing::Contains(9));
      }
    }
    EXPECT_EQ(selection.non_finite_pairs, 2 * (24 - 10));
  }
}

TEST_P(NonFiniteTest, QueryBlockKeepsEverything) {
  const CaseShape shape;
  SelectorSettings settings;
  settings.method = GetParam();
  for (float bad : {std::numeric_limits<float>::infinity(), 1e19f}) {
    Prompt prompt = make_prompt(shape, 12 * shape.block_size, 41);
    const int64_t row = 8 * shape.block_size + 15;
    prompt.q[static_cast<size_t>(row * shape.num_q_heads * shape.head_dim)] = bad;  // q head 0
    WholePrompt whole(shape, prompt, settings);
    for (const SelectorBackend* backend : cpu_selectors()) {
      if (!backend->why_unsupported(whole.call.params, {}).empty()) continue;
      SCOPED_TRACE(std::string(backend->name()));
      expect_like_reference(whole.call.params, *backend);
      BlockSelection selection;
      backend->run(whole.call.params, {}, selection);
      EXPECT_EQ(list_of(selection, 0, 8).size(), 9u);
      EXPECT_EQ(selection.non_finite_pairs, 8);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, NonFiniteTest,
                         ::testing::Values(SelectorMethod::kCentroid, SelectorMethod::kRescue,
                                           SelectorMethod::kWitness, SelectorMethod::kBound,
                                           SelectorMethod::kOracle),
                         method_name);

}  // namespace
}  // namespace fovea
