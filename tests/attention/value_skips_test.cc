// What decode leaves out under a value_share: which units, and what that does to a row.
#include "fovea/attention/cpu/value_skips.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fovea/attention/attention.h"
#include "fovea/attention/reference/reference_attention.h"
#include "tests/cases/attention_cases.h"
#include "tests/cases/tolerances.h"

namespace fovea {
namespace {

using cases::AttentionCase;
using cases::AttentionData;
using Read = std::vector<uint8_t>;

TEST(UnitsToRead, TheSmallestAreLeftOutAsLongAsEveryRowKeepsItsShare) {
  const std::vector<float> one_row = {0.5f, 0.02f, 0.3f, 0.03f, 0.15f};
  EXPECT_EQ(cpu::units_to_read(one_row, 1, 0.96f), (Read{1, 0, 1, 1, 1}));
  EXPECT_EQ(cpu::units_to_read(one_row, 1, 0.94f), (Read{1, 0, 1, 0, 1}));
  EXPECT_EQ(cpu::units_to_read(one_row, 1, 0.7f), (Read{1, 0, 1, 0, 0}));
  // The second row needs what the first does not.
  const std::vector<float> two_rows = {0.9f, 0.1f, 0.05f, 0.4f, 0.05f, 0.5f};
  EXPECT_EQ(cpu::units_to_read(two_rows, 2, 0.85f), (Read{1, 1, 1}));
  EXPECT_EQ(cpu::units_to_read(two_rows, 2, 0.5f), (Read{1, 0, 1}));
}

TEST(UnitsToRead, EqualsGoInTheirOrderAndANanKeepsAll) {
  EXPECT_EQ(cpu::units_to_read(std::vector<float>{0.25f, 0.25f, 0.25f, 0.25f}, 1, 0.5f),
            (Read{0, 0, 1, 1}));
  EXPECT_EQ(cpu::units_to_read(std::vector<float>{0, NAN}, 1, 0.5f), (Read{1, 1}));
  EXPECT_TRUE(cpu::units_to_read({}, 3, 0.5f).empty());
}

std::vector<const AttentionBackend*> cpu_backends() {
  std::vector<const AttentionBackend*> found;
  for (const AttentionBackend* backend : attention_backends()) {
    if (backend->name().starts_with("cpu")) found.push_back(backend);
  }
  return found;
}

// Queries of 4 make a few keys stand out.
AttentionData sharp_data(const AttentionCase& shape, DType dtype) {
  AttentionData data(shape, dtype, 7);
  for (int64_t i = 0; i < data.params().q.num_elements(); ++i) {
    cases::set(data.params().q, i, 4 * cases::get(data.params().q, i));
  }
  return data;
}

/// Outputs move by no more than what was left out times the largest value; weights are of all keys.
TEST(ValueShare, BoundsWhatARowLoses) {
  AttentionCase shape{.q_lens = {1, 2, 1}, .kv_lens = {3000, 1700, 90}, .num_q_heads = 6};
  shape.num_kv_heads = 2;
  shape.has_sinks = true;
  for (const int64_t page_size : {0, 64}) {
    shape.page_size = page_size;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      AttentionData data = sharp_data(shape, dtype);
      reference_attention_backend().run(data.params(), {});
      const std::vector<float> want = data.out(), lse = data.lse();
      data.params().value_share = 0.9f;
      for (const AttentionBackend* backend : cpu_backends()) {
        if (!backend->why_unsupported(data.params(), {}).empty()) continue;
        SCOPED_TRACE(fmt::format("{} {} pages {}", backend->name(), dtype_name(dtype), page_size));
        data.poison();
        backend->run(data.params(), {.num_threads = 3});
        const std::vector<float> got = data.out();
        float largest = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          largest = std::max(largest, std::abs(got[i] - want[i]));
        }
        constexpr float kLargestValue = 5;  // of normal data
        EXPECT_LT(largest, 0.1f * kLargestValue);
        EXPECT_GT(largest, 0.01f) << "nothing was left out";
        EXPECT_EQ(cases::difference(data.lse(), lse, {1.0, cases::kLseTolerance}), "");
        EXPECT_TRUE(data.is_untouched());
        data.poison();
        backend->run(data.params(), {.num_threads = 1});
        EXPECT_EQ(data.out(), got);
      }
    }
  }
}

/// A value of NaN that is not read does no harm: it was not read.
TEST(ValueShare, WhatHardlyAnyWeightGoesToIsNotRead) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    AttentionData data({.q_lens = {1}, .kv_lens = {2000}, .num_q_heads = 3}, dtype, 5);
    for (int64_t t = 0; t < 2000; ++t) data.set_key(0, t, 0, 0.0f);
    for (int64_t i = 0; i < 3 * 64; ++i) cases::set(data.params().q, i, 1.0f);
    data.set_key(0, 700, 0, 4.0f);  // logit 32: the others have 2000 e^-32 of the weight
    for (int64_t t = 1024; t < 1088; ++t) data.set_value(0, t, 0, std::nanf(""));
    data.set_value(0, 700, 0, 2.5f);
    data.params().value_share = 0.999f;
    for (const AttentionBackend* backend : cpu_backends()) {
      if (!backend->why_unsupported(data.params(), {}).empty()) continue;
      data.poison();
      backend->run(data.params(), {});
      for (const float value : data.out()) ASSERT_NEAR(value, 2.5f, 1e-5) << backend->name();
    }
  }
}

TEST(ValueShare, IsMoreThanNothingAndAtMostAll) {
  AttentionData data({.q_lens = {1}, .kv_lens = {20}}, DType::kF32, 5);
  for (const float share : {0.0f, -1.0f, 1.01f, std::nanf("")}) {
    data.params().value_share = share;
    EXPECT_THROW(check_attention_params(data.params(), {}), Error) << share;
  }
}

}  // namespace
}  // namespace fovea
