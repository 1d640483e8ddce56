// Mixtures of experts on the CPU against plain loops.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/ops/reference/reference.h"
#include "fovea/ops/row_ops.h"
#include "tests/cases/tolerances.h"
#include "tests/ops/moe_case.h"

namespace fovea {
namespace {

using test::MoeCase;

std::vector<DType> types() {
  std::vector<DType> list = {DType::kF32};
  if (matmul_is_native(DType::kBF16)) list.push_back(DType::kBF16);
  return list;
}

/// What the mixture adds to a residual stream of zeros.
std::vector<float> run(const MoeCase& moe, DType dtype, int64_t rows, bool normalise = true) {
  const MoeCase::Weights weights = moe.weights(dtype, {});
  const Tensor normed = moe.rows(dtype, kSlabRows);
  const Tensor residual(DType::kF32, {kSlabRows, moe.shape.dim});
  MoeTask task = moe.task(weights);
  task.normalise = normalise;
  task.normed = rows_of(normed.view(), 0, rows);
  task.residual = rows_of(residual.view(), 0, rows);
  const auto ops = make_row_ops(dtype, {});
  ops->begin_step(rows);
  ops->moe(task);
  return {residual.as<float>(), residual.as<float>() + rows * moe.shape.dim};
}

TEST(Moe, MatchesPlainLoops) {
  for (const GateFunction function : {GateFunction::kSilu, GateFunction::kClampedSwiglu}) {
    const bool normalise = function == GateFunction::kClampedSwiglu;
    const MoeCase moe({.dim = 96,
                       .num_experts = 12,
                       .expert_dim = 40,
                       .top_k = 3,
                       .normalise = normalise,
                       .function = function});
    for (const int64_t rows : {1, 2, 100, 128}) {
      const std::vector<float> want = moe.expected(rows);
      for (const DType dtype : types()) {
        SCOPED_TRACE(testing::Message() << rows << " rows in " << dtype_name(dtype));
        EXPECT_EQ(cases::difference(run(moe, dtype, rows, normalise), want,
                                    cases::output_tolerance(dtype)),
                  "");
      }
    }
  }
}

TEST(Moe, ARowDoesNotDependOnItsNeighbours) {
  const MoeCase moe({.dim = 64,
                     .num_experts = 8,
                     .expert_dim = 32,
                     .top_k = 2,
                     .normalise = true,
                     .function = GateFunction::kSilu});
  for (const DType dtype : types()) {
    const std::vector<float> all = run(moe, dtype, 128);
    for (const int64_t rows : {2, 40}) {
      const std::vector<float> some = run(moe, dtype, rows);
      EXPECT_EQ(0, std::memcmp(all.data(), some.data(), some.size() * sizeof(float)));
    }
  }
}

TEST(Moe, RefusesWhatDoesNotFit) {
  const MoeCase moe({.dim = 64,
                     .num_experts = 8,
                     .expert_dim = 32,
                     .top_k = 2,
                     .normalise = true,
                     .function = GateFunction::kSilu});
  const MoeCase::Weights weights = moe.weights(DType::kF32, {});
  const Tensor normed = moe.rows(DType::kF32, kSlabRows);
  const Tensor residual(DType::kF32, {kSlabRows, 64}), narrow(DType::kF32, {kSlabRows, 32});
  const auto ops = make_row_ops(DType::kF32, {});
  MoeTask task = moe.task(weights);
  task.normed = normed.view();
  task.residual = narrow.view();
  EXPECT_THROW(ops->moe(task), Error);
  task.residual = residual.view();
  task.top_k = 9;
  EXPECT_THROW(ops->moe(task), Error);
  task.top_k = 2;
  task.down = &weights.gate_up;
  EXPECT_THROW(ops->moe(task), Error);
  task.down = nullptr;
  EXPECT_THROW(ops->moe(task), Error);
  EXPECT_THROW(ExpertWeights(DType::kF32, 0, 8, 8), Error);
  ExpertWeights experts(DType::kF32, 2, 8, 8);
  const std::vector<float> row(8);
  EXPECT_THROW(experts.set_rows(2, 0, 1, row.data()), Error);
  EXPECT_THROW(experts.set_rows(1, 8, 1, row.data()), Error);
  EXPECT_THROW(experts.view(), Error);
}

}  // namespace
}  // namespace fovea
