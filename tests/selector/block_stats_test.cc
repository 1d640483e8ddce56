// Page statistics against plain sums in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fovea/base/cpu_features.h"
#include "fovea/base/error.h"
#include "fovea/selector/cpu/block_stats_task.h"
#include "tests/selector/selector_case.h"

namespace fovea {
namespace {

using testing::CaseShape;
using testing::make_prompt;
using testing::PagedCase;
using testing::Prompt;

float get(const TensorView& t, int64_t entry, int64_t row, int64_t c) {
  const int64_t i = entry * t.stride[0] + row * t.stride[1] + c;
  return t.dtype == DType::kF32 ? t.as<float>()[i] : to_float(t.as<BFloat16>()[i]);
}

class BlockStatsTest : public ::testing::TestWithParam<std::tuple<DType, int64_t>> {};

TEST_P(BlockStatsTest, MatchesDouble) {
  CaseShape shape;
  std::tie(shape.dtype, shape.head_dim) = GetParam();
  Prompt prompt = make_prompt(shape, 3 * shape.block_size + 5, 11);
  if (shape.dtype == DType::kBF16) {
    for (float& k : prompt.k) k = to_float(to_bfloat16(k));
    for (float& v : prompt.v) v = to_float(to_bfloat16(v));
  }
  PagedCase pages(shape, 4, 1, 1);
  pages.append(0, prompt, prompt.len);
  const BlockStatsView& stats = pages.stats().view();
  // Storing rounds by half a unit in the last place; a sum of 16 in f32 by 16 of them at most.
  const double unit = shape.dtype == DType::kF32 ? std::ldexp(1, -24) : std::ldexp(1, -8);
  const double of_sum = 16 * std::ldexp(1, -24);
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
      const int64_t entry = pages.table(0, b);
      auto key = [&](int64_t t, int64_t c) {
        return static_cast<double>(prompt.k[static_cast<size_t>(
            ((b * shape.block_size + t) * shape.num_kv_heads + h) * shape.head_dim + c)]);
      };
      double radius = 0;
      std::vector<double> nearest;
      for (int64_t t = 0; t < shape.block_size; ++t) {
        double square = 0;
        for (int64_t c = 0; c < shape.head_dim; ++c) {
          const double difference =
              key(t, c) - static_cast<double>(get(stats.centroid, entry, h, c));
          square += difference * difference;
        }
        nearest.push_back(square);
        radius = std::max(radius, std::sqrt(square));
      }
      EXPECT_NEAR(static_cast<double>(stats.radius.as<float>()[entry * shape.num_kv_heads + h]),
                  radius, 1e-5 * radius);
      std::vector<int64_t> chosen;
      for (int64_t w = 0; w < shape.num_witnesses; ++w) {
        const auto best = std::max_element(nearest.begin(), nearest.end()) - nearest.begin();
        chosen.push_back(best);
        for (int64_t t = 0; t < shape.block_size; ++t) {
          double square = 0;
          for (int64_t c = 0; c < shape.head_dim; ++c) {
            square += (key(t, c) - key(best, c)) * (key(t, c) - key(best, c));
          }
          nearest[static_cast<size_t>(t)] = std::min(nearest[static_cast<size_t>(t)], square);
        }
        for (int64_t c = 0; c < shape.head_dim; ++c) {
          EXPECT_EQ(static_cast<double>(get(stats.witness, entry, h * shape.num_witnesses + w, c)),
                    key(best, c));
        }
      }
      for (int64_t c = 0; c < shape.head_dim; ++c) {
        double sum = 0, rest = 0, v_sum = 0, v_size = 0, size = 0;
        for (int64_t t = 0; t < shape.block_size; ++t) {
          sum += key(t, c);
          size += std::abs(key(t, c));
          if (std::count(chosen.begin(), chosen.end(), t) == 0) rest += key(t, c);
          const double v = static_cast<double>(prompt.v[static_cast<size_t>(
              ((b * shape.block_size + t) * shape.num_kv_heads + h) * shape.head_dim + c)]);
          v_sum += v;
          v_size += std::abs(v);
        }
        const auto n = static_cast<double>(shape.block_size);
        const double rest_mean = rest / (n - static_cast<double>(shape.num_witnesses));
        EXPECT_NEAR(static_cast<double>(get(stats.centroid, entry, h, c)), sum / n,
                    unit * std::abs(sum / n) + of_sum * size / n);
        EXPECT_NEAR(static_cast<double>(get(stats.rest_mean, entry, h, c)), rest_mean,
                    unit * std::abs(rest_mean) + of_sum * size / (n - 4));
        EXPECT_NEAR(static_cast<double>(get(stats.v_mean, entry, h, c)), v_sum / n,
                    unit * std::abs(v_sum / n) + of_sum * v_size / n);
      }
      EXPECT_EQ(stats.non_finite.as<int32_t>()[entry * shape.num_kv_heads + h], 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, BlockStatsTest,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(16, 80, 128)));

TEST(BlockStats, FlagsWhatIsNotFinite) {
  const CaseShape shape;
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 3e38f}) {
    Prompt prompt = make_prompt(shape, 3 * shape.block_size, 5);
    const int64_t row = shape.block_size + 3;  // block 1, KV head 1
    prompt.k[static_cast<size_t>((row * shape.num_kv_heads + 1) * shape.head_dim + 2)] = bad;
    PagedCase pages(shape, 3, 1, 1);
    pages.append(0, prompt, prompt.len);
    const int32_t* flags = pages.stats().view().non_finite.as<int32_t>();
    for (int64_t b = 0; b < 3; ++b) {
      EXPECT_EQ(flags[pages.table(0, b) * 2], 0);
      EXPECT_EQ(flags[pages.table(0, b) * 2 + 1], b == 1 ? 1 : 0);
    }
  }
}

