// Mixtures of experts on a GPU against plain loops: the way of few rows and the way of many.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/tensor/cuda/check.h"
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

class CudaMoe : public test::GpuRowOps {
 protected:
  /// What the mixture adds to a residual stream that is not zero.
  std::vector<float> run(const MoeCase& moe, const MoeCase::Weights& weights, int64_t rows) {
    const int64_t dim = moe.shape.dim;
    const std::vector<float> before = random_values(rows * dim, DType::kF32, 6);
    const PaddedRows normed(DType::kBF16, rows, dim, moe.row_values(rows));
    const PaddedRows residual(DType::kF32, rows, dim, before);
    MoeTask task = moe.task(weights);
    task.normed = normed.view();
    task.residual = residual.view();
    ops_->moe(task);
    std::vector<float> added = residual.values();
    for (size_t i = 0; i < added.size(); ++i) added[i] -= before[i];
    return added;
  }
  std::string difference(const MoeCase& moe, int64_t rows) {
    return cases::difference(run(moe, moe.weights(DType::kBF16, kGpu.device), rows),
                             moe.expected(rows), cases::output_tolerance(DType::kBF16));
  }
};

TEST_F(CudaMoe, MatchesPlainLoops) {
  // Widths that end inside tiles and steps, more experts than rows, one expert, all experts.
  const reference::Moe shapes[] = {
      {.dim = 256,
       .num_experts = 128,
       .expert_dim = 96,
       .top_k = 8,
       .normalise = true,
       .function = GateFunction::kSilu},
      {.dim = 264,
       .num_experts = 16,
       .expert_dim = 200,
       .top_k = 4,
       .normalise = false,
       .function = GateFunction::kSilu},
      {.dim = 72,
       .num_experts = 256,
       .expert_dim = 40,
       .top_k = 16,
       .normalise = true,
       .function = GateFunction::kGeluTanh},
      {.dim = 264,
       .num_experts = 12,
       .expert_dim = 136,
       .top_k = 4,
       .normalise = true,
       .function = GateFunction::kClampedSwiglu},
      {.dim = 520,
       .num_experts = 3,
       .expert_dim = 136,
       .top_k = 1,
       .normalise = true,
       .function = GateFunction::kSilu},
      {.dim = 64,
       .num_experts = 8,
       .expert_dim = 512,
       .top_k = 8,
       .normalise = false,
       .function = GateFunction::kSilu},
  };
  for (const reference::Moe& shape : shapes) {
    const MoeCase moe(shape);
    for (const int64_t rows : {1, 2, 8, 9, 127, 128, 300}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << shape.dim << ", "
                                      << shape.num_experts << " experts of " << shape.expert_dim);
      EXPECT_EQ(difference(moe, rows), "");
    }
  }
}

TEST_F(CudaMoe, EqualLogitsGoToTheFirstExperts) {
  MoeCase moe({.dim = 128,
               .num_experts = 40,
               .expert_dim = 64,
               .top_k = 3,
               .normalise = true,
               .function = GateFunction::kSilu});
  std::fill(moe.router.begin(), moe.router.end(), 0.0f);
  for (const int64_t rows : {4, 400}) EXPECT_EQ(difference(moe, rows), "") << rows << " rows";
}

TEST_F(CudaMoe, ARowDependsOnNoOtherAndOnNoChance) {
  const MoeCase moe({.dim = 512,
                     .num_experts = 32,
                     .expert_dim = 128,
                     .top_k = 4,
                     .normalise = true,
                     .function = GateFunction::kSilu});
  const MoeCase::Weights weights = moe.weights(DType::kBF16, kGpu.device);
  const std::vector<float> all = run(moe, weights, 2000);
  for (const int64_t rows : {17, 128, 700, 2000}) {
    const std::vector<float> some = run(moe, weights, rows);
    // `run` subtracts the same residual from both.
    EXPECT_EQ(0, std::memcmp(all.data(), some.data(), some.size() * sizeof(float)))
        << rows << " rows";
  }
}

TEST_F(CudaMoe, CanBeCaptured) {
  const MoeCase moe({.dim = 256,
                     .num_experts = 16,
                     .expert_dim = 64,
                     .top_k = 4,
                     .normalise = true,
                     .function = GateFunction::kSilu});
  const MoeCase::Weights weights = moe.weights(DType::kBF16, kGpu.device);
  cudaStream_t stream = nullptr;
  cuda::check_cuda(cudaStreamCreate(&stream), "making a stream");
  {
    const auto ops = make_row_ops(DType::kBF16, {.device = kGpu.device, .stream = stream});
    for (const int64_t rows : {1, 200}) {
      const PaddedRows normed(DType::kBF16, rows, 256, moe.row_values(rows));
      const Tensor residual(DType::kF32, {rows, 256}, kGpu.device);
      MoeTask task = moe.task(weights);
      task.normed = normed.view();
      task.residual = residual.view();
      ops->moe(task);
      cuda::check_cuda(cudaStreamSynchronize(stream), "a mixture");
      const std::vector<float> once = download(residual.view());
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      cuda::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                       "beginning a capture");
      ops->moe(task);
      cuda::check_cuda(cudaStreamEndCapture(stream, &graph), "ending a capture");
      cuda::check_cuda(cudaGraphInstantiate(&executable, graph, 0), "making a graph");
      cuda::check_cuda(
          cudaMemset(residual.view().data, 0, static_cast<size_t>(residual.size_bytes())),
          "clearing");
      cuda::check_cuda(cudaGraphLaunch(executable, stream), "launching a graph");
      cuda::check_cuda(cudaStreamSynchronize(stream), "a graph");
      EXPECT_EQ(download(residual.view()), once) << rows << " rows";
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
    }
  }
  cudaStreamDestroy(stream);
}

TEST_F(CudaMoe, RefusesWhatItHasNoRoomFor) {
  const MoeCase moe({.dim = 8,
                     .num_experts = 257,
                     .expert_dim = 8,
                     .top_k = 1,
                     .normalise = true,
                     .function = GateFunction::kSilu});
  EXPECT_THROW(run(moe, moe.weights(DType::kBF16, kGpu.device), 1), Error);
  const MoeCase narrow({.dim = 8,
                        .num_experts = 32,
                        .expert_dim = 8,
                        .top_k = 17,
                        .normalise = true,
                        .function = GateFunction::kSilu});
  EXPECT_THROW(run(narrow, narrow.weights(DType::kBF16, kGpu.device), 1), Error);
  const MoeCase other({.dim = 8,
                       .num_experts = 4,
                       .expert_dim = 8,
                       .top_k = 1,
                       .normalise = true,
                       .function = GateFunction::kSilu});
  EXPECT_THROW(other.weights(DType::kBF16, kGpu.device).gate_up.expert(0), Error);
}

}  // namespace
}  // namespace fovea
