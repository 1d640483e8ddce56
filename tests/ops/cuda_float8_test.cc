// Weights in f8e4m3 on a GPU: rounding to the bit as plain code does it, products against double
// over the same rounded values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/tensor/float8.h"
#include "tests/cases/tolerances.h"
#include "tests/ops/gpu_rows.h"
#include "tests/ops/moe_case.h"

namespace fovea {
namespace {

using test::download;
using test::kGpu;
using test::MoeCase;
using test::PaddedRows;
using test::random_values;

constexpr int64_t kBlock = 128;

/// The tensor cores keep about 13 bits while they add up 32 products; everything is then f32.
constexpr cases::Tolerance kSums = {2e-3, 2e-2};
/// Sums that differ by as little round to a neighbouring f8 here and there.
constexpr cases::Tolerance kRoundedTwice = {1.5e-2, 8e-2};

struct Quantized {
  std::vector<Float8E4M3> codes;
  std::vector<float> scales;  // [rows / block_rows, columns / 128]
  std::vector<float> values;  // codes times scales
};

/// Blocks of block_rows x 128, each with its largest value over 448 as its scale.
Quantized quantize(const std::vector<float>& x, int64_t rows, int64_t columns, int64_t block_rows) {
  Quantized result;
  result.codes.resize(x.size());
  result.values.resize(x.size());
  const auto for_block = [&](int64_t row, int64_t column, auto visit) {
    for (int64_t r = row; r < row + block_rows; ++r) {
      for (int64_t c = column; c < column + kBlock; ++c) {
        visit(static_cast<size_t>(r * columns + c));
      }
    }
  };
  for (int64_t row = 0; row < rows; row += block_rows) {
    for (int64_t column = 0; column < columns; column += kBlock) {
      float largest = 0;
      for_block(row, column, [&](size_t i) { largest = std::max(largest, std::abs(x[i])); });
      const float scale = largest > 0 ? largest / kMaxFloat8E4M3 : 1.0f;
      const float inverse = 1 / scale;
      for_block(row, column, [&](size_t i) {
        result.codes[i] = to_float8_e4m3(x[i] * inverse);
        result.values[i] = to_float(result.codes[i]) * scale;
      });
      result.scales.push_back(scale);
    }
  }
  return result;
}

class CudaFloat8 : public test::GpuRowOps {
 protected:
  static PackedWeights matrix(const std::vector<float>& values, int64_t rows, int64_t columns) {
    PackedWeights weights(DType::kBF16, rows, columns, kGpu.device);
    weights.set_rows(0, rows, values.data());
    return weights;
  }
};

TEST_F(CudaFloat8, MatricesRoundAsPlainCodeDoes) {
  constexpr int64_t kRows = 256, kColumns = 384;
  std::vector<float> values = random_values(kRows * kColumns, DType::kBF16, 1, 0.02f);
  std::fill_n(values.begin(), kBlock * kColumns, 0.0f);  // blocks of zeros
  values[kBlock * kColumns + 3] = 1000;                  // a block whose other values are small
  const PackedWeights weights = matrix(values, kRows, kColumns).quantized(kGpu);
  EXPECT_EQ(weights.dtype(), DType::kF8E4M3);
  EXPECT_EQ(weights.size_bytes(),
            packed_weight_bytes(DType::kF8E4M3, kRows, kColumns, kGpu.device));
  const Quantized want = quantize(values, kRows, kColumns, kBlock);
  EXPECT_EQ(download(weights.scales()), want.scales);
  std::vector<Float8E4M3> codes(values.size());
  copy_tensor(weights.view(), make_view(codes.data(), DType::kF8E4M3, {kRows, kColumns}), kGpu);
  for (size_t i = 0; i < codes.size(); ++i) {
    ASSERT_EQ(to_float(codes[i]), to_float(want.codes[i])) << "at " << i;
  }
}

TEST_F(CudaFloat8, ProductsMatchPlainLoops) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{128, 128}, {384, 512}, {640, 1024}}) {
    const std::vector<float> w = random_values(out * in, DType::kBF16, 2);
    const PackedWeights weights = matrix(w, out, in).quantized(kGpu);
    const std::vector<float> w_rounded = quantize(w, out, in, kBlock).values;
    for (const int64_t rows : {1, 5, 8, 128, 300}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << out << " x " << in);
      const std::vector<float> x = random_values(rows * in, DType::kBF16, 3);
      // A single row, as decode has it, is not rounded.
      const std::vector<double> product = reference::matmul(
          rows == 1 ? x : quantize(x, rows, in, 1).values, w_rounded, rows, out, in);
      std::vector<float> want(product.begin(), product.end());
      const PaddedRows rows_in(DType::kBF16, rows, in, x);

      const PaddedRows floats(DType::kF32, rows, out), halves(DType::kBF16, rows, out);
      ops_->matmul(rows_in.view(), weights, floats.view());
      EXPECT_EQ(cases::difference(floats.values(), want, kSums), "");
      ops_->matmul(rows_in.view(), weights, halves.view());
      EXPECT_EQ(cases::difference(halves.values(), want, {4e-3, 2e-2}), "");
      const std::vector<float> before = random_values(rows * out, DType::kF32, 4);
      const PaddedRows sum(DType::kF32, rows, out, before);
      ops_->matmul_add(rows_in.view(), weights, sum.view());
      for (size_t i = 0; i < want.size(); ++i) want[i] += before[i];
      EXPECT_EQ(cases::difference(sum.values(), want, kSums), "");
    }
  }
}

