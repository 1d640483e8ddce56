// f8e4m3 on the GPU against the double-precision reference on the same codes and scales.
#include <gtest/gtest.h>

#include <cmath>

#include "fovea/attention/cuda/cuda_backend.h"
#include "fovea/attention/cuda/quantize_kv_cuda.h"
#include "fovea/attention/reference/reference_attention.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/float8.h"
#include "tests/attention/cuda_mirror.h"
#include "tests/cases/float8_case.h"
#include "tests/cases/tolerances.h"
#include "tests/support/relative_error.h"

namespace fovea {
namespace {

using cases::AttentionCase;
using cases::AttentionData;
using cases::DeviceMirror;
using cases::Float8Data;
using cases::Lists;
using cases::Scales;

class CudaFloat8 : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cases::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

/// The table's case as the kernel has it.
AttentionCase on_gpu(AttentionCase shape) {
  shape.head_dim = 128;
  shape.page_size = shape.page_size == 256 ? 256 : 128;
  if (shape.lists != Lists::kNone && shape.block_size % 128 != 0) shape.block_size = 128;
  if (shape.has_periphery) shape.page_size = shape.block_size;
  return shape;
}

/// The kernel rounds means to E4M3, which has no infinity. Rounded to its 4 bits they stay what
/// they are, so that the reference sees the same.
void round_means(const AttentionData& data) {
  for (const TensorView& means : {data.params().periphery.k_mean, data.params().periphery.v_mean}) {
    for (int64_t i = 0; !means.empty() && i < means.num_elements(); ++i) {
      cases::set(means, i, to_float(to_float8_e4m3(cases::get(means, i))));
    }
  }
}

std::vector<AttentionCase> larger_cases() {
  std::vector<AttentionCase> all;
  const auto add = [&](const char* name, AttentionCase shape) {
    shape.name = name;
    all.push_back(on_gpu(std::move(shape)));
  };
  add("long", {.q_lens = {1500}, .kv_lens = {1500}, .num_q_heads = 4, .num_kv_heads = 2});
  add("group_of_7", {.q_lens = {400}, .kv_lens = {900}, .num_q_heads = 7, .num_kv_heads = 1});
  add("full", {.q_lens = {300, 128}, .kv_lens = {1000, 512}, .causal = false});
  add("ragged_long", {.q_lens = {129, 0, 640, 1, 127, 256},
                      .kv_lens = {1000, 300, 640, 2000, 127, 384},
                      .num_q_heads = 4,
                      .num_kv_heads = 2,
                      .page_size = 256});
  for (const int64_t window : {0, 127, 128, 129, 500}) {
    add("window", {.q_lens = {900, 70}, .kv_lens = {900, 1234}, .window_left = window});
  }
  for (const Lists lists : {Lists::kAll, Lists::kRandom, Lists::kNoDiagonal, Lists::kSomeEmpty}) {
    for (const int64_t block_size : {128, 256}) {
      add("lists", {.q_lens = {1500, 0, 200, 1},
                    .kv_lens = {1500, 40, 1777, 3000},
                    .num_q_heads = 4,
                    .num_kv_heads = 2,
                    .window_left = lists == Lists::kRandom ? 700 : -1,
                    .has_sinks = lists == Lists::kSomeEmpty,
                    .lists = lists,
                    .block_size = block_size});
    }
  }
  for (const int64_t window_left : {-1, 1000}) {
    for (const int64_t block_size : {128, 256}) {
      add("periphery", {.q_lens = {1500, 0, 200, 1},
                        .kv_lens = {1500, 40, 1777, 3000},
                        .num_q_heads = 4,
                        .num_kv_heads = 2,
                        .window_left = window_left,
                        .has_sinks = true,
                        .lists = Lists::kRandom,
                        .block_size = block_size,
                        .has_periphery = true});
    }
  }
  // More blocks than a tile of means.
  add("periphery_long", {.q_lens = {300},
                         .kv_lens = {20000},
                         .num_q_heads = 2,
                         .num_kv_heads = 1,
                         .lists = Lists::kRandom,
                         .has_periphery = true});
  add("decode", {.q_lens = std::vector<int64_t>(12, 1),
                 .kv_lens = {1, 5000, 128, 129, 0, 3333, 64, 1000, 7, 256, 2000, 127},
                 .num_q_heads = 14,
                 .num_kv_heads = 2});
  add("decode_window_sinks", {.q_lens = {1, 0, 8, 3, 0, 1},
                              .kv_lens = {4000, 300, 2050, 3, 5, 1},
                              .num_q_heads = 8,
                              .num_kv_heads = 1,
                              .window_left = 1500,
                              .has_sinks = true});
  add("padded", {.q_lens = {300, 64}, .kv_lens = {300, 800}, .is_strided = true});
  return all;
}

void expect_like_reference(const AttentionCase& shape, Scales scales) {
  SCOPED_TRACE(fmt::format("{}, scales {}", shape.name, static_cast<int>(scales)));
  const AttentionData data(shape, DType::kF32, 7);
  round_means(data);
  Float8Data codes(data, scales);
  DeviceMirror mirror(codes.params(), DType::kF8E4M3, shape.is_strided);
  const AttentionBackend& backend = cuda_attention_backend();
  ASSERT_EQ(backend.why_unsupported(mirror.params(), DeviceMirror::context()), "");
  check_attention_params(mirror.params(), DeviceMirror::context());
  mirror.run(backend);
  reference_attention_backend().run(codes.params(), {});
  const std::vector<float> expected = codes.out();
  EXPECT_EQ(cases::difference(mirror.out(), expected, {cases::kFloat8Norm, INFINITY}), "");
  cases::expect_lse(mirror.lse(), codes.lse(), cases::kFloat8LseTolerance);
  codes.drop_signs_of_values();
  reference_attention_backend().run(codes.params(), {});
  const std::vector<float> actual = mirror.out(), magnitude = codes.out();
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(expected[i])) continue;
    ASSERT_LE(std::abs(actual[i] - expected[i]), cases::kFloat8Element * magnitude[i])
        << "row " << i / 128 << ", element " << i % 128 << ": " << actual[i] << ", expected "
        << expected[i];
  }
  EXPECT_TRUE(mirror.is_untouched());
}

