// The lab's selectors against plain references.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "fovea/selector/lab/lab_selector.h"
#include "fovea/selector/lab/plane.h"
#include "tests/selector/lab_reference.h"
#include "tests/selector/selector_case.h"

namespace fovea {
namespace {

using testing::Call;
using testing::CaseShape;
using testing::list_of;
using testing::make_prompt;
using testing::Prompt;
using testing::WholePrompt;

// Inputs are random and the same in every run: scores lie far apart beside f32's rounding, so lists
// must be equal.
void expect_reference_lists(const SelectorParams& params) {
  BlockSelection got;
  lab_selector().run(params, {}, got);
  int64_t kept = 0, forced = 0;
  for (const SequencePlan& plan : plan_sequences(params)) {
    for (int64_t h = 0; h < params.q.shape[1]; ++h) {
      for (int64_t i = plan.first_block; i < plan.end_block; ++i) {
        const auto want = testing::lab_reference_list(params, plan, h, i);
        EXPECT_EQ(list_of(got, h, plan.q_block_offset + i - plan.first_block), want)
            << "head " << h << ", q block " << i;
        kept += std::ssize(want);
        forced += forced_blocks(params.settings, plan, i).count(i);
      }
    }
  }
  EXPECT_EQ(got.kept_pairs, kept);
  EXPECT_EQ(got.forced_pairs, forced);
  EXPECT_EQ(got.non_finite_pairs, 0);
}

std::string method_name(SelectorMethod method) { return std::string(selector_method_name(method)); }

// Methods that look at each query block by itself, and those that judge heads by a call's last
// rows.
const auto kLocalMethods = ::testing::Values(SelectorMethod::kMinMax, SelectorMethod::kAntidiagonal,
                                             SelectorMethod::kSelfSimilar, SelectorMethod::kNearest,
                                             SelectorMethod::kMass, SelectorMethod::kPeak);
const auto kLastRowMethods =
    ::testing::Values(SelectorMethod::kVerticalSlash, SelectorMethod::kQueryAware);

// What keeps some of a small case's blocks, and not all.
SelectorSettings settings_for(SelectorMethod method) {
  SelectorSettings settings;
  settings.method = method;
  settings.vertical_tokens = 6;
  settings.slash_tokens = 12;
  settings.coverage = method == SelectorMethod::kQueryAware ? 0.3f : 0.7f;
  settings.least_similarity = 0.3f;
  settings.nearest_gap = 0.3f;
  settings.least_peak = 0.3f;
  return settings;
}

class LabTest : public ::testing::TestWithParam<std::tuple<SelectorMethod, Aggregation, float>> {
 protected:
  SelectorSettings settings() const {
    SelectorSettings settings = settings_for(std::get<0>(GetParam()));
    std::tie(std::ignore, settings.aggregation, settings.density) = GetParam();
    return settings;
  }
};

TEST_P(LabTest, FollowsItsReference) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    CaseShape shape;
    shape.dtype = dtype;
    shape.head_dim = dtype == DType::kF32 ? 24 : 32;
    SelectorSettings asked = settings();
    asked.forced_in_maximum = dtype == DType::kBF16;
    WholePrompt whole(shape, make_prompt(shape, 29 * shape.block_size + 5, 23), asked);
    expect_reference_lists(whole.call.params);
    BlockSelection selection;
    select_blocks(whole.call.params, {}, selection);
    EXPECT_GT(selection.kept_pairs, selection.forced_pairs);
    EXPECT_LT(selection.density(), 0.95);  // a case that keeps everything would show nothing
  }
}

// The query of a decode step, in the middle of a block or at its start.
TEST_P(LabTest, ASingleRowFollowsItsReference) {
  const CaseShape shape;
  for (const int64_t row : {0, 5}) {
    const Prompt prompt = make_prompt(shape, 29 * shape.block_size + row + 1, 29);
    WholePrompt whole(shape, prompt, settings());
    Call step(whole.pages, {&prompt}, {1}, settings());
    expect_reference_lists(step.params);
  }
}

std::string variant_name(
    const ::testing::TestParamInfo<std::tuple<SelectorMethod, Aggregation, float>>& test) {
  const auto& [method, aggregation, density] = test.param;
  return method_name(method) + (aggregation == Aggregation::kSum ? "_sum" : "_max") +
         (density > 0 ? "_budget" : "_threshold");
}

const auto kDensities = ::testing::Values(0.0f, 0.3f);

INSTANTIATE_TEST_SUITE_P(Alphas, LabTest,
                         ::testing::Combine(::testing::Values(SelectorMethod::kMinMax),
                                            ::testing::Values(Aggregation::kMax), kDensities),
                         variant_name);