/// Rows that come by fours go through the library, others through a kernel of ours.
TEST_F(CudaFloat8, ARowsProductDoesNotDependOnHowManyCome) {
  constexpr int64_t kRows = 264, kFewer = 261;
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{384, 384}, {640, 1024}}) {
    const PackedWeights weights =
        matrix(random_values(out * in, DType::kBF16, 2), out, in).quantized(kGpu);
    const std::vector<float> x = random_values(kRows * in, DType::kBF16, 3);
    const std::vector<float> before = random_values(kRows * out, DType::kF32, 4);
    const auto results = [&](int64_t rows) {
      const auto first = [rows](const std::vector<float>& values, int64_t columns) {
        return std::vector<float>(values.begin(), values.begin() + rows * columns);
      };
      const PaddedRows rows_in(DType::kBF16, rows, in, first(x, in));
      const PaddedRows halves(DType::kBF16, rows, out),
          sums(DType::kF32, rows, out, first(before, out));
      ops_->matmul(rows_in.view(), weights, halves.view());
      ops_->matmul_add(rows_in.view(), weights, sums.view());
      return std::pair(halves.values(), sums.values());
    };
    auto all = results(kRows);
    all.first.resize(static_cast<size_t>(kFewer * out));
    all.second.resize(static_cast<size_t>(kFewer * out));
    EXPECT_EQ(results(kFewer), all) << out << " x " << in;
  }
}

/// What the mixture adds, over values rounded where the GPU rounds them: few rows only in bf16.
std::vector<float> expected(const MoeCase& moe, int64_t rows, bool is_few) {
  const reference::Moe& shape = moe.shape;
  const int64_t dim = shape.dim, width = shape.expert_dim;
  const std::vector<float> x = moe.row_values(rows);
  const std::vector<float> x_rounded = is_few ? x : quantize(x, rows, dim, 1).values;
  const std::vector<float> gate_up =
      quantize(moe.gate_up, shape.num_experts * 2 * width, dim, kBlock).values;
  const std::vector<float> down = quantize(moe.down, shape.num_experts * dim, width, kBlock).values;
  const std::vector<double> logits = reference::matmul(x, moe.router, rows, shape.num_experts, dim);
  const auto part = [](const std::vector<float>& all, int64_t index, int64_t size) {
    return std::vector<float>(all.begin() + index * size, all.begin() + (index + 1) * size);
  };
  std::vector<float> result(x.size());
  for (int64_t row = 0; row < rows; ++row) {
    const double* score = logits.data() + row * shape.num_experts;
    std::vector<int64_t> order(static_cast<size_t>(shape.num_experts));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int64_t a, int64_t b) { return score[a] > score[b]; });
    double total = 0;
    for (int64_t i = 0; i < shape.top_k; ++i)
      total += std::exp(score[order[static_cast<size_t>(i)]]);
    for (int64_t i = 0; i < shape.top_k; ++i) {
      const int64_t expert = order[static_cast<size_t>(i)];
      const std::vector<double> product = reference::matmul(
          part(x_rounded, row, dim), part(gate_up, expert, 2 * width * dim), 1, 2 * width, dim);
      const std::vector<double> activated =
          reference::gated_activation(shape.function, {product.begin(), product.end()}, 1, width);
      std::vector<float> rounded(activated.begin(), activated.end());
      if (!is_few) rounded = quantize(rounded, 1, width, 1).values;
      const std::vector<double> out =
          reference::matmul(rounded, part(down, expert, dim * width), 1, dim, width);
      for (int64_t j = 0; j < dim; ++j) {
        result[static_cast<size_t>(row * dim + j)] +=
            static_cast<float>(std::exp(score[expert]) / total * out[static_cast<size_t>(j)]);
      }
    }
  }
  return result;
}

