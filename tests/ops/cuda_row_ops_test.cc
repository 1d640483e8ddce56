// A GPU's rows against plain loops in double, and against the CPU where both must agree. Inputs are
// rounded to what the GPU reads, rows are padded with NaN, and what lies between rows stays as it
// was.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/ops/reference/reference.h"
#include "fovea/ops/row_ops.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/slices.h"
#include "tests/ops/gpu_rows.h"

namespace fovea {
namespace {

using test::download;
using test::expect_close;
using test::kGpu;
using test::kNaN;
using test::kRounding;
using test::PaddedRows;
using test::random_values;
using test::upload;
using test::upload_integers;

class CudaRows : public test::GpuRowOps {};

constexpr int64_t kRowCounts[] = {1, 2, 127, 128, 1000};

TEST_F(CudaRows, EmbedTakesRowsOfTheTable) {
  constexpr int64_t kVocab = 100, kDim = 584;
  const std::vector<float> table = random_values(kVocab * kDim, DType::kBF16, 1);
  PackedWeights weights(DType::kBF16, kVocab, kDim, kGpu.device);
  weights.set_rows(0, kVocab, table.data());
  for (const int64_t rows : kRowCounts) {
    std::vector<int32_t> tokens;
    std::vector<double> want;
    for (int64_t row = 0; row < rows; ++row) {
      tokens.push_back(static_cast<int32_t>(row * 37 % kVocab));
      for (int64_t i = 0; i < kDim; ++i) {
        want.push_back(2.5 * table[static_cast<size_t>(tokens.back() * kDim + i)]);
      }
    }
    const PaddedRows out(DType::kF32, rows, kDim);
    ops_->embed(upload_integers(tokens).as<int32_t>(), weights.view(), 2.5f, out.view());
    expect_close(out.values(), want, 1e-7, 0);
  }
}

TEST_F(CudaRows, EmbedReadsNothingOutsideTheTable) {
  const Tensor table = upload(random_values(8 * 16, DType::kBF16, 2), DType::kBF16, {8, 16});
  const Tensor tokens = upload_integers(std::vector<int32_t>{-1, 8, 1 << 30, 7});
  const Tensor out(DType::kF32, {4, 16}, kGpu.device);
  ops_->embed(tokens.as<int32_t>(), table.view(), 1, out.view());
  const std::vector<float> values = download(out.view());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i < 3 * 16) << i;
}

TEST_F(CudaRows, NormMatchesPlainLoops) {
  for (const int64_t dim : {64, 576, 2048, 3584, 8192, 16384}) {
    for (const int64_t rows : kRowCounts) {
      if (rows * dim > 3000000) continue;
      SCOPED_TRACE(testing::Message() << rows << " rows of " << dim);
      const std::vector<float> x = random_values(rows * dim, DType::kF32, 3, 3);
      const std::vector<float> weight = random_values(dim, DType::kF32, 4);
      const PaddedRows in(DType::kF32, rows, dim, x), out(DType::kBF16, rows, dim);
      ops_->norm(in.view(), upload(weight, DType::kF32, {dim}).view(), 1e-6f, 0, out.view());
      expect_close(out.values(), reference::rms_norm(x, weight, 1e-6, rows), kRounding, 1e-30);
    }
  }
  EXPECT_EQ(ops_->non_finite_layer(), -1);
}

TEST_F(CudaRows, NormNotesTheFirstLayerThatIsNotFinite) {
  constexpr int64_t kRows = 200, kDim = 576;
  std::vector<float> x = random_values(kRows * kDim, DType::kF32, 5);
  const Tensor weight = upload(std::vector<float>(kDim, 1), DType::kF32, {kDim});
  const Tensor out(DType::kBF16, {kRows, kDim}, kGpu.device);
  const auto norm = [&](int64_t layer) {
    ops_->norm(upload(x, DType::kF32, {kRows, kDim}).view(), weight.view(), 1e-6f, layer,
               out.view());
  };
  norm(1);
  EXPECT_EQ(ops_->non_finite_layer(), -1);
  x[150 * kDim + 575] = std::numeric_limits<float>::infinity();
  norm(-1);  // to be noted nowhere
  EXPECT_EQ(ops_->non_finite_layer(), -1);
  norm(7);
  x[3 * kDim] = kNaN;
  norm(3);
  norm(5);
  EXPECT_EQ(ops_->non_finite_layer(), 3);
  ops_->begin_step(1);
  EXPECT_EQ(ops_->non_finite_layer(), -1);
}

TEST_F(CudaRows, AddNormedMatchesPlainLoops) {
  for (const int64_t dim : {64, 640, 3584, 5376}) {
    for (const int64_t rows : kRowCounts) {
      if (rows * dim > 3000000) continue;
      SCOPED_TRACE(testing::Message() << rows << " rows of " << dim);
      const std::vector<float> x = random_values(rows * dim, DType::kBF16, 6, 3);
      const std::vector<float> weight = random_values(dim, DType::kF32, 7);
      const std::vector<float> before = random_values(rows * dim, DType::kF32, 8);
      const PaddedRows in(DType::kBF16, rows, dim, x), sum(DType::kF32, rows, dim, before);
      ops_->add_normed(in.view(), upload(weight, DType::kF32, {dim}).view(), 1e-6f, sum.view());
      std::vector<double> want = reference::rms_norm(x, weight, 1e-6, rows);
      for (size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(before[i]);
      expect_close(sum.values(), want, 1e-6, 1e-5);
    }
  }
}

TEST_F(CudaRows, ActivateMatchesPlainLoops) {
  for (const GateFunction function :
       {GateFunction::kSilu, GateFunction::kGeluTanh, GateFunction::kClampedSwiglu}) {
    for (const int64_t dim : {8, 768, 1536, 2816}) {
      for (const int64_t rows : kRowCounts) {
        SCOPED_TRACE(testing::Message()
                     << rows << " rows of " << dim << ", function " << static_cast<int>(function));
        const std::vector<float> x = random_values(rows * 2 * dim, DType::kBF16, 9, 3);
        const PaddedRows in(DType::kBF16, rows, 2 * dim, x), out(DType::kBF16, rows, dim);
        ops_->activate(function, in.view(), out.view());
        expect_close(out.values(), reference::gated_activation(function, x, rows, dim),
                     kRounding + 1e-5, 1e-6);
      }
    }
  }
}

TEST_F(CudaRows, AddBiasAddsToEveryRow) {
  for (const int64_t dim : {8, 768, 2880}) {
    for (const int64_t rows : kRowCounts) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << dim);
      const std::vector<float> before = random_values(rows * dim, DType::kF32, 10);
      const std::vector<float> bias = random_values(dim, DType::kF32, 11);
      const PaddedRows sum(DType::kF32, rows, dim, before);
      ops_->add_bias(upload(bias, DType::kF32, {dim}).view(), sum.view());
      const std::vector<float> after = sum.values();
      for (size_t i = 0; i < after.size(); ++i) {
        ASSERT_EQ(after[i], before[i] + bias[i % bias.size()]) << i;
      }
    }
  }
}

