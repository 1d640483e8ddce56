#include "apps/cli/eval_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names_of(const EvalAxes& axes) {
  const std::vector<EvalVariant> variants = expand_variants(axes, {});
  std::vector<std::string> names;
  for (const EvalVariant& variant : variants) {
    names.push_back(variant.name(block_sizes_differ(variants)));
  }
  return names;
}

std::string error_of(const EvalAxes& axes) {
  try {
    expand_variants(axes, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(EvalPlan, DenseComesFirstAndOnce) {
  EXPECT_THAT(names_of({"rescue,dense,witness:2", "5.34,10", "off", "128"}),
              ElementsAre("dense", "rescue, 5.34 %", "rescue, 10 %", "witness:2, 5.34 %",
                          "witness:2, 10 %"));
}

TEST(EvalPlan, EveryCombinationThatDiffers) {
  // streaming has no scores that a budget could rank.
  EXPECT_THAT(
      names_of({"centroid,streaming", "own,3", "off,on", "64,128"}),
      ElementsAre("dense", "centroid, blocks of 64", "centroid, 3 %, blocks of 64",
                  "centroid, periphery, blocks of 64", "centroid, 3 %, periphery, blocks of 64",
                  "centroid, blocks of 128", "centroid, 3 %, blocks of 128",
                  "centroid, periphery, blocks of 128", "centroid, 3 %, periphery, blocks of 128",
                  "streaming, blocks of 64", "streaming, periphery, blocks of 64",
                  "streaming, blocks of 128", "streaming, periphery, blocks of 128"));
}

TEST(EvalPlan, SettingsFollowTheAxes) {
  AttentionOptions knobs;
  knobs.selector.sink_blocks = 3;
  const std::vector<EvalVariant> variants =
      expand_variants({"witness:2", "own,5.34", "on", "64"}, knobs);
  ASSERT_EQ(variants.size(), 3u);
  EXPECT_TRUE(variants[0].is_dense());
  EXPECT_FLOAT_EQ(variants[1].settings.selector->density,
                  default_density(SelectorMethod::kWitness));
  EXPECT_FALSE(variants[1].density.has_value());
  const AttentionSettings& settings = variants[2].settings;
  EXPECT_FLOAT_EQ(settings.selector->density, 0.0534f);
  EXPECT_EQ(settings.selector->block_size, 64);
  EXPECT_EQ(settings.selector->num_witnesses, 2);
  EXPECT_EQ(settings.selector->sink_blocks, 3);
  EXPECT_TRUE(settings.periphery);
  EXPECT_FLOAT_EQ(variants[2].with_budget(0.04).selector->density, 0.04f);
}

TEST(EvalPlan, WordsAfterWitnessAreSettings) {
  const std::vector<EvalVariant> variants = expand_variants(
      {"witness,witness:8:far:f8:calm=0.5,witness:norm:max_over_means,witness:skip,witness:kv_head",
       "5", "off", "64"},
      {});
  ASSERT_EQ(variants.size(), 6u);
  EXPECT_FALSE(is_lab(*variants[1].settings.selector));
  const SelectorSettings& far = *variants[2].settings.selector;
  EXPECT_EQ(far.num_witnesses, 8);
  EXPECT_EQ(far.witness_choice, WitnessChoice::kFar);
  EXPECT_TRUE(far.f8_witnesses);
  EXPECT_FLOAT_EQ(far.calm_quantile, 0.5f);
  const SelectorSettings& norm = *variants[3].settings.selector;
  EXPECT_EQ(norm.num_witnesses, 4);
  EXPECT_EQ(norm.witness_choice, WitnessChoice::kNorm);
  EXPECT_EQ(norm.aggregation, Aggregation::kMaxOverMeans);
  EXPECT_TRUE(variants[4].settings.selector->skip_by_bound);
  EXPECT_TRUE(variants[5].settings.selector->lists_per_kv_head);
  EXPECT_EQ(variants[2].name(false), "witness:8:far:f8:calm=0.5, 5 %");
}

TEST(EvalPlan, RefusesWhatIsNoAxis) {
  EXPECT_THAT(error_of({"rescue", "0.05", "off", "128"}), HasSubstr("percents in 0.1 ... 100"));
  EXPECT_THAT(error_of({"rescue", "5.34%", "off", "128"}), HasSubstr("\"5.34%\""));
  EXPECT_THAT(error_of({"rescue", "nan", "off", "128"}), HasSubstr("\"nan\""));
  EXPECT_THAT(error_of({"rescue", "3,3.0", "off", "128"}), HasSubstr("--densities names \"3.0\""));
  EXPECT_THAT(error_of({"rescue", "", "off", "128"}), HasSubstr("--densities is empty"));
  EXPECT_THAT(error_of({"rescue", "3", "maybe", "128"}), HasSubstr("off or on, not \"maybe\""));
  EXPECT_THAT(error_of({"rescue", "3", "off,none", "128"}), HasSubstr("names \"none\" twice"));
  EXPECT_THAT(error_of({"rescue", "3", "off", "8"}), HasSubstr("block_size"));
  EXPECT_THAT(error_of({"frob", "3", "off", "128"}), HasSubstr("frob"));
}

}  // namespace
}  // namespace fovea::cli
