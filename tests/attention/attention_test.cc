// What attention means: the reference against hand-made answers and properties, and every backend
// against the reference over the table of cases.
#include "fovea/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "fovea/attention/reference/reference_attention.h"
#include "tests/cases/attention_cases.h"
#include "tests/cases/tolerances.h"

namespace fovea {
namespace {

using cases::AttentionCase;
using cases::AttentionData;
using cases::Lists;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void run_reference(const AttentionData& data) {
  check_attention_params(data.params(), {});
  reference_attention_backend().run(data.params(), {});
}

TEST(ReferenceAttention, AveragesValuesWhenAllLogitsAreEqual) {
  AttentionData data({.q_lens = {4}, .kv_lens = {4}, .num_q_heads = 1}, DType::kF32, 1);
  for (int64_t t = 0; t < 4; ++t) {
    data.set_key(0, t, 0, 0.0f);
    data.set_value(0, t, 0, static_cast<float>(t));
  }
  run_reference(data);
  const std::vector<float> out = data.out();
  for (size_t row = 0; row < 4; ++row) {
    EXPECT_FLOAT_EQ(out[row * 64], static_cast<float>(row) / 2);
    EXPECT_FLOAT_EQ(data.lse()[row], std::log(static_cast<float>(row + 1)));
  }
}

TEST(ReferenceAttention, WindowSinksAndListsLimitWhatARowSees) {
  AttentionCase shape{.q_lens = {8}, .kv_lens = {8}, .num_q_heads = 1, .window_left = 2};
  shape.has_sinks = true;
  AttentionData data(shape, DType::kF32, 1);
  for (int64_t t = 0; t < 8; ++t) {
    data.set_key(0, t, 0, 0.0f);
    data.set_value(0, t, 0, static_cast<float>(t));
  }
  data.params().sinks.as<float>()[0] = 0.0f;  // counts like one key whose value is 0
  run_reference(data);
  EXPECT_FLOAT_EQ(data.out()[7 * 64], (5 + 6 + 7) / 4.0f);
  EXPECT_FLOAT_EQ(data.out()[1 * 64], 1 / 3.0f);
  EXPECT_FLOAT_EQ(data.lse()[7], std::log(4.0f));
}

TEST(ReferenceAttention, PeripheryWeighsAMeanByItsBlock) {
  const AttentionCase shape{.q_lens = {12},
                            .kv_lens = {12},
                            .num_q_heads = 1,
                            .lists = Lists::kRandom,
                            .block_size = 4,
                            .density = 0.0,
                            .has_periphery = true};
  AttentionData data(shape, DType::kF32, 1);
  for (int64_t t = 0; t < 12; ++t) {
    data.set_key(0, t, 0, 0.0f);
    data.set_value(0, t, 0, static_cast<float>(t));
  }
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t d = 0; d < 64; ++d) {
      const int64_t offset = (data.params().periphery.block_offsets[0] + b) * 64 + d;
      cases::set(data.params().periphery.k_mean, offset, 0.0f);
      cases::set(data.params().periphery.v_mean, offset, 1.5f + 4.0f * static_cast<float>(b));
    }
  }
  run_reference(data);
  // With equal logits the means stand for their blocks exactly: the result is the dense average.
  EXPECT_FLOAT_EQ(data.out()[11 * 64], 5.5f);
  EXPECT_FLOAT_EQ(data.out()[8 * 64], 4.0f);
  EXPECT_FLOAT_EQ(data.lse()[11], std::log(12.0f));
}

TEST(ReferenceAttention, RowsThatSeeNothingAreZeroWithLseOfMinusInfinity) {
  AttentionData data({.q_lens = {3}, .kv_lens = {1}, .num_q_heads = 1}, DType::kF32, 1);
  run_reference(data);
  EXPECT_EQ(data.out()[0], 0.0f);
  EXPECT_EQ(data.lse()[0], -kInfinity);
  EXPECT_EQ(data.lse()[1], -kInfinity);
  EXPECT_TRUE(std::isfinite(data.lse()[2]));
}

TEST(ReferenceAttention, PagesAreOnlyAnotherPlaceForKeys) {
  AttentionCase shape{.q_lens = {40, 7}, .kv_lens = {90, 60}, .num_kv_heads = 2};
  AttentionData contiguous(shape, DType::kF32, 5);
  shape.page_size = 16;
  AttentionData paged(shape, DType::kF32, 5);
  run_reference(contiguous);
  run_reference(paged);
  EXPECT_EQ(contiguous.out(), paged.out());
  EXPECT_EQ(contiguous.lse(), paged.lse());
}