TEST_F(CudaFloat8, EqualsTheReferenceOverTheTable) {
  constexpr Scales kScales[] = {Scales::kPerPage, Scales::kNone, Scales::kPerHead};
  size_t number = 0;
  for (const AttentionCase& shape : cases::attention_cases()) {
    expect_like_reference(on_gpu(shape), kScales[number++ % 3]);
  }
}

TEST_F(CudaFloat8, EqualsTheReferenceOnLargerShapes) {
  for (const AttentionCase& shape : larger_cases()) {
    expect_like_reference(shape, Scales::kPerPage);
    expect_like_reference(shape, Scales::kPerHead);
  }
}

/// A call over f8e4m3 K and V whose q stays as it is: f32 on the host, bf16 on the GPU.
class WiderQueries {
 public:
  WiderQueries(const AttentionCase& shape, float factor)
      : data_(on_gpu(shape), DType::kF32, 7),
        codes_(data_, Scales::kPerPage),
        mirror_(codes_.params(), DType::kF8E4M3, false) {
    cases::round_inputs(data_, DType::kBF16);
    const TensorView& q = data_.params().q;
    std::vector<BFloat16> rows(static_cast<size_t>(q.num_elements()));
    for (int64_t i = 0; i < q.num_elements(); ++i) {
      rows[static_cast<size_t>(i)] = to_bfloat16(cases::get(q, i) * factor);
    }
    rows_ = cases::DeviceBuffer::copy_of(rows.data(), q.num_elements());
    codes_.params().q = q;
    codes_.params().q_scale = {};
    AttentionParams& params = mirror_.params();
    params.q_scale = {};
    params.q = make_view(rows_.as<uint16_t>(), DType::kBF16, {q.shape[0], q.shape[1], q.shape[2]},
                         DeviceMirror::context().device);
    params.softmax_scale = codes_.params().scale() / factor;
  }
  DeviceMirror& mirror() { return mirror_; }
  Float8Data& codes() { return codes_; }
  /// By the reference.
  std::vector<float> expected() {
    reference_attention_backend().run(codes_.params(), {});
    return codes_.out();
  }