TEST_F(CudaRows, ActivateHoldsAtExtremes) {
  const std::vector<float> x = {-1e30f, -200, -88, -1, 0, 88, 200, 1e30f, 1, 1, 1, 1, 1, 1, 1, 1};
  const Tensor out(DType::kBF16, {1, 8}, kGpu.device);
  for (const auto function : {GateFunction::kSilu, GateFunction::kGeluTanh}) {
    ops_->activate(function, upload(x, DType::kBF16, {1, 16}).view(), out.view());
    const std::vector<float> values = download(out.view());
    EXPECT_NEAR(values[0], 0, 1e-30);
    EXPECT_NEAR(values[1], 0, 1e-30);
    EXPECT_NEAR(values[2], 0, 1e-30);
    EXPECT_EQ(values[4], 0);
    EXPECT_EQ(values[5], 88);
    EXPECT_EQ(values[6], 200);
    EXPECT_NEAR(values[7], 1e30f, 1e28);
  }
}

TEST_F(CudaRows, RopeTableMatchesTheCpus) {
  for (const int64_t first : {int64_t{0}, int64_t{131000}, int64_t{10000000}}) {
    std::vector<float> factors(40, 1.0f);
    factors[3] = 8.0f;
    RopeTable cpu(80, 1e6, factors), gpu(80, 1e6, factors, kGpu.device);
    cpu.fill(first, 300, {});
    gpu.fill(upload_integers(std::vector<int64_t>{first}).as<int64_t>(), 300, kGpu);
    EXPECT_EQ(gpu.num_rows(), 300);
    const auto at = [&](const float* data) {
      return download(make_view(const_cast<float*>(data), DType::kF32, {300, 40}, kGpu.device));
    };
    const std::vector<float> cos = at(gpu.cos(0)), sin = at(gpu.sin(0));
    for (size_t i = 0; i < cos.size(); ++i) {
      ASSERT_NEAR(cos[i], cpu.cos(0)[i], 1.2e-7) << "at " << i;
      ASSERT_NEAR(sin[i], cpu.sin(0)[i], 1.2e-7) << "at " << i;
    }
  }
}