INSTANTIATE_TEST_SUITE_P(Local, LabTest,
                         ::testing::Combine(kLocalMethods, ::testing::Values(Aggregation::kSum),
                                            kDensities),
                         variant_name);
INSTANTIATE_TEST_SUITE_P(LastRows, LabTest,
                         ::testing::Combine(kLastRowMethods, ::testing::Values(Aggregation::kSum),
                                            kDensities),
                         variant_name);

// A served method in a variant that pages have no statistics for, or one of the lab's with it.
struct WitnessVariant {
  const char* name;
  SelectorMethod method = SelectorMethod::kWitness;
  WitnessChoice choice = WitnessChoice::kSpread;
  bool f8 = false;
  float calm_quantile = 0;
  bool skip = false;
  Aggregation aggregation = Aggregation::kSum;

  SelectorSettings settings() const {
    SelectorSettings settings = settings_for(method);
    settings.witness_choice = choice;
    settings.f8_witnesses = f8;
    settings.calm_quantile = calm_quantile;
    settings.skip_by_bound = skip;
    settings.aggregation = aggregation;
    return settings;
  }
};

// Every other key is nearly its neighbour's twin: the farthest keys come in pairs, of which a
// choice that spreads takes one.
Prompt make_twins(const CaseShape& shape, int64_t len, uint64_t seed) {
  Prompt prompt = make_prompt(shape, len, seed);
  const auto row = static_cast<size_t>(shape.num_kv_heads * shape.head_dim);
  for (size_t i = row; i < prompt.k.size(); ++i) {
    if (i / row % 2 == 1) prompt.k[i] = 0.9f * prompt.k[i - row] + 0.1f * prompt.k[i];
  }
  return prompt;
}

class WitnessVariantTest : public ::testing::TestWithParam<WitnessVariant> {};

TEST_P(WitnessVariantTest, FollowsItsReference) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const float density : {0.0f, 0.3f}) {
      SCOPED_TRACE(fmt::format("{}, density {}", dtype_name(dtype), density));
      CaseShape shape;
      shape.dtype = dtype;
      shape.head_dim = dtype == DType::kF32 ? 24 : 32;
      SelectorSettings settings = GetParam().settings();
      settings.density = density;
      settings.forced_in_maximum = dtype == DType::kBF16;
      WholePrompt whole(shape, make_twins(shape, 29 * shape.block_size + 5, 23), settings);
      expect_reference_lists(whole.call.params);
      BlockSelection varied, served;
      select_blocks(whole.call.params, {}, varied);
      EXPECT_GT(varied.kept_pairs, varied.forced_pairs);
      EXPECT_LT(varied.density(), 0.95);
      const Prompt longer = make_twins(shape, 29 * shape.block_size + 6, 29);
      WholePrompt other(shape, longer, settings);
      Call step(other.pages, {&longer}, {1}, settings);
      expect_reference_lists(step.params);
      // A variant that keeps what the page's witnesses keep would show nothing; one that skips
      // must.
      SelectorSettings& plain = whole.call.params.settings;
      plain.witness_choice = WitnessChoice::kSpread;
      plain.f8_witnesses = plain.skip_by_bound = false;
      plain.calm_quantile = 0;
      select_blocks(whole.call.params, {}, served);
      EXPECT_EQ(varied.blocks == served.blocks, !varies_witnesses(settings));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lab, WitnessVariantTest,
    ::testing::Values(
        WitnessVariant{.name = "far", .choice = WitnessChoice::kFar},
        WitnessVariant{.name = "norm", .choice = WitnessChoice::kNorm},
        WitnessVariant{.name = "f8", .f8 = true},
        WitnessVariant{.name = "calm", .calm_quantile = 0.5f},
        WitnessVariant{.name = "norm_f8_calm_max",
                       .choice = WitnessChoice::kNorm,
                       .f8 = true,
                       .calm_quantile = 0.3f,
                       .aggregation = Aggregation::kMax},
        WitnessVariant{
            .name = "mass_far", .method = SelectorMethod::kMass, .choice = WitnessChoice::kFar},
        WitnessVariant{.name = "peak_calm", .method = SelectorMethod::kPeak, .calm_quantile = 0.5f},
        WitnessVariant{.name = "nearest_f8", .method = SelectorMethod::kNearest, .f8 = true},
        WitnessVariant{.name = "skip", .skip = true},
        WitnessVariant{.name = "skip_far_calm",
                       .choice = WitnessChoice::kFar,
                       .calm_quantile = 0.5f,
                       .skip = true}),
    [](const auto& test) { return std::string(test.param.name); });

// What `witness` selects in the whole prompt when it looks at all blocks, and when it skips.
struct SeenAndSkipped {
  explicit SeenAndSkipped(WholePrompt& whole) {
    select_blocks(whole.call.params, {}, seen);
    whole.call.params.settings.skip_by_bound = true;
    select_blocks(whole.call.params, {}, skipped);
  }
  BlockSelection seen, skipped;
};