 private:
  AttentionData data_;
  Float8Data codes_;
  cases::DeviceBuffer rows_;
  DeviceMirror mirror_;
};

const AttentionCase kFewRows{.q_lens = {1, 0, 2, 1},
                             .kv_lens = {4000, 300, 130, 1},
                             .num_q_heads = 14,
                             .num_kv_heads = 2,
                             .has_sinks = true};

/// Codes are exact in f16, and so are weights to 11 bits: what is left is the output's rounding.
TEST_F(CudaFloat8, DecodeTakesQueriesInBf16AndRoundsNothingButTheOutput) {
  for (const int64_t window_left : {-1, 70}) {
    AttentionCase shape = kFewRows;
    shape.window_left = window_left;
    WiderQueries call(shape, 1);
    check_attention_params(call.mirror().params(), DeviceMirror::context());
    call.mirror().run(cuda_attention_backend());
    const std::vector<float> expected = call.expected();
    EXPECT_EQ(cases::row_difference(call.mirror().out(), expected, 128, DType::kBF16), "");
    cases::expect_lse(call.mirror().lse(), call.codes().lse(), 1e-4);
    EXPECT_TRUE(call.mirror().is_untouched());
  }
}

TEST_F(CudaFloat8, QueriesInBf16MayBeOfAnyMagnitude) {
  WiderQueries one(kFewRows, 1);
  one.mirror().run(cuda_attention_backend());
  for (const float factor : {0x1p-60f, 0x1p-20f, 0x1p20f, 0x1p60f}) {
    WiderQueries scaled(kFewRows, factor);
    scaled.mirror().run(cuda_attention_backend());
    EXPECT_EQ(scaled.mirror().out(), one.mirror().out()) << factor;
    EXPECT_EQ(scaled.mirror().lse(), one.mirror().lse()) << factor;
  }
}

/// Where the prefill kernel's products decode, they want q rounded.
TEST_F(CudaFloat8, QueriesInBf16AreRoundedWhereRowsAreMany) {
  AttentionCase shape{.q_lens = std::vector<int64_t>(40, 1),
                      .kv_lens = std::vector<int64_t>(40, 500),
                      .num_q_heads = 4,
                      .num_kv_heads = 2};
  WiderQueries call(shape, 1);
  call.mirror().run(cuda_attention_backend());
  EXPECT_EQ(cases::difference(call.mirror().out(), call.expected(), cases::kFloat8Rounding), "");

  shape.q_lens = {100};
  shape.kv_lens = {500};
  WiderQueries prompt(shape, 1);
  EXPECT_EQ(
      cuda_attention_backend().why_unsupported(prompt.mirror().params(), DeviceMirror::context()),
      "f8e4m3 K and V go with a q of f8e4m3, in decode also bf16, got bf16");
}

/// Tiles are walked from the last to the first. When each raises the maximum by a little, weights
/// are taken relative to one that is stale: E4M3 ends at 448, and a weight beyond that is lost. The
/// last two leave the range of f32. Some rows rise by half as much, stay or fall.
TEST_F(CudaFloat8, AStaleMaximumSaturatesNoWeight) {
  for (const double growth :
       {0.5, 1.9, 2.1, 4.0, 7.9, 12.0, 100.0, 140.0, 300.0}) {  // in log2, a tile
    AttentionCase shape{.q_lens = {16}, .kv_lens = {1024}, .num_q_heads = 1};
    AttentionData data(on_gpu(shape), DType::kF32, 3);
    data.params().softmax_scale = static_cast<float>(growth * std::log(2.0));
    for (int64_t i = 0; i < data.params().q.num_elements(); ++i) {
      constexpr float kSlopes[] = {1.0f, 0.5f, 0.0f, -1.0f};
      cases::set(data.params().q, i, kSlopes[i / 128 % 4]);
    }
    for (int64_t t = 0; t < 1024; ++t) {
      data.set_key(0, t, 0, static_cast<float>(8 - t / 128) / 128);
    }
    Float8Data codes(data, Scales::kNone);
    DeviceMirror mirror(codes.params(), DType::kF8E4M3, false);
    mirror.run(cuda_attention_backend());
    reference_attention_backend().run(codes.params(), {});
    EXPECT_EQ(cases::difference(mirror.out(), codes.out(), {cases::kFloat8Norm, INFINITY}), "")
        << growth;
  }
}