TEST_F(CudaFloat8, MixturesMatchPlainLoops) {
  const reference::Moe shapes[] = {
      {.dim = 256,
       .num_experts = 8,
       .expert_dim = 128,
       .top_k = 2,
       .normalise = true,
       .function = GateFunction::kSilu},
      {.dim = 384,
       .num_experts = 32,
       .expert_dim = 256,
       .top_k = 4,
       .normalise = true,
       .function = GateFunction::kGeluTanh},
      // Every expert has every row: three tiles, of which two share weights.
      {.dim = 256,
       .num_experts = 2,
       .expert_dim = 384,
       .top_k = 2,
       .normalise = true,
       .function = GateFunction::kSilu},
  };
  for (const reference::Moe& shape : shapes) {
    const MoeCase moe(shape);
    const MoeCase::Weights bf16 = moe.weights(DType::kBF16, kGpu.device);
    const ExpertWeights gate_up = bf16.gate_up.quantized(kGpu);
    const ExpertWeights down = bf16.down.quantized(kGpu);
    const auto run = [&](int64_t rows) {
      const PaddedRows normed(DType::kBF16, rows, shape.dim, moe.row_values(rows));
      const PaddedRows residual(DType::kF32, rows, shape.dim,
                                std::vector<float>(static_cast<size_t>(rows * shape.dim)));
      MoeTask task = moe.task(bf16);
      task.gate_up = &gate_up;
      task.down = &down;
      task.normed = normed.view();
      task.residual = residual.view();
      ops_->moe(task);
      return residual.values();
    };
    const std::vector<float> all = run(300);
    EXPECT_EQ(cases::difference(all, expected(moe, 300, false), kRoundedTwice), "");
    for (const int64_t rows : {17, 128}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << shape.dim);
      const std::vector<float> some = run(rows);
      EXPECT_EQ(0, std::memcmp(all.data(), some.data(), some.size() * sizeof(float)));
    }
    for (const int64_t rows : {1, 8}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << shape.dim);
      EXPECT_EQ(cases::difference(run(rows), expected(moe, rows, true), {4e-3, 2e-2}), "");
    }
  }
}

TEST_F(CudaFloat8, RefusesWhatHasNoWholeBlocks) {
  const PackedWeights narrow(DType::kBF16, 128, 64, kGpu.device);
  EXPECT_THROW(narrow.quantized(kGpu), Error);
  const PackedWeights weights(DType::kBF16, 128, 128, kGpu.device);
  EXPECT_THROW(weights.quantized({}), Error);
  EXPECT_THROW(weights.quantized(kGpu).quantized(kGpu), Error);
  EXPECT_THROW(PackedWeights(DType::kF8E4M3, 128, 128, kGpu.device), Error);
  const ExpertWeights experts(DType::kBF16, 2, 64, 128, kGpu.device);
  EXPECT_THROW(experts.quantized(kGpu), Error);
  const std::vector<float> row(128);
  EXPECT_THROW(weights.quantized(kGpu).set_rows(0, 1, row.data()), Error);
}

}  // namespace
}  // namespace fovea