/// Runs finish_qkv() on pages of NaN and compares with plain loops: q, every slot it should have
/// written, and that it wrote no other.
struct FinishCase {
  int64_t head_dim, rows;
  bool has_bias, has_norms;
  int64_t num_q_heads = 6, num_kv_heads = 2, page_size = 64, position = 77, first_row = 5;

  int64_t num_heads() const { return num_q_heads + 2 * num_kv_heads; }
  int64_t num_pages() const { return (position + first_row + rows) / page_size + 3; }

  /// bias, norms and RoPE of `qkv` in double, [rows, heads, head_dim].
  std::vector<double> expected(const std::vector<float>& qkv, const std::vector<float>& bias,
                               const std::vector<float>& q_norm,
                               const std::vector<float>& k_norm) const {
    std::vector<double> result;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < num_heads(); ++head) {
        std::vector<float> x(static_cast<size_t>(head_dim));
        for (int64_t i = 0; i < head_dim; ++i) {
          const auto column = static_cast<size_t>(head * head_dim + i);
          x[static_cast<size_t>(i)] =
              qkv[static_cast<size_t>(row * num_heads() * head_dim) + column] +
              (has_bias ? bias[column] : 0.0f);
        }
        const bool is_q = head < num_q_heads;
        const bool is_v = head >= num_q_heads + num_kv_heads;
        if (has_norms && !is_v) {
          const std::vector<double> normed =
              reference::rms_norm(x, is_q ? q_norm : k_norm, 1e-6, 1);
          std::transform(normed.begin(), normed.end(), x.begin(),
                         [](double value) { return static_cast<float>(value); });
        }
        if (is_v) {
          result.insert(result.end(), x.begin(), x.end());
        } else {
          const std::vector<double> turned =
              reference::rope(x, 1, 1, head_dim, position + first_row + row, 1e4, {});
          result.insert(result.end(), turned.begin(), turned.end());
        }
      }
    }
    return result;
  }

  void run(RowOps& ops) const {
    const std::vector<float> qkv = random_values(rows * num_heads() * head_dim, DType::kBF16, 10);
    const std::vector<float> bias = random_values(num_heads() * head_dim, DType::kF32, 11);
    const std::vector<float> q_norm = random_values(head_dim, DType::kF32, 12);
    const std::vector<float> k_norm = random_values(head_dim, DType::kF32, 13);
    const PaddedRows in(DType::kBF16, rows, num_heads() * head_dim, qkv);
    const Tensor bias_tensor = upload(bias, DType::kF32, {num_heads() * head_dim});
    const Tensor q_norm_tensor = upload(q_norm, DType::kF32, {head_dim});
    const Tensor k_norm_tensor = upload(k_norm, DType::kF32, {head_dim});
    const PaddedRows q(DType::kBF16, rows, num_q_heads * head_dim);
    const std::vector<float> nothing(
        static_cast<size_t>(num_pages() * num_kv_heads * page_size * head_dim), kNaN);
    const Tensor k =
        upload(nothing, DType::kBF16, {num_pages(), num_kv_heads, page_size, head_dim});
    const Tensor v =
        upload(nothing, DType::kBF16, {num_pages(), num_kv_heads, page_size, head_dim});
    std::vector<int32_t> pages(static_cast<size_t>(num_pages()));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(14));
    const Tensor page_table = upload_integers(pages);
    const Tensor position_tensor = upload_integers(std::vector<int64_t>{position});
    RopeTable table(head_dim, 1e4, {}, kGpu.device);
    table.fill(position_tensor.as<int64_t>(), first_row + rows, kGpu);

    QkvTask task;
    task.qkv = in.view();
    if (has_bias) task.bias = bias_tensor.view();
    if (has_norms) task.q_norm = q_norm_tensor.view();
    if (has_norms) task.k_norm = k_norm_tensor.view();
    task.eps = 1e-6f;
    task.table = &table;
    task.first_row = first_row;
    task.q = heads_of(q.view(), 0, num_q_heads, head_dim);
    task.k = k.view();
    task.v = v.view();
    task.page_table = page_table.as<int32_t>();
    task.position = position_tensor.as<int64_t>();
    ops.finish_qkv(task);

    const std::vector<double> want = expected(qkv, bias, q_norm, k_norm);
    const std::vector<float> got_q = q.values();
    std::vector<float> got_k = download(k.view()), got_v = download(v.view());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = position + first_row + row;
      const int64_t page = pages[static_cast<size_t>(at / page_size)];
      for (int64_t head = 0; head < num_heads(); ++head) {
        for (int64_t i = 0; i < head_dim; ++i) {
          const int64_t kv_head = (head - num_q_heads) % num_kv_heads;
          const auto slot = static_cast<size_t>(
              ((page * num_kv_heads + kv_head) * page_size + at % page_size) * head_dim + i);
          float got = 0;
          if (head < num_q_heads) {
            got = got_q[static_cast<size_t>((row * num_q_heads + head) * head_dim + i)];
          } else {
            std::vector<float>& cache = head < num_q_heads + num_kv_heads ? got_k : got_v;
            got = std::exchange(cache[slot], kNaN);
          }
          const double expected_value =
              want[static_cast<size_t>((row * num_heads() + head) * head_dim + i)];
          ASSERT_NEAR(got, expected_value, kRounding * std::abs(expected_value) + 3e-6)
              << "row " << row << " head " << head << " at " << i;
        }
      }
    }
    for (size_t i = 0; i < got_k.size(); ++i) {
      ASSERT_TRUE(std::isnan(got_k[i]) && std::isnan(got_v[i])) << "written at " << i;
    }
  }
};

