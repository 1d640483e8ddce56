#include "apps/cli/sweep.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/cli/sweep_engine.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"

namespace fovea::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SweepSample sample(int64_t tokens, double ttft_ms, std::optional<int64_t> cached = {}) {
  SweepSample one;
  one.prompt_tokens = tokens;
  one.ttft_ms = ttft_ms;
  one.itl_ms = {1, 2, 30};
  one.cached_tokens = cached;
  return one;
}

TEST(SweepRecord, MediansBecomeATable) {
  SweepRecord record;
  for (const double ttft_ms : {10., 30., 20.}) record.add(256, "a", sample(255, ttft_ms));
  record.add(256, "b", sample(256, 7));
  record.add(512, "a", sample(512, 50));
  const worth::SweepTable table = record.table();
  ASSERT_EQ(table.prefill.size(), 2u);
  EXPECT_THAT(table.prefill[0].tokens, ElementsAre(255, 512));
  EXPECT_THAT(table.prefill[0].values, ElementsAre(.02, .05));
  EXPECT_THAT(table.decode[1].values, ElementsAre(2));
  EXPECT_EQ(record.num_samples(), 5);
  EXPECT_TRUE(record.notes().empty());
  const nlohmann::json json = record.to_json();
  EXPECT_EQ(json[0]["ttft_ms"]["median"], 20);
  EXPECT_EQ(json[0]["samples"].size(), 3u);
  EXPECT_TRUE(json[0]["samples"][0]["cached_tokens"].is_null());
}

TEST(SweepRecord, CachedPromptsAreLeftOutAndReported) {
  SweepRecord record;
  record.add(1000, "a", sample(1000, 100, 16));  // a template's first block is not a hit
  record.add(1000, "a", sample(1000, 5, 900));
  record.add(2000, "a", sample(2000, 5, 1999));
  const worth::SweepTable table = record.table();
  EXPECT_THAT(table.prefill[0].tokens, ElementsAre(1000));
  EXPECT_THAT(table.prefill[0].values, ElementsAre(.1));
  EXPECT_THAT(record.notes(),
              ElementsAre(HasSubstr("3 of 3 prompts, up to 1999 tokens; 2 of them")));
  EXPECT_THAT(record.to_text(), HasSubstr("2000"));
  EXPECT_TRUE(record.to_json()[1]["ttft_ms"].is_null());
}

TEST(SweepRecord, ATtftFarBelowTheFitIsReported) {
  SweepRecord record;
  for (const int64_t n : {256, 512, 1024, 2048, 4096, 8192}) {
    const auto tokens = static_cast<double>(n);
    const double ttft_ms = 5 + 0.1 * tokens + 1e-5 * tokens * tokens;
    record.add(n, "a", sample(n, n == 2048 ? ttft_ms / 8 : ttft_ms));
  }
  EXPECT_THAT(record.notes(), ElementsAre(HasSubstr("a: ttft at 2048 tokens")));
}

TEST(RunSweep, BackendsTakeTurnsAndWarmUpFirst) {
  SweepPlan plan;
  plan.lengths = {1, 2};
  plan.repetitions = 2;
  std::string order;
  double last = -1;
  run_sweep(
      plan, {"a", "b"},
      [&](const std::string&, double share) {
        EXPECT_GT(share, last);
        EXPECT_LT(share, 1);
        last = share;
      },
      [&](int64_t length, size_t backend, bool timed) {
        order += fmt::format("{}{}{} ", length, backend == 0 ? 'a' : 'b', timed ? '!' : '.');
      });
  EXPECT_EQ(order, "1a. 1b. 1a! 1b! 1b! 1a! 2a. 2b. 2a! 2b! 2b! 2a! ");
}

TEST(SweepEngine, MeasuresEveryAttentionAtEveryLength) {
  const auto model = Model::load("models/needle_7m");
  SweepPlan plan;
  plan.lengths = {64, 128};
  plan.repetitions = 2;
  plan.decode_tokens = 3;
  AttentionSettings sparse;
  sparse.selector = SelectorSettings{};
  SweepRecord record;
  sweep_engine(
      model, plan, {"dense", "rescue"}, {{}, sparse}, nullptr, [](const std::string&, double) {},
      &record);
  ASSERT_EQ(record.rows().size(), 4u);
  for (const SweepRow& row : record.rows()) {
    ASSERT_EQ(row.samples.size(), 2u);
    EXPECT_EQ(row.samples[0].prompt_tokens, row.length);
    EXPECT_EQ(row.samples[0].cached_tokens, 0);
    EXPECT_EQ(row.itl_ms().size(), 6u);
  }
}

TEST(SweepEngine, KvBytesAreOfTheTypeThatIsKept) {
  const auto model = Model::load("models/needle_7m");
  const ModelConfig& config = model->config();
  EXPECT_EQ(growing_kv_bytes_per_token(*model, {}), model->kv_bytes_per_token());
  AttentionSettings coded;
  coded.kv_codes = DType::kI8;
  EXPECT_EQ(growing_kv_bytes_per_token(*model, coded),
            2 * config.num_layers * config.num_kv_heads * config.head_dim);
}

TEST(SweepEngine, CancelKeepsWhatWasMeasured) {
  const auto model = Model::load("models/needle_7m");
  SweepPlan plan;
  plan.lengths = {64, model->config().context_length};
  SweepRecord record;
  std::atomic<bool> cancel = false;
  const auto run = [&] {
    sweep_engine(
        model, plan, {"dense"}, {{}}, &cancel,
        [&](const std::string&, double) { cancel = record.num_samples() == 2; }, &record);
  };
  EXPECT_THROW(run(), Error);  // the last length leaves no room for an answer
  EXPECT_EQ(record.num_samples(), 0);
  plan.lengths.pop_back();
  EXPECT_THROW(run(), Cancelled);
  EXPECT_EQ(record.num_samples(), 2);
}

}  // namespace
}  // namespace fovea::cli
