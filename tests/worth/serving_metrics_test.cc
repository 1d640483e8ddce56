#include "fovea/worth/serving_metrics.h"

#include <gtest/gtest.h>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

RequestRecord evenly_spaced(double ttft_ms, double gap_ms, int num_tokens) {
  RequestRecord record;
  record.send_ms = 1000;
  for (int i = 0; i < num_tokens; ++i) record.token_ms.push_back(1000 + ttft_ms + i * gap_ms);
  return record;
}

TEST(ServingMetrics, Definitions) {
  RequestRecord record;
  record.send_ms = 10;
  record.token_ms = {110, 120, 150};
  const RequestMetrics metrics = request_metrics(record);
  EXPECT_DOUBLE_EQ(metrics.ttft_ms, 100);
  EXPECT_DOUBLE_EQ(metrics.e2e_ms, 140);
  EXPECT_EQ(metrics.itl_ms, (std::vector<double>{10, 30}));
  EXPECT_DOUBLE_EQ(*metrics.tpot_ms, 20);
}

TEST(ServingMetrics, OneTokenHasNoTpot) {
  const RequestMetrics metrics = request_metrics(evenly_spaced(500, 50, 1));
  EXPECT_FALSE(metrics.tpot_ms.has_value());
  EXPECT_THROW(token_time_dialects(metrics), Error);
}

TEST(ServingMetrics, DialectsReadFiftyOrEightyEight) {
  const TokenTimeDialects dialects =
      token_time_dialects(request_metrics(evenly_spaced(5000, 50, 128)));
  EXPECT_NEAR(dialects.tpot_ms, 50.0, 1e-9);
  EXPECT_NEAR(dialects.guidellm_per_token_ms, 88.7, 0.05);
  EXPECT_NEAR(dialects.llmperf_itl_ms, 88.7, 0.05);
}

TEST(ServingMetrics, ThreeReadingsOfATpotTarget) {
  // 200 gaps: mean 10.45 ms, one of them 100 ms: the mean and the p99 are met, "every gap" is not.
  RequestRecord one_stall = evenly_spaced(100, 10, 200);
  one_stall.token_ms.push_back(one_stall.token_ms.back() + 100);
  // Half the gaps at 90 ms: the mean (50 ms) meets the target, the p99 does not.
  RequestRecord bursty;
  bursty.token_ms = {100};
  for (int i = 0; i < 50; ++i) {
    bursty.token_ms.push_back(bursty.token_ms.back() + 10);
    bursty.token_ms.push_back(bursty.token_ms.back() + 90);
  }
  RequestRecord failed;
  failed.failed = true;
  const std::vector<RequestRecord> records = {one_stall, bursty, failed, evenly_spaced(100, 50, 1)};
  const Goodput result = goodput(records, {.ttft_ms = 500, .tpot_ms = 50.5});
  EXPECT_EQ(result.num_requests, 4);
  EXPECT_EQ(result.num_failed, 1);
  EXPECT_EQ(result.num_one_token, 1);
  EXPECT_EQ(result.met_mean_gap, 3);
  EXPECT_EQ(result.met_p99_gap, 2);
  EXPECT_EQ(result.met_every_gap, 1);
  EXPECT_EQ(goodput(records, {.ttft_ms = 50}).met_mean_gap, 0);
}

TEST(ServingMetrics, RefusesClocksThatRunBackwards) {
  RequestRecord record;
  record.token_ms = {100, 90};
  EXPECT_THROW(request_metrics(record), Error);
}

TEST(Percentile, InterpolatesAsNumpyDoes) {
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile({1, 2, 3, 4, 5}, 99), 4.96);
  EXPECT_DOUBLE_EQ(percentile({7}, 99), 7);
  EXPECT_THROW(percentile({}, 50), Error);
}

}  // namespace
}  // namespace fovea::worth