TEST_F(CudaRows, FinishQkvMatchesPlainLoops) {
  for (const int64_t head_dim : {8, 64, 72, 80, 96, 128, 248, 256}) {
    for (const bool has_bias : {false, true}) {
      for (const bool has_norms : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << "head_dim " << head_dim << " bias " << has_bias << " norms " << has_norms);
        FinishCase{head_dim, 130, has_bias, has_norms}.run(*ops_);
      }
    }
  }
  for (const int64_t rows : kRowCounts) FinishCase{128, rows, true, true}.run(*ops_);
  FinishCase many_heads{128, 3, true, true};
  many_heads.num_q_heads = 64;
  many_heads.num_kv_heads = 8;
  many_heads.run(*ops_);
}

TEST_F(CudaRows, MatmulMatchesPlainLoops) {
  struct Shape {
    int64_t rows, out, in;
  };
  std::vector<Shape> shapes = {{3, 5, 8}, {5, 8, 8}, {20, 333, 576}, {300, 1000, 64}};
  for (const int64_t rows : {1, 2, 3, 4, 5, 16, 17, 127, 128, 1000}) {
    shapes.push_back({rows, 264, 584});
  }
  for (const auto [rows, out, in] : shapes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << out << " x " << in);
    const std::vector<float> x = random_values(rows * in, DType::kBF16, 15);
    const std::vector<float> w = random_values(out * in, DType::kBF16, 16);
    PackedWeights weights(DType::kBF16, out, in, kGpu.device);
    EXPECT_EQ(weights.size_bytes(), packed_weight_bytes(DType::kBF16, out, in, kGpu.device));
    const int64_t split = out / 3;  // fused matrices come in pieces, by several threads
    std::thread first([&] { weights.set_rows(0, split, w.data()); });
    weights.set_rows(split, out - split, w.data() + split * in);
    first.join();
    const PaddedRows rows_in(DType::kBF16, rows, in, x);
    std::vector<double> want = reference::matmul(x, w, rows, out, in);
    const double absolute = 2e-6 * std::sqrt(static_cast<double>(in));

    const PaddedRows floats(DType::kF32, rows, out), halves(DType::kBF16, rows, out);
    ops_->matmul(rows_in.view(), weights, floats.view());
    expect_close(floats.values(), want, 1e-5, absolute);
    ops_->matmul(rows_in.view(), weights, halves.view());
    expect_close(halves.values(), want, kRounding, absolute);
    const Tensor dense(DType::kF32, {rows, out}, kGpu.device);
    ops_->matmul(rows_in.view(), weights, dense.view());
    expect_close(download(dense.view()), want, 1e-5, absolute);

    const std::vector<float> before = random_values(rows * out, DType::kF32, 17);
    const PaddedRows sum(DType::kF32, rows, out, before);
    ops_->matmul_add(rows_in.view(), weights, sum.view());
    for (size_t i = 0; i < want.size(); ++i) want[i] += static_cast<double>(before[i]);
    expect_close(sum.values(), want, 1e-5, 2 * absolute);
  }
}

