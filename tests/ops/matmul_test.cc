#include "fovea/ops/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/ops/reference/reference.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea {
namespace {

/// Random values that bf16 holds exactly, so that both types have the same right answer.
std::vector<float> random_halves(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = to_float(to_bfloat16(normal(random)));
  return values;
}

std::vector<DType> types() {
  std::vector<DType> list = {DType::kF32};
  if (matmul_is_native(DType::kBF16)) list.push_back(DType::kBF16);
  return list;
}

Tensor as_tensor(const std::vector<float>& values, DType dtype, int64_t rows, int64_t columns,
                 int64_t padded_rows) {
  Tensor tensor(dtype, {padded_rows, columns});
  for (int64_t i = 0; i < rows * columns; ++i) {
    const float value = values[static_cast<size_t>(i)];
    if (dtype == DType::kF32) {
      tensor.as<float>()[i] = value;
    } else {
      tensor.as<BFloat16>()[i] = to_bfloat16(value);
    }
  }
  return tensor;
}

struct Shape {
  int64_t rows, out, in;
};

void PrintTo(const Shape& shape, std::ostream* stream) {
  *stream << shape.rows << "x" << shape.out << "x" << shape.in;
}

class MatmulShapes : public testing::TestWithParam<Shape> {};

TEST_P(MatmulShapes, SlabAndRowMatchPlainLoops) {
  const auto [rows, out_features, in_features] = GetParam();
  const std::vector<float> x = random_halves(rows * in_features, 1);
  const std::vector<float> w = random_halves(out_features * in_features, 2);
  const std::vector<double> want = reference::matmul(x, w, rows, out_features, in_features);
  const double tolerance = 1e-5 * std::sqrt(static_cast<double>(in_features)) + 1e-5;
  for (const DType dtype : types()) {
    SCOPED_TRACE(dtype_name(dtype));
    PackedWeights weights(dtype, out_features, in_features);
    const int64_t split = out_features / 3;  // rows come in pieces, as fused matrices are filled
    weights.set_rows(0, split, w.data());
    weights.set_rows(split, out_features - split, w.data() + split * in_features);
    EXPECT_EQ(weights.size_bytes(), packed_weight_bytes(dtype, out_features, in_features));

    const int64_t padded = padded_slab_rows(rows);
    const Tensor in = as_tensor(x, dtype, rows, in_features, padded);
    const Tensor out(DType::kF32, {padded, out_features});
    MatmulScratch scratch;
    matmul_slab(make_view(in.view().data, dtype, {rows, in_features}), weights,
                make_view(out.view().data, DType::kF32, {rows, out_features}), scratch);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(out.as<float>()[i], want[i], tolerance) << "at " << i;
    }
    std::vector<float> row(static_cast<size_t>(out_features));
    matmul_row(make_view(in.view().data, dtype, {in_features}), weights,
               make_view(row.data(), DType::kF32, {out_features}), {});
    for (size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(row[i], want[i], tolerance) << "at " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, MatmulShapes,
                         testing::Values(Shape{1, 64, 32}, Shape{3, 5, 7}, Shape{16, 100, 33},
                                         Shape{17, 960, 576}, Shape{64, 63, 64},
                                         Shape{65, 130, 1536}, Shape{128, 192, 256},
                                         Shape{2, 1, 1}),
                         [](const auto& test) { return testing::PrintToString(test.param); });

TEST(Matmul, ARowsResultDoesNotDependOnItsNeighbours) {
  constexpr int64_t kOut = 192, kIn = 576;
  const std::vector<float> x = random_halves(128 * kIn, 3);
  const std::vector<float> w = random_halves(kOut * kIn, 4);
  for (const DType dtype : types()) {
    PackedWeights weights(dtype, kOut, kIn);
    weights.set_rows(0, kOut, w.data());
    const Tensor in = as_tensor(x, dtype, 128, kIn, 128);
    const Tensor all(DType::kF32, {128, kOut});
    MatmulScratch scratch;
    matmul_slab(in.view(), weights, all.view(), scratch);
    for (const int64_t rows : {1, 16, 20, 50, 100}) {
      const Tensor some(DType::kF32, {128, kOut});
      matmul_slab(make_view(in.view().data, dtype, {rows, kIn}), weights,
                  make_view(some.view().data, DType::kF32, {rows, kOut}), scratch);
      EXPECT_EQ(0, std::memcmp(all.view().data, some.view().data,
                               static_cast<size_t>(rows * kOut) * sizeof(float)))
          << rows << " rows in " << dtype_name(dtype);
    }
  }
}

TEST(Matmul, RefusesWhatDoesNotFit) {
  PackedWeights weights(DType::kF32, 8, 16);
  const std::vector<float> row(16);
  EXPECT_THROW(weights.set_rows(8, 1, row.data()), Error);
  EXPECT_THROW(weights.set_rows(-1, 1, row.data()), Error);
  EXPECT_THROW(PackedWeights(DType::kF32, 0, 16), Error);
  EXPECT_THROW(PackedWeights(DType::kI32, 8, 16), Error);
  EXPECT_THROW(packed_weight_bytes(DType::kF32, int64_t{1} << 40, int64_t{1} << 40), Error);
  EXPECT_THROW(padded_slab_rows(129), Error);
  Tensor in(DType::kF32, {128, 15}), out(DType::kF32, {128, 8});
  MatmulScratch scratch;
  EXPECT_THROW(matmul_slab(in.view(), weights, out.view(), scratch), Error);
  EXPECT_THROW(matmul_row(make_view(in.view().data, DType::kF32, {15}), weights,
                          make_view(out.view().data, DType::kF32, {8}), {}),
               Error);
}

}  // namespace
}  // namespace fovea
