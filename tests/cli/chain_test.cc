#include "apps/cli/chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fovea/engine/session.h"

namespace fovea::cli {
namespace {

using testing::HasSubstr;

/// Attention takes `attention_ms` of `ttft_ms` in every repetition.
BenchRow row_of(const std::string& attention, double ttft_ms, double attention_ms,
                double selection_ms) {
  BenchRow row;
  row.length = 8192;
  row.attention = attention;
  for (int i = 0; i < 3; ++i) {
    row.ttft_ms.push_back(ttft_ms);
    row.density.push_back(attention == "dense" ? 1.0 : 0.05);
    PrefillReport report;
    report.sparse = attention != "dense";
    report.times.attention_ms = attention_ms;
    report.times.selection_ms = selection_ms;
    row.reports.push_back(report);
  }
  return row;
}

TEST(Chain, FollowsAWinFromTheEngineToTtft) {
  const auto chain = chain_of({row_of("dense", 100, 80, 0), row_of("rescue", 28, 6, 2)});
  ASSERT_EQ(chain.size(), 1u);
  const ChainRow& row = chain[0];
  EXPECT_EQ(row.attention, "rescue");
  EXPECT_DOUBLE_EQ(row.engine_speedup(), 10.0);
  EXPECT_DOUBLE_EQ(row.attention_share(), 0.8);
  EXPECT_DOUBLE_EQ(row.predicted_speedup(), 1 / (0.2 + 0.8 / 10));
  EXPECT_DOUBLE_EQ(row.ttft_speedup(), 100.0 / 28.0);
  // A rival whose attention takes 20 ms in each of 10 layers: 20 + 200 ms over 28.
  EXPECT_DOUBLE_EQ(row.speedup_over_rival(20, 10), 220.0 / 28.0);
}

TEST(Chain, NeedsDenseBesideItAndLayersThatWereSparse) {
  EXPECT_TRUE(chain_of({row_of("rescue", 28, 6, 2)}).empty());
  BenchRow stepped_aside = row_of("rescue", 28, 6, 2);
  for (PrefillReport& report : stepped_aside.reports) report.sparse = false;
  EXPECT_TRUE(chain_of({row_of("dense", 100, 80, 0), stepped_aside}).empty());
}

TEST(Chain, KernelsAreTimedOnTheModelsShape) {
  const auto model = Model::synthetic("Test-1M");
  auto chain = chain_of({row_of("dense", 100, 80, 0), row_of("rescue", 28, 6, 2)});
  chain[0].length = 1024;
  time_kernels(*model, false, chain);
  EXPECT_GT(chain[0].dense.kernel_ms, 0);
  EXPECT_GT(chain[0].sparse.kernel_ms, 0);
}

TEST(Chain, IsATableAndJson) {
  auto chain = chain_of({row_of("dense", 100, 80, 0), row_of("rescue", 28, 6, 2)});
  chain[0].dense.kernel_ms = 60;
  chain[0].sparse.kernel_ms = 4;
  EXPECT_THAT(chain_table(chain, {8192}, {20}, 10), HasSubstr("= 15.00x"));
  const auto json = chain_json(chain, {8192}, {20}, 10);
  EXPECT_DOUBLE_EQ(json[0]["kernel_speedup"].get<double>(), 15.0);
  EXPECT_DOUBLE_EQ(json[0]["ttft_speedup_over_rival"].get<double>(), 220.0 / 28.0);
  EXPECT_FALSE(chain_json(chain, {8192}, {}, 10)[0].contains("rival_layer_ms"));
}

}  // namespace
}  // namespace fovea::cli