TEST(ReferenceAttention, SelectingEverythingIsDense) {
  AttentionCase shape{.q_lens = {150}, .kv_lens = {333}};
  AttentionData dense(shape, DType::kF32, 5);
  shape.lists = Lists::kAll;
  shape.has_periphery = true;  // nothing is left out, so nothing is seen blurred
  AttentionData all(shape, DType::kF32, 5);
  run_reference(dense);
  run_reference(all);
  EXPECT_EQ(dense.out(), all.out());
  EXPECT_EQ(dense.lse(), all.lse());
}

// Every backend that can run here, except the oracle itself.
std::vector<const AttentionBackend*> optimised_backends() {
  std::vector<const AttentionBackend*> found;
  for (const AttentionBackend* backend : attention_backends()) {
    if (backend != &reference_attention_backend()) found.push_back(backend);
  }
  return found;
}

// What the reference makes of `data`, and how a backend compares.
class Expected {
 public:
  explicit Expected(AttentionData& data) : data_(data) {
    run_reference(data);
    EXPECT_TRUE(data.is_untouched());
    out_ = data.out();
    lse_ = data.lse();
  }

  /// Empty when `backend` agrees, or cannot compute it.
  std::string compare(const AttentionBackend& backend, int32_t num_threads) const {
    const Context context{.num_threads = num_threads};
    if (!backend.why_unsupported(data_.params(), context).empty()) return "";
    data_.poison();
    backend.run(data_.params(), context);
    if (!data_.is_untouched()) return "wrote outside out or lse";
    std::string difference =
        cases::difference(data_.out(), out_, cases::output_tolerance(data_.params().q.dtype));
    if (!difference.empty()) return "out: " + difference;
    difference = cases::difference(data_.lse(), lse_, {1.0, cases::kLseTolerance});
    return difference.empty() ? "" : "lse: " + difference;
  }

 private:
  AttentionData& data_;
  std::vector<float> out_, lse_;
};

class Cases : public testing::TestWithParam<AttentionCase> {};

TEST_P(Cases, EveryBackendAgreesWithTheReference) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    AttentionData data(GetParam(), dtype, 7);
    ASSERT_NO_THROW(check_attention_params(data.params(), {}));
    const Expected expected(data);
    for (const AttentionBackend* backend : optimised_backends()) {
      EXPECT_EQ(expected.compare(*backend, 3), "") << backend->name() << ", " << dtype_name(dtype);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Attention, Cases, testing::ValuesIn(cases::attention_cases()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(Attention, TheSameSequenceGetsTheSameBitsWhateverItsBatchMates) {
  for (const bool is_decode : {false, true}) {
    const int64_t q_len = is_decode ? 1 : 100;
    const AttentionCase alone{.q_lens = {q_len}, .kv_lens = {2500}, .num_q_heads = 3};
    AttentionCase together = alone;
    together.q_lens.push_back(70);
    together.kv_lens.push_back(900);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      AttentionData one(alone, dtype, 11), two(together, dtype, 11);
      // The same first sequence in both: the generator draws q in order, so copy it.
      for (int64_t i = 0; i < q_len * 3 * 64; ++i) {
        cases::set(two.params().q, i, cases::get(one.params().q, i));
      }
      attend(one.params(), {.num_threads = 1});
      attend(two.params(), {.num_threads = 2});
      const std::vector<float> expected = one.out(), all = two.out();
      EXPECT_EQ(std::vector<float>(all.begin(), all.begin() + q_len * 3 * 64), expected);
    }
  }
}

TEST(Attention, LogitsFarBelowAnyFiniteStandInForMinusInfinityStillCount) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    AttentionData data({.q_lens = {5}, .kv_lens = {5}, .softmax_scale = 1e6f}, dtype, 3);
    for (int64_t t = 0; t < 5; ++t) data.set_key(0, t, 0, 1e6f);
    for (int64_t i = 0; i < data.params().q.num_elements(); ++i) {
      cases::set(data.params().q, i, -1e18f);
    }
    const Expected expected(data);
    for (const AttentionBackend* backend : optimised_backends()) {
      EXPECT_EQ(expected.compare(*backend, 1), "") << backend->name();
    }
  }
}

TEST(Attention, ThePinnedBackendRunsAndAnUnknownOneIsRefusedWithEveryReason) {
  AttentionData data({.q_lens = {5}, .kv_lens = {5}}, DType::kF32, 3);
  setenv("FOVEA_ATTENTION_BACKEND", "reference", 1);
  EXPECT_EQ(choose_attention_backend(data.params(), {}).name(), "reference");
  setenv("FOVEA_ATTENTION_BACKEND", "abacus", 1);
  try {
    attend(data.params(), {});
    ADD_FAILURE() << "an unknown backend must be refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    for (const AttentionBackend* backend : attention_backends()) {
      EXPECT_NE(std::string(error.what()).find(backend->name()), std::string::npos);
    }
  }
  unsetenv("FOVEA_ATTENTION_BACKEND");
}

}  // namespace
}  // namespace fovea
