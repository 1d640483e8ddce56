// An f8 cache that grows, on the CPU: what is stored, and that it does not matter in which pieces
// it came.
#include "fovea/attention/append_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "fovea/attention/code_pages.h"
#include "fovea/base/error.h"

namespace fovea {
namespace {

constexpr int64_t kHeads = 2, kHeadDim = 8, kPageSize = 16, kPages = 5;

/// Pages and scales of one sequence, in an order of their own.
struct Cache {
  explicit Cache(DType dtype = DType::kF8E4M3)
      : k(dtype, {kPages, kHeads, kPageSize, kHeadDim}),
        v(dtype, {kPages, kHeads, kHeadDim, kPageSize}),
        k_scale(DType::kF32, {kPages, kHeads}),
        v_scale(DType::kF32, {kPages, kHeads}) {}
  KvView view() const {
    KvView kv;
    kv.k = k.view();
    kv.v = v.view();
    kv.page_size = kPageSize;
    kv.page_table = pages.data();
    kv.page_table_stride = kPages;
    kv.k_scale = k_scale.view();
    kv.v_scale = v_scale.view();
    return kv;
  }
  float key(int64_t token, int64_t head, int64_t d) const {
    return number(token, head, d, &read_code_keys);
  }
  float value(int64_t token, int64_t head, int64_t d) const {
    return number(token, head, d, &read_code_values);
  }
  float number(int64_t token, int64_t head, int64_t d, decltype(&read_code_keys) read) const {
    float row[kHeadDim];
    read(view(), pages[static_cast<size_t>(token / kPageSize)], head, token % kPageSize, 1,
         {DType::kF32, reinterpret_cast<std::byte*>(row), 0});
    return row[d];
  }
  std::vector<int32_t> pages = {3, 0, 4, 1, 2};
  Tensor k, v, k_scale, v_scale;
};

/// Magnitudes from 1 on, so that nothing becomes subnormal, that grow with the token.
std::vector<float> growing_values(int64_t rows, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> magnitude(1, 2);
  std::vector<float> values(static_cast<size_t>(rows * kHeads * kHeadDim));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<float>(i / (kHeads * kHeadDim));
    values[i] = magnitude(random) * std::exp2(row / 4) * (random() % 2 == 0 ? 1.f : -1.f);
  }
  return values;
}

void append(const Cache& cache, std::vector<float>& k, std::vector<float>& v, int64_t position,
            int64_t rows) {
  const auto view = [&](std::vector<float>& values) {
    return make_view(values.data() + position * kHeads * kHeadDim, DType::kF32,
                     {rows, kHeads, kHeadDim});
  };
  append_kv({view(k), view(v), &position, cache.view()}, {});
}

TEST(AppendKv, StoresTheNearestCodesUnderTheLeastPowerOfTwo) {
  Cache cache;
  constexpr int64_t kRows = 23;
  std::vector<float> k = growing_values(kRows, 1), v = growing_values(kRows, 2);
  append(cache, k, v, 0, kRows);
  for (int64_t page = 0; page * kPageSize < kRows; ++page) {
    for (int64_t head = 0; head < kHeads; ++head) {
      float largest = 0;
      const int64_t end = std::min((page + 1) * kPageSize, kRows);
      const auto at = [&](int64_t token, int64_t d) {
        return k[static_cast<size_t>((token * kHeads + head) * kHeadDim + d)];
      };
      for (int64_t token = page * kPageSize; token < end; ++token) {
        for (int64_t d = 0; d < kHeadDim; ++d) largest = std::max(largest, std::abs(at(token, d)));
      }
      const float scale =
          cache.k_scale.as<float>()[cache.pages[static_cast<size_t>(page)] * kHeads + head];
      EXPECT_LE(largest, 448 * scale);
      EXPECT_GT(largest, 224 * scale);
      EXPECT_EQ(scale, std::exp2(std::round(std::log2(scale))));
      for (int64_t token = page * kPageSize; token < end; ++token) {
        for (int64_t d = 0; d < kHeadDim; ++d) {
          EXPECT_EQ(cache.key(token, head, d),
                    to_float(to_float8_e4m3(at(token, d) / scale)) * scale);
        }
      }
    }
  }
}

TEST(AppendKv, PiecesOfAnySizeLeaveTheSame) {
  constexpr int64_t kRows = 70;
  std::vector<float> k = growing_values(kRows, 3), v = growing_values(kRows, 4);
  Cache whole;
  append(whole, k, v, 0, kRows);
  for (const int64_t piece : {1, 3, 16, 25}) {
    SCOPED_TRACE(piece);
    Cache cache;
    for (int64_t position = 0; position < kRows; position += piece) {
      append(cache, k, v, position, std::min(piece, kRows - position));
    }
    for (int64_t i = 0; i < kPages * kHeads; ++i) {
      EXPECT_EQ(cache.k_scale.as<float>()[i], whole.k_scale.as<float>()[i]);
      EXPECT_EQ(cache.v_scale.as<float>()[i], whole.v_scale.as<float>()[i]);
    }
    for (int64_t token = 0; token < kRows; ++token) {
      for (int64_t i = 0; i < kHeads * kHeadDim; ++i) {
        const int64_t head = i / kHeadDim, d = i % kHeadDim;
        EXPECT_EQ(cache.key(token, head, d), whole.key(token, head, d));
        EXPECT_EQ(cache.value(token, head, d), whole.value(token, head, d));
      }
    }
  }
}

TEST(AppendKv, APageThatIsUsedAgainForgetsItsScale) {
  Cache cache;
  std::vector<float> k(kHeads * kHeadDim, 1000), v = k;
  append(cache, k, v, 0, 1);
  k.assign(k.size(), 0.5f);
  append(cache, k, v, 0, 1);
  EXPECT_EQ(cache.k_scale.as<float>()[cache.pages[0] * kHeads], f8_growing_scale(0.5f));
  EXPECT_EQ(cache.key(0, 0, 0), 0.5f);
}

TEST(AppendKv, NanStaysAndInfinityIsTheLargest) {
  Cache cache;
  std::vector<float> k(kHeads * kHeadDim, 3), v = k;
  k[1] = std::numeric_limits<float>::quiet_NaN();
  k[2] = -std::numeric_limits<float>::infinity();
  append(cache, k, v, 0, 1);
  EXPECT_TRUE(std::isnan(cache.key(0, 0, 1)));
  EXPECT_EQ(cache.key(0, 0, 2), -448 * f8_growing_scale(3));
}

TEST(AppendKv, EightBitIntegersAreNearestUnderTheLeastPowerOfTwo) {
  constexpr int64_t kRows = 23;
  std::vector<float> k = growing_values(kRows, 1), v = growing_values(kRows, 2);
  Cache cache(DType::kI8), stepwise(DType::kI8);
  append(cache, k, v, 0, kRows);
  for (int64_t position = 0; position < kRows; ++position) append(stepwise, k, v, position, 1);
  for (int64_t token = 0; token < kRows; ++token) {
    for (int64_t head = 0; head < kHeads; ++head) {
      const int64_t page = cache.pages[static_cast<size_t>(token / kPageSize)];
      const float scale = cache.k_scale.as<float>()[page * kHeads + head];
      EXPECT_EQ(scale, std::exp2(std::round(std::log2(scale))));
      EXPECT_EQ(stepwise.k_scale.as<float>()[page * kHeads + head], scale);
      for (int64_t d = 0; d < kHeadDim; ++d) {
        const float want = k[static_cast<size_t>((token * kHeads + head) * kHeadDim + d)];
        EXPECT_LE(std::abs(cache.key(token, head, d) - want), scale / 2);
        EXPECT_LE(std::abs(want), 127 * scale);
        // Rounded again whenever the page's scale grows, by half of a finer step each time.
        EXPECT_LE(std::abs(stepwise.key(token, head, d) - want), scale);
      }
    }
  }
}

TEST(AppendKv, ANanAmongEightBitIntegersStaysItsPagesScale) {
  Cache cache(DType::kI8);
  std::vector<float> k(3 * kHeads * kHeadDim, 3), v = k;
  k[1] = std::numeric_limits<float>::quiet_NaN();
  v[2] = std::numeric_limits<float>::infinity();
  append(cache, k, v, 0, 1);
  append(cache, k, v, 1, 2);
  EXPECT_TRUE(std::isnan(cache.key(1, 0, 0)));
  EXPECT_EQ(cache.key(1, 1, 0), 3);
  EXPECT_EQ(cache.value(0, 0, 2), 127 * i8_growing_scale(3));
  append(cache, k, v, 0, 1);
  k[1] = 3;
  append(cache, k, v, 0, 1);  // the page is used again
  EXPECT_EQ(cache.key(0, 0, 1), 3);
}

TEST(AppendKv, RefusesWhatDoesNotFit) {
  const Cache cache;
  std::vector<float> rows(kHeads * kHeadDim * 8);
  const TensorView good = make_view(rows.data(), DType::kF32, {1, kHeads, kHeadDim});
  const TensorView narrow = make_view(rows.data(), DType::kF32, {1, kHeads, kHeadDim / 2});
  int64_t position = 0;
  EXPECT_NO_THROW(append_kv({good, good, &position, cache.view()}, {}));
  EXPECT_THROW(append_kv({good, narrow, &position, cache.view()}, {}), Error);
  EXPECT_THROW(append_kv({narrow, narrow, &position, cache.view()}, {}), Error);
  KvView without_scales = cache.view();
  without_scales.k_scale = {};
  EXPECT_THROW(append_kv({good, good, &position, without_scales}, {}), Error);
  position = kPages * kPageSize;
  EXPECT_THROW(append_kv({good, good, &position, cache.view()}, {}), Error);
  position = 0;
  KvView upright = cache.view();
  upright.v = upright.k;
  EXPECT_THROW(append_kv({good, good, &position, upright}, {}), Error);
  const TensorView codes = make_view(rows.data(), DType::kF8E4M3, {1, kHeads, kHeadDim});
  EXPECT_THROW(append_kv({codes, codes, &position, cache.view()}, {}), Error);
}

TEST(RoundQueries, KeepsWhatE4M3Holds) {
  std::vector<float> from = {1, 1.05f, 1000, -3, 0, 0.875f}, to(6);
  round_queries(make_view(from.data(), DType::kF32, {1, 2, 3}),
                make_view(to.data(), DType::kF32, {1, 2, 3}), {});
  EXPECT_EQ(to, (std::vector<float>{1, 1, 448, -3, 0, 0.875f}));
}

}  // namespace
}  // namespace fovea
