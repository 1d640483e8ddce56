#include "fovea/worth/amdahl.h"

#include <gtest/gtest.h>

#include <cmath>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

TEST(Amdahl, WorkedRows) {
  EXPECT_NEAR(step_speedup(0.18, 2), 1.099, 5e-4);
  EXPECT_NEAR(step_ceiling(0.18), 1.22, 5e-3);
  EXPECT_NEAR(step_speedup(0.85, 2), 1.739, 5e-4);
  EXPECT_NEAR(step_ceiling(0.85), 6.67, 5e-3);
  EXPECT_NEAR(step_speedup(0.2, 2), 1.111, 5e-4);
  EXPECT_NEAR(step_ceiling(0.2), 1.25, 5e-3);
}

TEST(Amdahl, Edges) {
  EXPECT_DOUBLE_EQ(step_speedup(0, 100), 1);
  EXPECT_DOUBLE_EQ(step_speedup(1, 3), 3);
  EXPECT_TRUE(std::isinf(step_ceiling(1)));
  EXPECT_NEAR(step_speedup(0.5, 0.5), 1 / 1.5, 1e-15);  // a slower kernel costs
  EXPECT_THROW(step_speedup(1.2, 2), Error);
  EXPECT_THROW(step_speedup(-0.1, 2), Error);
  EXPECT_THROW(step_speedup(0.5, 0), Error);
  EXPECT_THROW(step_speedup(std::nan(""), 2), Error);
}

TEST(Amdahl, InversesComeBack) {
  for (const double p : {0.05, 0.18, 0.5, 0.85}) {
    for (const double s : {1.5, 2.0, 10.0}) {
      const double target = step_speedup(p, s);
      EXPECT_NEAR(needed_kernel_speedup(p, target), s, 1e-9 * s);
      EXPECT_NEAR(needed_share(s, target), p, 1e-12);
    }
  }
  EXPECT_TRUE(std::isinf(needed_kernel_speedup(0.18, 1.3)));  // beyond the ceiling
  EXPECT_GT(needed_share(2, 2.5), 1);                         // no share does it
  EXPECT_DOUBLE_EQ(needed_kernel_speedup(0, 1), 1);
}

TEST(Request, TwiceTheKernelSavesTwoThirdsOfAPercent) {
  const RequestShape request{.ttft_ms = 500, .tpot_ms = 50, .output_tokens = 128};
  const RequestWorth worth = request_worth(request, {.prefill_share = 0.18, .prefill_speedup = 2});
  EXPECT_DOUBLE_EQ(worth.total_ms, 6850);
  EXPECT_NEAR(worth.saved_prefill_ms, 45, 1e-12);
  EXPECT_DOUBLE_EQ(worth.saved_decode_ms, 0);
  EXPECT_NEAR(worth.saved_fraction * 100, 0.657, 5e-4);
  EXPECT_NEAR(worth.speedup, 1.0066, 5e-5);
  EXPECT_NEAR(worth.ttft_after_ms, 455, 1e-12);
  EXPECT_DOUBLE_EQ(worth.tpot_after_ms, 50);
}

TEST(Request, QueueAndDecodeDilute) {
  const RequestShape request{
      .ttft_ms = 100, .tpot_ms = 10, .output_tokens = 11, .queue_ms = 150, .other_ms = 50};
  const RequestWorth worth = request_worth(
      request,
      {.prefill_share = 0.5, .decode_share = 0.2, .prefill_speedup = 2, .decode_speedup = 4});
  EXPECT_DOUBLE_EQ(worth.total_ms, 400);
  EXPECT_NEAR(worth.saved_prefill_ms, 25, 1e-12);
  EXPECT_NEAR(worth.saved_decode_ms, 15, 1e-12);
  EXPECT_NEAR(worth.speedup, 400.0 / 360, 1e-12);
}

TEST(Request, OneTokenHasNoDecode) {
  const RequestWorth worth = request_worth({.ttft_ms = 100, .tpot_ms = 10, .output_tokens = 1},
                                           {.decode_share = 1, .decode_speedup = 100});
  EXPECT_DOUBLE_EQ(worth.total_ms, 100);
  EXPECT_DOUBLE_EQ(worth.speedup, 1);
}

TEST(Request, RefusesNonsense) {
  EXPECT_THROW(request_worth({.ttft_ms = -1}, {}), Error);
  EXPECT_THROW(request_worth({.ttft_ms = 0}, {}), Error);
  EXPECT_THROW(request_worth({.ttft_ms = 1, .output_tokens = 0}, {}), Error);
  EXPECT_THROW(request_worth({.ttft_ms = 1}, {.prefill_share = 2}), Error);
}

TEST(Claim, PublishedPair) {
  const std::vector<ClaimLevel> levels = {{"kernel", 20.65}, {"stack", 11.92}, {"e2e", 5.97}};
  const std::vector<ImpliedShare> implied = audit_claim(levels);
  ASSERT_EQ(implied.size(), 3u);
  EXPECT_EQ(implied[1].inner, "kernel");
  EXPECT_EQ(implied[1].outer, "e2e");
  EXPECT_NEAR(implied[1].share, 0.875, 5e-4);
  EXPECT_EQ(implied[2].inner, "stack");
  EXPECT_NEAR(implied[2].share, 0.909, 5e-4);
  for (const ImpliedShare& pair : implied) EXPECT_TRUE(pair.possible);
}

TEST(Claim, OuterCannotBeatInner) {
  const std::vector<ClaimLevel> levels = {{"kernel", 2}, {"e2e", 2.5}};
  const std::vector<ImpliedShare> implied = audit_claim(levels);
  ASSERT_EQ(implied.size(), 1u);
  EXPECT_NEAR(implied[0].share, 1.2, 1e-12);
  EXPECT_FALSE(implied[0].possible);
}

TEST(Claim, RefusesNonsense) {
  const std::vector<ClaimLevel> one = {{"kernel", 2}};
  EXPECT_THROW(audit_claim(one), Error);
  const std::vector<ClaimLevel> nothing_won = {{"kernel", 1}, {"e2e", 2}};
  EXPECT_THROW(audit_claim(nothing_won), Error);
  const std::vector<ClaimLevel> negative = {{"kernel", 2}, {"e2e", -2}};
  EXPECT_THROW(audit_claim(negative), Error);
}

}  // namespace
}  // namespace fovea::worth