TEST(BlockStats, EqualKeysGiveDistinctWitnessesAndNoRadius) {
  const CaseShape shape;
  Prompt prompt = make_prompt(shape, shape.block_size, 5);
  for (float& k : prompt.k) k = 0.5f;
  PagedCase pages(shape, 1, 1, 1);
  pages.append(0, prompt, prompt.len);
  const BlockStatsView& stats = pages.stats().view();
  EXPECT_EQ(stats.radius.as<float>()[0], 0.0f);
  EXPECT_EQ(get(stats.rest_mean, 0, 0, 0), 0.5f);
}

TEST(BlockStats, RefusesWhatDoesNotFit) {
  constexpr int64_t kPages = 4, kHeads = 2, kDim = 64, kSize = 32, kWitnesses = 2;
  const Tensor k(DType::kF32, {kPages, kHeads, kSize, kDim});
  const Tensor rows(DType::kF32, {kPages * kSize, kHeads, kDim});
  const Tensor narrow(DType::kF32, {kPages, kHeads, kSize, kDim / 2});
  const Tensor other_type(DType::kBF16, {kPages, kHeads, kSize, kDim});
  const Tensor integers(DType::kI32, {kPages, kHeads, kSize, kDim});
  const BlockStats stats(DType::kF32, kPages, kHeads, kDim, kSize, kWitnesses);
  const BlockStats one_head(DType::kF32, kPages, 1, kDim, kSize, kWitnesses);
  const int32_t table[kPages] = {3, 1, 2, 0};
  const int32_t bad_table[kPages] = {0, 1, 4, 0}, negative_table[kPages] = {-1, 1, 2, 0};
  const int64_t offset = 0, late_offset = 1;

  struct Call {
    KvView kv;
    int64_t seq = 0, first = 0, end = kPages, block_offset = 0;
    BlockStatsView stats;
    Context context;
  };
  const auto message_of = [&](auto&& change) {
    Call call;
    call.kv = {k.view(), k.view(), nullptr, table, kPages, kSize};
    call.stats = stats.view();
    change(call);
    try {
      compute_block_stats(call.kv, call.seq, call.first, call.end, call.block_offset, call.stats,
                          call.context);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  using ::testing::HasSubstr;
  const auto contiguous = [&](Call& call) {
    call.kv = {rows.view(), rows.view(), &offset, nullptr, 0, 0};
  };
  EXPECT_EQ(message_of([](Call&) {}), "no error");
  EXPECT_EQ(message_of(contiguous), "no error");
  EXPECT_THAT(message_of([&](Call& c) { c.kv.k = c.kv.v = integers.view(); }), HasSubstr("k must"));
  EXPECT_THAT(message_of([&](Call& c) { c.kv.k = rows.view(); }), HasSubstr("k must have 4 axes"));
  EXPECT_THAT(message_of([&](Call& c) { c.kv.k = {}; }), HasSubstr("k must have 4 axes"));
  EXPECT_THAT(message_of([&](Call& c) { c.kv.k.stride[3] = 2; }), HasSubstr("stride 1"));
  EXPECT_THAT(message_of([&](Call& c) { c.kv.v = other_type.view(); }), HasSubstr("v must"));
  EXPECT_THAT(message_of([&](Call& c) { c.kv.v = narrow.view(); }), HasSubstr("v must"));
  EXPECT_THAT(message_of([&](Call& c) { c.kv.page_size = 16; }), HasSubstr("16 slots"));
  EXPECT_THAT(message_of([&](Call& c) { c.kv.page_table = nullptr; }), HasSubstr("page_table"));
  EXPECT_THAT(message_of([&](Call& c) { c.kv.page_table = bad_table; }), HasSubstr("got 4"));
  EXPECT_THAT(message_of([&](Call& c) { c.kv.page_table = negative_table; }), HasSubstr("got -1"));
  EXPECT_THAT(message_of([&](Call& c) { c.seq = -1; }), HasSubstr("seq"));
  EXPECT_THAT(message_of([&](Call& c) { c.first = -1; }), HasSubstr("got -1 and 4"));
  EXPECT_THAT(message_of([&](Call& c) { c.first = 5; }), HasSubstr("got 5 and 4"));
  EXPECT_THAT(message_of([&](Call& c) { c.end = 5; }), HasSubstr("block 5"));
  EXPECT_THAT(message_of([&](Call& c) { c.stats = one_head.view(); }), HasSubstr("centroid"));
  EXPECT_THAT(message_of([&](Call& c) { c.stats.radius = k.view(); }), HasSubstr("radius"));
  EXPECT_THAT(message_of([&](Call& c) { c.stats.witness = {}; }), HasSubstr("witness"));
  EXPECT_THAT(message_of([&](Call& c) { c.stats.num_witnesses = 9; }), HasSubstr("got 9"));
  EXPECT_THAT(message_of([&](Call& c) { c.stats.block_size = 64; }), HasSubstr("block_size 64"));
  EXPECT_THAT(message_of([&](Call& c) {
                contiguous(c);
                c.kv.kv_offsets = nullptr;
              }),
              HasSubstr("kv_offsets"));
  EXPECT_THAT(message_of([&](Call& c) {
                contiguous(c);
                c.kv.kv_offsets = &late_offset;
              }),
              HasSubstr("127 rows from 1"));
  EXPECT_THAT(message_of([&](Call& c) {
                contiguous(c);
                c.block_offset = 1;
              }),
              HasSubstr("got 1 + 4 of 4"));
}

TEST(BlockStats, BuildsWithoutCudaAndItsKernelsSayWhatTheyTake) {
  const Tensor k(DType::kF32, {1, 1, 32, 64});
  const BlockStats stats(DType::kF32, 1, 1, 64, 32, 0);
  const int32_t table[] = {0};
  Context context;
  context.device.type = DeviceType::kCuda;
  try {
    compute_block_stats({k.view(), k.view(), nullptr, table, 1, 32}, 0, 0, 1, 0, stats.view(),
                        context);
    FAIL() << "f32 blocks of 32 on a GPU";
  } catch (const Error& error) {
    using ::testing::AnyOf;
    using ::testing::HasSubstr;
    EXPECT_THAT(error.what(), AnyOf(HasSubstr("this build has block statistics on the CPU only"),
                                    HasSubstr("block statistics on the GPU are bf16 or f16")));
  }
}

#if defined(__x86_64__)
TEST(BlockStats, EveryInstructionSetYieldsTheSameBits) {
  struct Result {
    std::vector<float> floats;
    int32_t flag = 0;
    bool operator==(const Result&) const = default;
  };
  for (bool is_bf16 : {false, true}) {
    for (int64_t d : {64, 80}) {
      CaseShape shape;
      shape.num_kv_heads = 1;
      shape.head_dim = d;
      const Prompt prompt = make_prompt(shape, 128, 17);
      std::vector<BFloat16> half;
      for (float k : prompt.k) half.push_back(to_bfloat16(k));
      auto run = [&](BlockStatsKernel kernel) {
        Result result;
        result.floats.resize(static_cast<size_t>(7 * d + 1));
        std::vector<float> scratch(128);
        BlockStatsTask task;
        task.is_bf16 = is_bf16;
        task.block_size = 128;
        task.head_dim = d;
        task.num_witnesses = 4;
        task.keys = task.values = is_bf16 ? static_cast<const void*>(half.data()) : prompt.k.data();
        task.key_stride = task.value_stride = task.witness_stride = d;
        task.centroid = result.floats.data();
        task.v_mean = result.floats.data() + d;
        task.rest_mean = result.floats.data() + 2 * d;
        task.witness = result.floats.data() + 3 * d;
        task.radius = result.floats.data() + 7 * d;
        task.non_finite = &result.flag;
        task.scratch = scratch.data();
        kernel(task);
        return result;
      };
      const Result portable = run(block_stats_portable);
      if (cpu_features().avx2) {
        EXPECT_TRUE(run(block_stats_avx2) == portable);
      }
      if (cpu_features().avx512) {
        EXPECT_TRUE(run(block_stats_avx512) == portable);
      }
    }
  }
}
#endif

}  // namespace
}  // namespace fovea