// Tight blocks far from each other: a bound tells most of them apart without a look.
TEST(SkipByBound, LooksAtFewOfTightBlocksAndKeepsTheSame) {
  const CaseShape shape;
  for (const float density : {0.0f, 0.3f}) {
    SelectorSettings settings;
    settings.method = SelectorMethod::kWitness;
    settings.density = density;
    Prompt prompt = make_prompt(shape, 40 * shape.block_size, 23);
    const auto row = static_cast<size_t>(shape.num_kv_heads * shape.head_dim);
    for (size_t i = 0; i < prompt.k.size(); ++i) {
      const size_t first = i / row / static_cast<size_t>(shape.block_size) *
                               static_cast<size_t>(shape.block_size) * row +
                           i % row;
      prompt.k[i] = 0.95f * prompt.k[first] + 0.05f * prompt.k[i];
    }
    WholePrompt whole(shape, prompt, settings);
    const auto [seen, skipped] = SeenAndSkipped(whole);
    EXPECT_EQ(skipped.begin, seen.begin);
    EXPECT_EQ(skipped.blocks, seen.blocks);
    EXPECT_EQ(seen.skipped_pairs, 0);
    EXPECT_GT(skipped.skipped_pairs, skipped.causal_pairs / 4);
    EXPECT_LE(skipped.skipped_pairs, skipped.causal_pairs - skipped.kept_pairs);
  }
}

// A block that is not finite takes a place of the budget, whether it is looked at or not.
TEST(SkipByBound, KeepsBlocksThatAreNotFinite) {
  const CaseShape shape;
  SelectorSettings settings;
  settings.method = SelectorMethod::kWitness;
  settings.density = 0.3f;
  Prompt prompt = make_prompt(shape, 24 * shape.block_size, 41);
  const int64_t row = 9 * shape.block_size + 2;
  prompt.k[static_cast<size_t>(row * shape.num_kv_heads * shape.head_dim)] =
      std::numeric_limits<float>::quiet_NaN();
  WholePrompt whole(shape, prompt, settings);
  const auto [seen, skipped] = SeenAndSkipped(whole);
  EXPECT_EQ(skipped.blocks, seen.blocks);
  EXPECT_EQ(skipped.non_finite_pairs, seen.non_finite_pairs);
  EXPECT_GT(seen.non_finite_pairs, 0);
}

// A divergence that some heads of the case stay under and others do not.
TEST(QueryAware, FollowsItsReferenceWithBothPatterns) {
  const CaseShape shape;
  SelectorSettings settings = settings_for(SelectorMethod::kQueryAware);
  std::vector<double> densities;
  for (const float divergence : {0.0f, 0.25f, 1.0f}) {
    SCOPED_TRACE(divergence);
    settings.most_divergence = divergence;
    WholePrompt whole(shape, make_prompt(shape, 29 * shape.block_size + 5, 23), settings);
    expect_reference_lists(whole.call.params);
    BlockSelection selection;
    select_blocks(whole.call.params, {}, selection);
    densities.push_back(selection.density());
  }
  EXPECT_NE(densities.front(), densities.back());
}

TEST(Mass, FollowsItsReferenceWithAPower) {
  const CaseShape shape;
  for (const float density : {0.0f, 0.3f}) {
    SelectorSettings settings = settings_for(SelectorMethod::kMass);
    settings.mass_power = 1.5f;
    settings.density = density;
    const Prompt prompt = make_prompt(shape, 29 * shape.block_size + 5, 23);
    WholePrompt powered(shape, prompt, settings);
    expect_reference_lists(powered.call.params);
    BlockSelection selection, plain;
    select_blocks(powered.call.params, {}, selection);
    settings.mass_power = 1;
    WholePrompt whole(shape, prompt, settings);
    select_blocks(whole.call.params, {}, plain);
    EXPECT_NE(selection.blocks, plain.blocks);
  }
}

// The similarities of the case's blocks are spread out: under the least of them all speak for
// themselves, over the largest none does.
TEST(SelfSimilar, KeepsEverythingThatDiffers) {
  const CaseShape shape;
  SelectorSettings settings = settings_for(SelectorMethod::kSelfSimilar);
  settings.least_similarity = 1;
  WholePrompt whole(shape, make_prompt(shape, 12 * shape.block_size, 23), settings);
  BlockSelection selection;
  select_blocks(whole.call.params, {}, selection);
  EXPECT_EQ(selection.density(), 1);
  whole.call.params.settings.least_similarity = 0;
  select_blocks(whole.call.params, {}, selection);
  EXPECT_LT(selection.density(), 0.95);
}

