// Names, settings, geometry, budget and quantile: the rules that hold before any score.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "fovea/base/error.h"
#include "fovea/selector/selection_rules.h"
#include "tests/selector/selector_case.h"

namespace fovea {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::list_of;
using testing::make_prompt;
using testing::WholePrompt;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(SelectorNames, RoundTrip) {
  std::string names;
  for (const std::string_view name : selector_method_names()) {
    EXPECT_EQ(selector_method_name(parse_selector_method(name)), name);
    names += std::string(name) + ", ";
  }
  EXPECT_THAT(names, HasSubstr("all, streaming, centroid, rescue, witness, bound, oracle, minmax"));
  EXPECT_THAT(error_of([] { parse_selector_method("dense"); }), HasSubstr(names + "got 'dense'"));
}

TEST(SelectorSettings, NamesTheFirstBrokenRule) {
  check_selector_settings({});
  auto error = [](auto change) {
    SelectorSettings settings;
    change(settings);
    return error_of([&] { check_selector_settings(settings); });
  };
  EXPECT_THAT(error([](auto& s) { s.block_size = 8; }), HasSubstr("block_size"));
  EXPECT_THAT(error([](auto& s) { s.coverage = 1.5f; }), HasSubstr("coverage"));
  EXPECT_THAT(error([](auto& s) { s.vertical_tokens = -1; }), HasSubstr("vertical_tokens"));
  EXPECT_THAT(error([](auto& s) { s.slash_tokens = -1; }), HasSubstr("slash_tokens"));
  EXPECT_THAT(error([](auto& s) { s.most_divergence = 2; }), HasSubstr("most_divergence"));
  EXPECT_THAT(error([](auto& s) { s.least_similarity = -1; }), HasSubstr("least_similarity"));
  EXPECT_THAT(error([](auto& s) { s.nearest_gap = -1; }), HasSubstr("nearest_gap"));
  EXPECT_THAT(error([](auto& s) { s.mass_power = 0; }), HasSubstr("mass_power"));
  EXPECT_THAT(error([](auto& s) { s.least_peak = 2; }), HasSubstr("least_peak"));
  EXPECT_THAT(error([](auto& s) {
                s.method = SelectorMethod::kAntidiagonal;
                s.antidiagonal_stride = 12;
              }),
              HasSubstr("antidiagonal_stride must divide block_size 128, got 12"));
  EXPECT_THAT(error([](auto& s) { s.alpha_base = 1.5f; }), HasSubstr("alpha_base"));
  EXPECT_THAT(error([](auto& s) { s.alpha_rescue = -0.1f; }), HasSubstr("alpha_rescue"));
  EXPECT_THAT(error([](auto& s) { s.alpha_base = NAN; }), HasSubstr("alpha_base"));
  EXPECT_THAT(error([](auto& s) { s.quantile_low = 0.95f; }), HasSubstr("must not exceed"));
  EXPECT_THAT(error([](auto& s) { s.uplift_clamp = 2; }), HasSubstr("uplift_clamp"));
  EXPECT_THAT(error([](auto& s) { s.density = -1; }), HasSubstr("density"));
  EXPECT_THAT(error([](auto& s) { s.rescue_share = 1.1f; }), HasSubstr("rescue_share"));
  EXPECT_THAT(error([](auto& s) { s.sink_blocks = -1; }), HasSubstr("sink_blocks"));
  EXPECT_THAT(error([](auto& s) { s.local_blocks = 0; }), HasSubstr("local_blocks"));
  EXPECT_THAT(error([](auto& s) { s.num_witnesses = 9; }), HasSubstr("num_witnesses"));
  EXPECT_THAT(error([](auto& s) { s.calm_quantile = 1.5f; }), HasSubstr("calm_quantile"));
  EXPECT_THAT(error([](auto& s) { s.witness_choice = static_cast<WitnessChoice>(3); }),
              HasSubstr("witness_choice"));
  EXPECT_THAT(error([](auto& s) { s.aggregation = static_cast<Aggregation>(3); }),
              HasSubstr("aggregation"));
  EXPECT_THAT(error([](auto& s) {
                s.method = SelectorMethod::kPeak;
                s.lists_per_kv_head = true;
              }),
              HasSubstr("lists_per_kv_head is not for peak"));
  EXPECT_THAT(error([](auto& s) {
                s.method = SelectorMethod::kWitness;
                s.skip_by_bound = true;
                s.aggregation = Aggregation::kMax;
              }),
              HasSubstr("skip_by_bound needs aggregation sum"));
  EXPECT_THAT(error([](auto& s) { s.method = static_cast<SelectorMethod>(99); }),
              HasSubstr("method"));
}

// Keys in f8 are for those who judge by statistics.
TEST(SelectorParams, KeysMustBeOfTheTypeOfQOrPagesOfCodes) {
  SelectorSettings settings;
  settings.method = SelectorMethod::kWitness;
  WholePrompt whole({}, make_prompt({}, 20 * 16, 3), settings);
  SelectorParams& params = whole.call.params;
  const auto error = [&] { return error_of([&] { check_selector_params(params, {}); }); };
  const TensorView pages = params.kv.k;
  // Codes in one piece, [tokens, num_kv_heads, head_dim].
  const TensorView contiguous =
      make_view(pages.data, DType::kF8E4M3, {20 * 16, pages.shape[1], pages.shape[3]}, {});
  for (const SelectorMethod method :
       {SelectorMethod::kWitness, SelectorMethod::kOracle, SelectorMethod::kMinMax}) {
    SCOPED_TRACE(selector_method_name(method));
    params.settings.method = method;
    params.kv.k = pages;
    params.kv.page_size = 16;
    params.kv.k.dtype = DType::kF8E4M3;
    EXPECT_EQ(error(), "no error");
    params.kv.k.dtype = DType::kBF16;
    EXPECT_THAT(error(), HasSubstr("k must be f32"));
    params.kv.k = contiguous;
    params.kv.page_size = 0;
    if (method == SelectorMethod::kWitness) continue;  // reads statistics only
    EXPECT_THAT(error(), HasSubstr("k must be f32"));
  }
  params.settings.method = SelectorMethod::kWitness;
  params.settings.f8_witnesses = true;  // chosen from the keys, which then are read
  EXPECT_THAT(error(), HasSubstr("k must be f32"));
}

TEST(ForcedBlocks, SinkLocalAndTail) {
  SelectorSettings settings;
  settings.method = SelectorMethod::kCentroid;
  settings.sink_blocks = 2;
  settings.local_blocks = 3;
  SequencePlan plan;
  plan.dense_from = 20;
  EXPECT_EQ(forced_blocks(settings, plan, 0).count(0), 1);
  EXPECT_EQ(forced_blocks(settings, plan, 4).count(4), 5);
  const ForcedBlocks middle = forced_blocks(settings, plan, 10);
  EXPECT_EQ(middle.sink_end, 2);
  EXPECT_EQ(middle.local_begin, 8);
  EXPECT_EQ(middle.count(10), 5);
  EXPECT_EQ(forced_blocks(settings, plan, 20).count(20), 21);
}

TEST(Budget, ReachesTheDensityAndNeverDependsOnLength) {
  SelectorSettings settings;
  for (float density : {0.03f, 0.0534f, 0.1f, 0.5f, 1.0f}) {
    settings.density = density;
    const std::vector<int32_t> longest = budget_counts(settings, 1024);
    const std::vector<int32_t> shorter = budget_counts(settings, 300);
    EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longest.begin()));
    int64_t kept = 0;
    for (int64_t i = 0; i < 1024; ++i) {
      const int32_t count = longest[static_cast<size_t>(i)];
      EXPECT_GE(count, std::min<int64_t>(3, i + 1));
      EXPECT_LE(count, i + 1);
      EXPECT_LE(count, most_kept_blocks(settings, i + 1));
      kept += count;
      if (i >= 511) {
        const double causal = static_cast<double>((i + 1) * (i + 2)) / 2;
        EXPECT_NEAR(static_cast<double>(kept) / causal, static_cast<double>(density), 1e-4)
            << "after query block " << i;
      }
    }
  }
}