/// Values of one sign add up, so that an accumulator of few bits loses more the longer it runs.
TEST_F(CudaFloat8, TheErrorDoesNotGrowWithTheLength) {
  double first = 0;
  for (const int64_t kv_len : {2048, 16384, 65536}) {
    const AttentionCase shape{.q_lens = {16}, .kv_lens = {kv_len}, .num_q_heads = 2};
    AttentionData data(on_gpu(shape), DType::kF32, 3);
    const TensorView& v = data.params().kv.v;
    for (int64_t i = 0; i < v.num_elements(); ++i) {
      cases::set(v, i, std::abs(cases::get(v, i)));
    }
    Float8Data codes(data, Scales::kPerPage);
    DeviceMirror mirror(codes.params(), DType::kF8E4M3, false);
    mirror.run(cuda_attention_backend());
    reference_attention_backend().run(codes.params(), {});
    const std::vector<float> expected = codes.out();
    const double error = test::relative_error(mirror.out(), expected);
    std::printf("  %ld keys: relative error %.3g\n", kv_len, error);
    if (first == 0) first = error;
    EXPECT_LE(error, 1.25 * first) << kv_len;
  }
}

TEST_F(CudaFloat8, ARowsBitsDependOnNeitherChunksNorBatchMates) {
  const AttentionCase whole{.q_lens = {777}, .kv_lens = {777}, .num_q_heads = 4, .num_kv_heads = 2};
  const AttentionData data(on_gpu(whole), DType::kF32, 3);
  const Float8Data codes(data, Scales::kPerPage);
  DeviceMirror one(codes.params(), DType::kF8E4M3, false);
  one.run(cuda_attention_backend());
  for (const int64_t split : {1, 100, 128, 500}) {
    // The same K and V; the rows before `split` are another sequence of the same pages.
    const int64_t q_offsets[] = {0, split, 777};
    const int64_t kv_lens[] = {split, 777};
    const KvView& kv = codes.params().kv;
    std::vector<int32_t> table(kv.page_table, kv.page_table + kv.page_table_stride);
    table.insert(table.end(), kv.page_table, kv.page_table + kv.page_table_stride);
    DeviceMirror two(codes.params(), DType::kF8E4M3, false);
    const auto q = cases::DeviceBuffer::copy_of(q_offsets, 3);
    const auto lens = cases::DeviceBuffer::copy_of(kv_lens, 2);
    const auto pages = cases::DeviceBuffer::copy_of(table.data(), std::ssize(table));
    two.params().batch = {2, q.as<int64_t>(), lens.as<int64_t>()};
    two.params().kv.page_table = pages.as<int32_t>();
    two.run(cuda_attention_backend());
    EXPECT_EQ(two.out(), one.out()) << "split at " << split;
    EXPECT_EQ(two.lse(), one.lse()) << "split at " << split;
  }
}

TEST_F(CudaFloat8, SelectingEverythingIsDense) {
  const AttentionCase shape{.q_lens = {600, 100},
                            .kv_lens = {600, 900},
                            .num_q_heads = 4,
                            .num_kv_heads = 2,
                            .lists = Lists::kAll};
  const AttentionData data(on_gpu(shape), DType::kF32, 3);
  const Float8Data codes(data, Scales::kPerHead);
  DeviceMirror sparse(codes.params(), DType::kF8E4M3, false);
  sparse.run(cuda_attention_backend());
  DeviceMirror dense(codes.params(), DType::kF8E4M3, false);
  dense.params().selection = nullptr;
  dense.run(cuda_attention_backend());
  EXPECT_EQ(sparse.out(), dense.out());
  EXPECT_EQ(sparse.lse(), dense.lse());
}