class LabNonFiniteTest : public ::testing::TestWithParam<SelectorMethod> {};

TEST_P(LabNonFiniteTest, KeyBlockIsKeptAndCounted) {
  const CaseShape shape;
  SelectorSettings settings = settings_for(GetParam());
  settings.density = 0.2f;
  Prompt prompt = make_prompt(shape, 24 * shape.block_size, 41);
  const int64_t row = 9 * shape.block_size + 2;  // KV head 1: q heads 2 and 3
  prompt.k[static_cast<size_t>((row * shape.num_kv_heads + 1) * shape.head_dim)] =
      std::numeric_limits<float>::quiet_NaN();
  WholePrompt whole(shape, prompt, settings);
  BlockSelection selection;
  lab_selector().run(whole.call.params, {}, selection);
  for (int64_t h : {2, 3}) {
    for (int64_t i = 9; i < 24; ++i) {
      EXPECT_THAT(list_of(selection, h, i), ::testing::Contains(9));
    }
  }
  EXPECT_EQ(selection.non_finite_pairs, 2 * (24 - 10));
  // One bad block takes one place of a list; the others are chosen among as before, also by its own
  // queries, though some methods look at their own keys.
  EXPECT_LT(selection.density(), 0.4);
  const std::vector<int32_t> own = list_of(selection, 2, 9);
  EXPECT_LT(own.size(), 9u);
}

TEST_P(LabNonFiniteTest, QueryBlockKeepsEverything) {
  const CaseShape shape;
  const SelectorSettings settings = settings_for(GetParam());
  for (float bad : {std::numeric_limits<float>::infinity(), 1e19f}) {
    Prompt prompt = make_prompt(shape, 12 * shape.block_size, 41);
    const int64_t row = 8 * shape.block_size + 15;
    prompt.q[static_cast<size_t>(row * shape.num_q_heads * shape.head_dim)] = bad;  // q head 0
    WholePrompt whole(shape, prompt, settings);
    BlockSelection selection;
    lab_selector().run(whole.call.params, {}, selection);
    EXPECT_EQ(list_of(selection, 0, 8).size(), 9u);
    if (!depends_on_chunk(settings)) {
      EXPECT_EQ(selection.non_finite_pairs, 8);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Local, LabNonFiniteTest, kLocalMethods,
                         [](const auto& test) { return method_name(test.param); });
INSTANTIATE_TEST_SUITE_P(LastRows, LabNonFiniteTest, kLastRowMethods,
                         [](const auto& test) { return method_name(test.param); });

// A bad row among the last ones leaves nothing to judge a head by.
TEST(LastRows, ThatAreNotFiniteKeepEverything) {
  const CaseShape shape;
  for (const SelectorMethod method :
       {SelectorMethod::kVerticalSlash, SelectorMethod::kQueryAware}) {
    Prompt prompt = make_prompt(shape, 12 * shape.block_size, 41);
    const int64_t row = prompt.len - 3;
    prompt.q[static_cast<size_t>(row * shape.num_q_heads * shape.head_dim)] =
        std::numeric_limits<float>::quiet_NaN();  // q head 0
    WholePrompt whole(shape, prompt, settings_for(method));
    BlockSelection selection;
    lab_selector().run(whole.call.params, {}, selection);
    const std::vector<double> density = density_per_head(selection);
    EXPECT_EQ(density[0], 1);
    EXPECT_LT(density[1], 1);
    EXPECT_GT(selection.non_finite_pairs, 0);
  }
}

// Why they are not invariant: the chunk's end is what they look at.
TEST(LastRows, OfAnotherChunkGiveOtherLists) {
  const CaseShape shape;
  for (const SelectorMethod method :
       {SelectorMethod::kVerticalSlash, SelectorMethod::kQueryAware}) {
    const SelectorSettings settings = settings_for(method);
    EXPECT_TRUE(depends_on_chunk(settings));
    const Prompt prompt = make_prompt(shape, 24 * shape.block_size, 3);
    WholePrompt whole(shape, prompt, settings);
    BlockSelection of_whole, of_half;
    lab_selector().run(whole.call.params, {}, of_whole);
    testing::PagedCase pages(shape, 24, 1, 1);
    pages.append(0, prompt, prompt.len / 2);
    Call half(pages, {&prompt}, {prompt.len / 2}, settings);
    lab_selector().run(half.params, {}, of_half);
    int64_t different = 0;
    for (int64_t h = 0; h < shape.num_q_heads; ++h) {
      for (int64_t i = 0; i < 12; ++i) {
        different += list_of(of_half, h, i) != list_of(of_whole, h, i) ? 1 : 0;
      }
    }
    EXPECT_GT(different, 0);
  }
}

}  // namespace
}  // namespace fovea