TEST(Quantile, InterpolatesBetweenRanks) {
  std::vector<float> values = {4, 1, 3, 2, 10};
  EXPECT_DOUBLE_EQ(interpolated_quantile(values, 0.5), 3.0);
  EXPECT_NEAR(interpolated_quantile(values, 0.9), 4 + 0.6 * 6, 1e-12);
  EXPECT_DOUBLE_EQ(interpolated_quantile(values, 0.0), 1.0);
  EXPECT_DOUBLE_EQ(interpolated_quantile(values, 1.0), 10.0);
  std::vector<float> one = {7};
  EXPECT_DOUBLE_EQ(interpolated_quantile(one, 0.9), 7.0);
}

TEST(FixedSelector, AllListsEverything) {
  SelectorSettings settings;
  settings.method = SelectorMethod::kAll;
  WholePrompt whole({}, make_prompt({}, 70, 1), settings);
  BlockSelection selection;
  select_blocks(whole.call.params, {}, selection);
  EXPECT_EQ(selection.num_q_blocks, 5);
  EXPECT_EQ(selection.causal_pairs, 4 * 15);
  EXPECT_EQ(selection.kept_pairs, 4 * 15);
  EXPECT_EQ(selection.density(), 1.0);
  EXPECT_THAT(list_of(selection, 3, 4), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(density_per_head(selection), ElementsAre(1, 1, 1, 1));
}

TEST(FixedSelector, StreamingKeepsSinkAndWindow) {
  SelectorSettings settings;
  settings.method = SelectorMethod::kStreaming;
  settings.streaming_sink_tokens = 17;   // two blocks of 16
  settings.streaming_local_tokens = 18;  // row 16 i sees back to 16 i - 17, two blocks before i
  WholePrompt whole({}, make_prompt({}, 160, 1), settings);
  BlockSelection selection;
  select_blocks(whole.call.params, {}, selection);
  EXPECT_THAT(list_of(selection, 0, 9), ElementsAre(0, 1, 7, 8, 9));
  EXPECT_THAT(list_of(selection, 2, 2), ElementsAre(0, 1, 2));
  EXPECT_EQ(selection.forced_pairs, selection.kept_pairs);
}

TEST(FixedSelector, ShortPromptsAndTailsAreDense) {
  SelectorSettings settings;
  settings.density = 0.01f;
  settings.min_sparse_len = 161;
  WholePrompt whole({}, make_prompt({}, 160, 1), settings);
  BlockSelection selection;
  select_blocks(whole.call.params, {}, selection);
  EXPECT_EQ(selection.density(), 1.0);
  whole.call.params.settings.min_sparse_len = 160;
  whole.call.params.settings.dense_tail_blocks = 2;
  select_blocks(whole.call.params, {}, selection);
  EXPECT_EQ(list_of(selection, 0, 7).size(), 3u);
  EXPECT_EQ(list_of(selection, 0, 8).size(), 9u);
  EXPECT_EQ(list_of(selection, 0, 9).size(), 10u);
}

TEST(SelectBlocks, EmptyBatchAndEmptySequences) {
  SelectorSettings settings;
  const testing::Prompt prompt = make_prompt({}, 64, 3);
  testing::PagedCase pages({}, 8, 3, 1);
  pages.append(1, prompt, 48);
  testing::Call call(pages, {nullptr, &prompt, nullptr}, {0, 16, 0}, settings);
  BlockSelection selection;
  select_blocks(call.params, {}, selection);
  EXPECT_THAT(selection.q_block_offsets, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(selection.num_q_blocks, 1);

  testing::Call none(pages, {nullptr, nullptr, nullptr}, {0, 0, 0}, settings);
  select_blocks(none.params, {}, selection);
  EXPECT_EQ(selection.num_q_blocks, 0);
  EXPECT_EQ(selection.density(), 1.0);
  EXPECT_TRUE(selection.blocks.empty());
}

TEST(SelectBlocks, ChecksNameTheRule) {
  SelectorSettings settings;
  settings.method = SelectorMethod::kWitness;
  auto error = [&](auto change) {
    WholePrompt whole({}, make_prompt({}, 64, 1), settings);
    change(whole.call.params);
    return error_of([&] {
      BlockSelection selection;
      select_blocks(whole.call.params, {}, selection);
    });
  };
  EXPECT_THAT(error([](auto&) {}), HasSubstr("no error"));
  EXPECT_THAT(error([](auto& p) { p.q.dtype = DType::kF16; }), HasSubstr("q must be f32 or bf16"));
  EXPECT_THAT(error([](auto& p) { p.q.dtype = DType::kBF16; }), HasSubstr("k must be bf16"));
  EXPECT_THAT(error([](auto& p) { p.kv.page_size = 32; }), HasSubstr("page_size"));
  EXPECT_THAT(error([](auto& p) { p.kv.page_table_stride = 3; }), HasSubstr("room for 3"));
  EXPECT_THAT(error([](auto& p) { p.settings.num_witnesses = 2; }), HasSubstr("num_witnesses"));
  EXPECT_THAT(error([](auto& p) { p.stats.radius = {}; }), HasSubstr("stats.radius"));
  EXPECT_THAT(error([](auto& p) { p.softmax_scale = INFINITY; }), HasSubstr("softmax_scale"));
  EXPECT_THAT(error([](auto& p) { p.settings.density = 2; }), HasSubstr("density"));
  EXPECT_THAT(error([](auto& p) {
                static const int64_t kShort[] = {63};
                p.prompt_lens = kShort;
              }),
              HasSubstr("prompt_lens"));
  EXPECT_THAT(error([](auto& p) {
                static const int64_t kOffsets[] = {0, 63};
                p.batch.q_offsets = kOffsets;
              }),
              HasSubstr("multiple of block_size"));
  EXPECT_THAT(error([](auto& p) {
                static const int32_t kPages[] = {0, 1, 99, 2, 3};
                p.kv.page_table = kPages;
              }),
              HasSubstr("got 99"));
}

}  // namespace
}  // namespace fovea
