// Attention in f8e4m3: the reference on codes and scales against itself on the numbers they mean,
// and how K and V become codes.
#include "fovea/tensor/float8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "fovea/attention/quantize_kv.h"
#include "fovea/attention/reference/reference_attention.h"
#include "tests/attention/backends_agree.h"
#include "tests/cases/float8_case.h"
#include "tests/cases/tolerances.h"

namespace fovea {
namespace {

using cases::AttentionCase;
using cases::AttentionData;
using cases::Float8Data;
using cases::Scales;

TEST(Float8Attention, ValueSlotsAreAPermutationOfEachGroupOf16) {
  std::set<int64_t> slots;
  for (int64_t t = 0; t < 64; ++t) {
    EXPECT_EQ(f8_value_slot(t) / 16, t / 16);
    slots.insert(f8_value_slot(t));
  }
  EXPECT_EQ(slots.size(), 64u);
  // The first thread of a quad holds columns 0, 1, 8 and 9 of a wgmma accumulator.
  EXPECT_EQ(f8_value_slot(8), 2);
  EXPECT_EQ(f8_value_slot(2), 4);
}

TEST(Float8Attention, CodesMeanWhatTheirNumbersMean) {
  constexpr Scales kScales[] = {Scales::kPerPage, Scales::kNone, Scales::kPerHead};
  size_t number = 0;
  for (const AttentionCase& shape : cases::float8_cases()) {
    const Scales scales = kScales[number++ % 3];
    SCOPED_TRACE(fmt::format("{}, scales {}", shape.name, static_cast<int>(scales)));
    AttentionData data(shape, DType::kF32, 7);
    Float8Data codes(data, scales);
    ASSERT_NO_THROW(check_attention_params(codes.params(), {}));
    EXPECT_EQ(choose_attention_backend(codes.params(), {}).name(), "reference");
    attend(codes.params(), {});
    codes.dequantize_into(data);
    reference_attention_backend().run(data.params(), {});
    EXPECT_EQ(cases::difference(codes.out(), data.out(), cases::output_tolerance(DType::kF32)), "");
    EXPECT_EQ(cases::difference(codes.lse(), data.lse(), {1.0, cases::kLseTolerance}), "");
  }
}

/// The two types of queries take turns over the table: all of it in both takes minutes under
/// sanitizers.
TEST(Float8Attention, EveryBackendReadsCodesUnderWiderQueries) {
  size_t number = 0;
  for (const AttentionCase& shape : cases::float8_cases()) {
    const DType dtype = number++ % 2 == 0 ? DType::kF32 : DType::kBF16;
    const AttentionData source(shape, DType::kF32, 7);
    const Scales scales = dtype == DType::kF32 ? Scales::kPerPage : Scales::kPowersOfTwo;
    const Float8Data codes(source, scales);
    AttentionData data(shape, dtype, 7);
    data.params().kv = codes.params().kv;
    expect_backends_agree(data, shape.name);
  }
}

TEST(Float8Attention, RoundingCostsWhatItsBitsSay) {
  for (const Scales scales : {Scales::kNone, Scales::kPerPage}) {
    for (const int64_t kv_len : {40, 400, 3000}) {
      const AttentionCase shape{.q_lens = {40}, .kv_lens = {kv_len}, .page_size = 128};
      const AttentionData data(shape, DType::kF32, 7);
      const Float8Data codes(data, scales);
      attend(codes.params(), {});
      reference_attention_backend().run(data.params(), {});
      EXPECT_EQ(cases::difference(codes.out(), data.out(), cases::kFloat8Rounding), "") << kv_len;
      EXPECT_NE(cases::difference(codes.out(), data.out(), {0.02, INFINITY}), "") << kv_len;
    }
  }
}

AttentionCase two_pages() {
  return {.q_lens = {3}, .kv_lens = {24}, .num_q_heads = 4, .num_kv_heads = 2, .page_size = 16};
}

float key_of(const Float8Data& codes, int64_t page, int64_t t, int64_t h, int64_t d) {
  const TensorView& k = codes.params().kv.k;
  return to_float(k.as<Float8E4M3>()[page * k.stride[0] + h * k.stride[1] + t * k.stride[2] + d]);
}

TEST(QuantizeKv, APagesLargestMagnitudeBecomes448AndItsEndZeros) {
  AttentionData data(two_pages(), DType::kF32, 3);
  data.set_key(0, 17, 1, -20.0f);
  Float8Data codes(data, Scales::kPerPage);
  const KvView& kv = codes.params().kv;
  const int64_t page = kv.page_table[1];
  EXPECT_EQ(kv.k_scale.as<float>()[page * 2 + 1], 20.0f / 448);
  EXPECT_EQ(key_of(codes, page, 1, 1, 5), -448.0f);
  quantize_kv(data.params().kv, kv, 0, 1, 24, {});  // the test's data has NaN there
  EXPECT_NE(key_of(codes, page, 7, 1, 5), 0.0f);
  EXPECT_EQ(key_of(codes, page, 8, 1, 5), 0.0f);
  const TensorView& v = kv.v;
  for (int64_t t = 8; t < 16; ++t) {
    EXPECT_EQ(v.as<Float8E4M3>()[page * v.stride[0] + f8_value_slot(t)], Float8E4M3{});
  }
}

TEST(QuantizeKv, ScalesOfHeadsAreUsedAsTheyAreAndSaturate) {
  AttentionData data(two_pages(), DType::kF32, 3);
  data.set_key(0, 0, 0, 1e6f);
  data.set_key(0, 1, 0, NAN);
  data.set_key(0, 2, 0, -INFINITY);
  data.set_key(0, 3, 0, 0.3f * 12);
  const Float8Data codes(data, Scales::kPerHead);
  EXPECT_EQ(codes.params().kv.k_scale.as<float>()[0], 0.3f);
  const int64_t page = codes.params().kv.page_table[0];
  EXPECT_EQ(key_of(codes, page, 0, 0, 9), 448.0f);
  EXPECT_TRUE(std::isnan(key_of(codes, page, 1, 0, 9)));
  EXPECT_EQ(key_of(codes, page, 2, 0, 9), -448.0f);
  EXPECT_EQ(key_of(codes, page, 3, 0, 9), 12.0f);
}

TEST(QuantizeKv, APageOfZerosOrInfinitiesKeepsAUsableScale) {
  AttentionData data(two_pages(), DType::kF32, 3);
  for (int64_t t = 0; t < 16; ++t) {
    data.set_key(0, t, 0, 0.0f);
    data.set_key(0, t, 1, t == 0 ? INFINITY : 1e-38f);
  }
  const Float8Data codes(data, Scales::kPerPage);
  const int64_t page = codes.params().kv.page_table[0];
  const float* scale = codes.params().kv.k_scale.as<float>() + page * 2;
  EXPECT_EQ(scale[0], 1.0f);
  EXPECT_EQ(scale[1], 0x1p-100f);
  EXPECT_EQ(key_of(codes, page, 0, 1, 0), 448.0f);
}

void expect_refused(const std::function<void(AttentionParams&)>& spoil,
                    const std::string& message) {
  const AttentionData data(two_pages(), DType::kF32, 1);
  Float8Data codes(data, Scales::kPerPage);
  spoil(codes.params());
  try {
    check_attention_params(codes.params(), {});
    ADD_FAILURE() << "accepted; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr(message));
  }
}

TEST(Float8Attention, BrokenRulesAreNamed) {
  expect_refused([](AttentionParams& p) { p.kv.page_size = 0; }, "rank 3");
  expect_refused([](AttentionParams& p) { p.kv.v.dtype = DType::kBF16; }, "or be f8e4m3 under f32");
  expect_refused([](AttentionParams& p) { p.kv.page_size = 8; }, "multiple of 16");
  expect_refused([](AttentionParams& p) { p.kv.v = p.kv.k; }, "each page turned");
  expect_refused([](AttentionParams& p) { p.kv.k_scale.shape[0] = 1; }, "k_scale must be");
  expect_refused([](AttentionParams& p) { p.kv.v_scale.dtype = DType::kI32; }, "v_scale must be");
  expect_refused([](AttentionParams& p) { p.q_scale.shape[0] = 1; }, "q_scale must be f32[4]");
  expect_refused([](AttentionParams& p) { p.out.dtype = DType::kF16; }, "bf16 or f32");
  AttentionData plain(two_pages(), DType::kF32, 1);
  const Float8Data codes(plain, Scales::kPerPage);
  plain.params().kv.k_scale = codes.params().kv.k_scale;
  EXPECT_THROW(check_attention_params(plain.params(), {}), Error);
  plain.params().kv.k_scale = {};
  plain.params().q_scale = codes.params().q_scale;
  EXPECT_THROW(check_attention_params(plain.params(), {}), Error);
}

TEST(QuantizeKv, RefusesPagesThatDoNotExist) {
  const AttentionData data(two_pages(), DType::kF32, 1);
  const Float8Data codes(data, Scales::kPerPage);
  KvView to = codes.params().kv;
  EXPECT_THROW(quantize_kv(data.params().kv, to, 0, 0, 16 * 1000, {}), Error);
  const int32_t table[] = {0, 1000};
  to.page_table = table;
  EXPECT_THROW(quantize_kv(data.params().kv, to, 0, 0, 24, {}), Error);
  EXPECT_NO_THROW(quantize_kv(data.params().kv, to, 0, 0, 16, {}));
}

}  // namespace
}  // namespace fovea