TEST_F(CudaRows, ARowsProductDoesNotDependOnItsNeighbours) {
  constexpr int64_t kRows = 4096;
  for (const auto& [out_features, in_features] : {std::pair{512, 576}, {4608, 3584}}) {
    const PackedWeights weights(
        upload(random_values(int64_t{out_features} * in_features, DType::kBF16, 18), DType::kBF16,
               {out_features, in_features}));
    const Tensor in = upload(random_values(kRows * in_features, DType::kBF16, 19), DType::kBF16,
                             {kRows, in_features});
    const auto product = [&](int64_t rows) {
      const Tensor out(DType::kF32, {rows, out_features}, kGpu.device);
      ops_->matmul(rows_of(in.view(), 0, rows), weights, out.view());
      return download(out.view());
    };
    const std::vector<float> all = product(kRows);
    for (const int64_t rows : {17, 100, 128, 512, 1000, 2048}) {
      const std::vector<float> some = product(rows);
      EXPECT_EQ(0, std::memcmp(all.data(), some.data(), some.size() * sizeof(float)))
          << rows << " rows of " << out_features << " x " << in_features;
    }
  }
}

TEST_F(CudaRows, AStepCanBeCapturedAndFollowsItsPosition) {
  constexpr int64_t kDim = 64, kHeadDim = 64, kPageSize = 64;
  cudaStream_t stream = nullptr;
  cuda::check_cuda(cudaStreamCreate(&stream), "making a stream");
  const Context context{.device = kGpu.device, .stream = stream};
  {
    const std::unique_ptr<RowOps> ops = make_row_ops(DType::kBF16, context);
    const PackedWeights table(
        upload(random_values(10 * kDim, DType::kBF16, 20), DType::kBF16, {10, kDim}));
    const PackedWeights weights(upload(random_values(3 * kHeadDim * kDim, DType::kBF16, 21),
                                       DType::kBF16, {3 * kHeadDim, kDim}));
    const Tensor norm_weight = upload(std::vector<float>(kDim, 1), DType::kF32, {kDim});
    const Tensor residual(DType::kF32, {1, kDim}, kGpu.device);
    const Tensor normed(DType::kBF16, {1, kDim}, kGpu.device);
    const Tensor qkv(DType::kBF16, {1, 3 * kHeadDim}, kGpu.device);
    const Tensor q(DType::kBF16, {1, 1, kHeadDim}, kGpu.device);
    const Tensor k(DType::kBF16, {4, 1, kPageSize, kHeadDim}, kGpu.device);
    const Tensor v(DType::kBF16, {4, 1, kPageSize, kHeadDim}, kGpu.device);
    const Tensor page_table = upload_integers(std::vector<int32_t>{2, 0, 3, 1});
    const Tensor token(DType::kI32, {1}, kGpu.device);
    const Tensor position(DType::kI64, {1}, kGpu.device);
    RopeTable rope_table(kHeadDim, 1e4, {}, kGpu.device);
    rope_table.reserve(1);
    QkvTask task;
    task.qkv = qkv.view();
    task.table = &rope_table;
    task.q = q.view();
    task.k = k.view();
    task.v = v.view();
    task.page_table = page_table.as<int32_t>();
    task.position = position.as<int64_t>();
    const auto step = [&] {
      ops->begin_step(1);
      rope_table.fill(position.as<int64_t>(), 1, context);
      ops->embed(token.as<int32_t>(), table.view(), 1, residual.view());
      ops->norm(residual.view(), norm_weight.view(), 1e-6f, 0, normed.view());
      ops->matmul(normed.view(), weights, qkv.view());
      ops->finish_qkv(task);
    };
    const auto set = [&](int32_t token_value, int64_t position_value) {
      copy_tensor(make_view(&token_value, DType::kI32, {1}), token.view(), context);
      copy_tensor(make_view(&position_value, DType::kI64, {1}), position.view(), context);
    };
    set(1, 0);
    step();
    synchronize(context);

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cuda::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                     "beginning a capture");
    step();
    cuda::check_cuda(cudaStreamEndCapture(stream, &graph), "ending a capture");
    cuda::check_cuda(cudaGraphInstantiate(&executable, graph, 0), "making a graph");
    for (const auto& [token_value, position_value] : {std::pair{3, 5}, {7, 64}, {3, 200}}) {
      set(token_value, position_value);
      cuda::check_cuda(cudaGraphLaunch(executable, stream), "launching a graph");
      synchronize(context);
      const std::vector<float> replayed = download(q.view()), replayed_k = download(k.view());
      step();
      synchronize(context);
      EXPECT_EQ(replayed, download(q.view()));
      EXPECT_EQ(replayed_k, download(k.view()));
      const size_t page = std::vector<size_t>{2, 0, 3, 1}[static_cast<size_t>(position_value / 64)];
      const size_t slot = (page * kPageSize + static_cast<size_t>(position_value % 64)) * kHeadDim;
      float largest = 0;
      for (size_t i = 0; i < kHeadDim; ++i) {
        largest = std::max(largest, std::abs(replayed_k[slot + i]));
      }
      EXPECT_GT(largest, 0) << "nothing at position " << position_value;
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}

TEST_F(CudaRows, RefusesWhatDoesNotFit) {
  const Device gpu = kGpu.device;
  EXPECT_THROW(make_row_ops(DType::kF16, kGpu), Error);
  EXPECT_THROW(PackedWeights(DType::kF32, 8, 16, gpu), Error);
  EXPECT_THROW(PackedWeights(DType::kBF16, 8, 12, gpu), Error);
  EXPECT_THROW(PackedWeights(Tensor(DType::kF32, {8, 16}, gpu)), Error);
  EXPECT_THROW(RopeTable(258, 1e4, {}, gpu), Error);
  RopeTable table(64, 1e4, {}, gpu);
  EXPECT_THROW(table.fill(int64_t{0}, 1, kGpu), Error);

  const PackedWeights weights(DType::kBF16, 8, 16, gpu);
  const std::vector<float> row(16);
  EXPECT_THROW(PackedWeights(DType::kBF16, 8, 16, gpu).set_rows(8, 1, row.data()), Error);
  const Tensor x(DType::kF32, {2, 16}, gpu), halves(DType::kBF16, {2, 16}, gpu);
  const Tensor on_cpu(DType::kBF16, {2, 16}), weight(DType::kF32, {16}, gpu);
  const Tensor out(DType::kBF16, {2, 8}, gpu), short_out(DType::kBF16, {1, 8}, gpu);
  EXPECT_THROW(ops_->matmul(x.view(), weights, out.view()), Error);
  EXPECT_THROW(ops_->matmul(on_cpu.view(), weights, out.view()), Error);
  EXPECT_THROW(ops_->matmul(halves.view(), weights, short_out.view()), Error);
  EXPECT_THROW(ops_->matmul_add(halves.view(), weights, out.view()), Error);
  EXPECT_THROW(ops_->norm(x.view(), weight.view(), 0, 0, out.view()), Error);
  EXPECT_THROW(ops_->norm(x.view(), weight.view(), -1, 0, halves.view()), Error);
  EXPECT_THROW(ops_->norm(halves.view(), weight.view(), 0, 0, halves.view()), Error);
  EXPECT_THROW(ops_->activate(GateFunction::kSilu, halves.view(), short_out.view()), Error);
  TensorView unaligned = halves.view();
  unaligned.data = halves.as<uint16_t>() + 1;
  EXPECT_THROW(ops_->norm(x.view(), weight.view(), 0, 0, unaligned), Error);
}

}  // namespace
}  // namespace fovea