TEST_F(CudaFloat8, AMeanThatIsNotFiniteReachesOnlyLaterRows) {
  const AttentionCase shape = on_gpu({.q_lens = {1000},
                                      .kv_lens = {1000},
                                      .num_q_heads = 2,
                                      .lists = Lists::kNoDiagonal,
                                      .density = 0.0,
                                      .has_periphery = true});
  const AttentionData data(shape, DType::kF32, 3);
  round_means(data);
  const TensorView& v_mean = data.params().periphery.v_mean;
  cases::set(v_mean, data.params().kv.page_table[4] * v_mean.stride[0] + 9, NAN);
  Float8Data codes(data, Scales::kPerPage);
  DeviceMirror mirror(codes.params(), DType::kF8E4M3, false);
  mirror.run(cuda_attention_backend());
  reference_attention_backend().run(codes.params(), {});
  const std::vector<float> out = codes.out();
  EXPECT_FALSE(std::isnan(out[static_cast<size_t>(5 * 128 - 1) * 2 * 128 + 9]));
  EXPECT_TRUE(std::isnan(out[static_cast<size_t>(5 * 128) * 2 * 128 + 9]));
  EXPECT_EQ(cases::difference(mirror.out(), out, {cases::kFloat8Norm, INFINITY}), "");
}

/// Means of 8 bits, as K and V have them, rounded by the kernel.
TEST_F(CudaFloat8, MeansOfMoreBitsAreRounded) {
  const AttentionCase shape = on_gpu({.q_lens = {2000},
                                      .kv_lens = {2000},
                                      .num_q_heads = 4,
                                      .num_kv_heads = 2,
                                      .lists = Lists::kRandom,
                                      .has_periphery = true});
  const AttentionData data(shape, DType::kF32, 3);
  const Float8Data codes(data, Scales::kPerPage);
  DeviceMirror mirror(codes.params(), DType::kF8E4M3, false);
  mirror.run(cuda_attention_backend());
  reference_attention_backend().run(codes.params(), {});
  EXPECT_EQ(cases::difference(mirror.out(), codes.out(), cases::kFloat8Rounding), "");
}

TEST_F(CudaFloat8, SaysWhatItLacks) {
  const auto reason = [](const AttentionCase& shape) {
    const AttentionData data(shape, DType::kF32, 1);
    const Float8Data codes(data, Scales::kNone);
    const DeviceMirror mirror(codes.params(), DType::kF8E4M3, false);
    return cuda_attention_backend().why_unsupported(mirror.params(), DeviceMirror::context());
  };
  AttentionCase shape{.q_lens = {8}, .kv_lens = {8}, .head_dim = 96, .page_size = 128};
  EXPECT_NE(reason(shape).find("f8e4m3 with 128"), std::string::npos) << reason(shape);
  shape.head_dim = 128;
  EXPECT_EQ(reason(shape), "");
  shape.page_size = 64;
  EXPECT_EQ(reason(shape), "f8e4m3 has pages of multiples of 128 tokens, got 64");
}

/// What the GPU makes of `host`'s tensors in bf16, against what the CPU makes of the same numbers.
void expect_same_pages(const AttentionCase& shape, Scales scales) {
  SCOPED_TRACE(fmt::format("page_size {}, scales {}", shape.page_size, static_cast<int>(scales)));
  AttentionCase paged = shape;
  paged.page_size = 128;
  AttentionData data(shape, DType::kF32, 5), pages(paged, DType::kF32, 5);
  cases::round_inputs(data, DType::kBF16);
  cases::round_inputs(pages, DType::kBF16);
  const Float8Data codes(pages, scales);
  const KvView& expected = codes.params().kv;
  DeviceMirror from(data, DType::kBF16, false);
  DeviceMirror to(codes.params(), DType::kF8E4M3, false);
  const auto download = [](const TensorView& view) {
    Tensor copy(view.dtype, {view.num_elements()});
    TensorView flat = view;
    flat.rank = 1;
    flat.shape[0] = view.num_elements();
    flat.stride[0] = 1;
    copy_tensor(flat, copy.view(), DeviceMirror::context());
    return copy;
  };
  // Only what the call writes can bring the expected codes: they start as zeros.
  for (const TensorView* view : {&to.params().kv.k, &to.params().kv.v}) {
    const Tensor zeros(DType::kF8E4M3,
                       {view->shape[0], view->shape[1], view->shape[2], view->shape[3]});
    copy_tensor(zeros.view(), *view, DeviceMirror::context());
  }
  for (int64_t s = 0; s < std::ssize(shape.kv_lens); ++s) {
    quantize_kv_cuda(from.params().kv, to.params().kv, s, 0, shape.kv_lens[static_cast<size_t>(s)],
                     DeviceMirror::context());
  }
  const Tensor k = download(to.params().kv.k), v = download(to.params().kv.v);
  for (int64_t s = 0; s < std::ssize(shape.kv_lens); ++s) {
    for (int64_t t = 0; t < shape.kv_lens[static_cast<size_t>(s)]; ++t) {
      const int64_t page = expected.page_table[s * expected.page_table_stride + t / 128];
      for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          const int64_t k_at = page * expected.k.stride[0] + h * expected.k.stride[1] +
                               t % 128 * expected.k.stride[2] + d;
          const int64_t v_at = page * expected.v.stride[0] + h * expected.v.stride[1] +
                               d * expected.v.stride[2] + f8_value_slot(t % 128);
          ASSERT_EQ(k.as<Float8E4M3>()[k_at], expected.k.as<Float8E4M3>()[k_at]) << s << ", " << t;
          ASSERT_EQ(v.as<Float8E4M3>()[v_at], expected.v.as<Float8E4M3>()[v_at]) << s << ", " << t;
        }
      }
    }
  }
  if (scales != Scales::kPerPage) return;
  const Tensor k_scale = download(to.params().kv.k_scale);
  for (int64_t i = 0; i < expected.k_scale.num_elements(); ++i) {
    EXPECT_EQ(k_scale.as<float>()[i], expected.k_scale.as<float>()[i]) << i;
  }
}

TEST_F(CudaFloat8, PagesGetTheCodesThatTheCpuGivesThem) {
  for (const int64_t page_size : {0, 64, 128}) {
    for (const Scales scales : {Scales::kNone, Scales::kPerHead, Scales::kPerPage}) {
      expect_same_pages({.q_lens = {1, 1},
                         .kv_lens = {300, 129},
                         .head_dim = 128,
                         .num_q_heads = 4,
                         .num_kv_heads = 2,
                         .page_size = page_size},
                        scales);
    }
  }
}

TEST_F(CudaFloat8, QueriesGetTheCodesThatTheCpuGivesThem) {
  const AttentionCase shape{.q_lens = {50}, .kv_lens = {50}, .num_q_heads = 3, .page_size = 128};
  AttentionData data(shape, DType::kF32, 5);
  cases::round_inputs(data, DType::kBF16);
  const Float8Data codes(data, Scales::kPerHead);
  const DeviceMirror from(data, DType::kBF16, false);
  const DeviceMirror to(codes.params(), DType::kF8E4M3, false);
  Tensor got(DType::kF8E4M3, {50, 3, 64});
  copy_tensor(got.view(), to.params().q, DeviceMirror::context());
  quantize_q_cuda(from.params().q, to.params().q_scale, to.params().q, DeviceMirror::context());
  copy_tensor(to.params().q, got.view(), DeviceMirror::context());
  for (int64_t i = 0; i < got.size_bytes(); ++i) {
    ASSERT_EQ(got.as<Float8E4M3>()[i], codes.params().q.as<Float8E4M3>()[i]) << i;
  }
}

}  // namespace
}  // namespace fovea
