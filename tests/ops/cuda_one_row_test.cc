// A GPU's passes over one row, which do several operations at once, against plain loops in double
// over the row as the GPU rounds it: times the norm's weights, in bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/ops/reference/reference.h"
#include "fovea/ops/row_ops.h"
#include "fovea/tensor/bfloat16.h"
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

constexpr double kEps = 1e-6;

/// A row, the norm in front of a product, and the product's weights.
struct Operands {
  Operands(int64_t out_features, int64_t in_features)
      : out(out_features),
        in(in_features),
        x(random_values(in, DType::kF32, 1, 3)),
        norm(random_values(in, DType::kF32, 2)),
        w(random_values(out * in, DType::kBF16, 3, 1 / std::sqrt(static_cast<float>(in)))),
        residual(DType::kF32, 1, in, x),
        norm_weight(upload(norm, DType::kF32, {in})),
        weights(upload(w, DType::kBF16, {out, in})) {}

  std::vector<double> product() const {
    std::vector<float> rounded;
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      rounded.push_back(to_float(to_bfloat16(x[i] * norm[i])));
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    std::vector<double> result = reference::matmul(rounded, w, 1, out, in);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(in) + kEps);
    for (double& value : result) value *= factor;
    return result;
  }
  OneRowTask task() const {
    return {.residual = residual.view(),
            .norm_weight = norm_weight.view(),
            .eps = static_cast<float>(kEps),
            .layer = 5,
            .weights = &weights};
  }

  int64_t out, in;
  std::vector<float> x, norm, w;
  PaddedRows residual;
  Tensor norm_weight;
  PackedWeights weights;
};

std::vector<float> as_floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

class CudaOneRow : public test::GpuRowOps {};

TEST_F(CudaOneRow, NormAndProductMatchPlainLoops) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{1, 8},
                                {333, 576},
                                {1000, 584},
                                {4096, 64},
                                {9, 16384},
                                {600, 3584}}) {
    SCOPED_TRACE(testing::Message() << out << " x " << in);
    const Operands operands(out, in);
    OneRowTask task = operands.task();
    const PaddedRows floats(DType::kF32, 1, out), halves(DType::kBF16, 1, out);
    task.product = floats.view();
    ASSERT_TRUE(ops_->run_one_row(task));
    expect_close(floats.values(), operands.product(), 1e-5, 1e-5);
    task.product = halves.view();
    ASSERT_TRUE(ops_->run_one_row(task));
    expect_close(halves.values(), operands.product(), kRounding, 1e-5);
  }
  EXPECT_EQ(ops_->non_finite_layer(), -1);
}

TEST_F(CudaOneRow, GatedProductsMatchPlainLoops) {
  for (const GateFunction function :
       {GateFunction::kSilu, GateFunction::kGeluTanh, GateFunction::kClampedSwiglu}) {
    for (const auto& [dim, in] :
         {std::pair<int64_t, int64_t>{8, 8}, {264, 584}, {1536, 576}, {2816, 3584}}) {
      SCOPED_TRACE(testing::Message()
                   << dim << " x " << in << ", function " << static_cast<int>(function));
      const Operands operands(2 * dim, in);
      const Tensor product(DType::kBF16, {1, 2 * dim}, kGpu.device);
      const PaddedRows activated(DType::kBF16, 1, dim);
      OneRowTask task = operands.task();
      task.product = product.view();
      task.function = function;
      task.activated = activated.view();
      ASSERT_TRUE(ops_->run_one_row(task));
      expect_close(activated.values(),
                   reference::gated_activation(function, as_floats(operands.product()), 1, dim),
                   kRounding + 1e-5, 3e-5);
    }
  }
}

/// Heads of q, k and v from a row that sits at `position`, whose page is the last of three.
struct Heads {
  int64_t head_dim, num_q_heads, num_kv_heads;
  bool has_bias, has_norms;
  static constexpr int64_t kPageSize = 64, kPosition = 2 * kPageSize + 13, kFirstRow = 3;

  void run(RowOps& ops) const {
    const int64_t num_heads = num_q_heads + 2 * num_kv_heads;
    const Operands operands(num_heads * head_dim, 584);
    const std::vector<float> bias = random_values(num_heads * head_dim, DType::kF32, 4);
    const std::vector<float> head_norm = random_values(head_dim, DType::kF32, 5);
    const Tensor bias_tensor = upload(bias, DType::kF32, {num_heads * head_dim});
    const Tensor head_norm_tensor = upload(head_norm, DType::kF32, {head_dim});
    const PaddedRows q(DType::kBF16, 1, num_q_heads * head_dim);
    const std::vector<float> nothing(static_cast<size_t>(3 * num_kv_heads * kPageSize * head_dim),
                                     kNaN);
    const Tensor k = upload(nothing, DType::kBF16, {3, num_kv_heads, kPageSize, head_dim});
    const Tensor v = upload(nothing, DType::kBF16, {3, num_kv_heads, kPageSize, head_dim});
    const Tensor page_table = upload_integers(std::vector<int32_t>{0, 2, 1});
    const Tensor position = upload_integers(std::vector<int64_t>{kPosition - kFirstRow});
    RopeTable table(head_dim, 1e4, {}, kGpu.device);
    table.fill(position.as<int64_t>(), kFirstRow + 1, kGpu);
    const Tensor product(DType::kBF16, {1, num_heads * head_dim}, kGpu.device);

    QkvTask qkv;
    qkv.qkv = product.view();
    if (has_bias) qkv.bias = bias_tensor.view();
    if (has_norms) qkv.q_norm = qkv.k_norm = head_norm_tensor.view();
    qkv.eps = static_cast<float>(kEps);
    qkv.table = &table;
    qkv.first_row = kFirstRow;
    qkv.q = heads_of(q.view(), 0, num_q_heads, head_dim);
    qkv.k = k.view();
    qkv.v = v.view();
    qkv.page_table = page_table.as<int32_t>();
    qkv.position = position.as<int64_t>();
    OneRowTask task = operands.task();
    task.product = product.view();
    task.qkv = &qkv;
    ASSERT_TRUE(ops.run_one_row(task));

    const std::vector<double> sums = operands.product();
    const std::vector<float> got_q = q.values();
    std::vector<float> got_k = download(k.view()), got_v = download(v.view());
    for (int64_t head = 0; head < num_heads; ++head) {
      const bool is_q = head < num_q_heads, is_v = head >= num_q_heads + num_kv_heads;
      std::vector<float> x;
      for (int64_t i = head * head_dim; i < (head + 1) * head_dim; ++i) {
        const auto column = static_cast<size_t>(i);
        x.push_back(static_cast<float>(sums[column]) + (has_bias ? bias[column] : 0.0f));
      }
      if (has_norms && !is_v) x = as_floats(reference::rms_norm(x, head_norm, kEps, 1));
      const std::vector<double> want = is_v
                                           ? std::vector<double>(x.begin(), x.end())
                                           : reference::rope(x, 1, 1, head_dim, kPosition, 1e4, {});
      std::vector<float> got;
      for (int64_t i = 0; i < head_dim; ++i) {
        if (is_q) {
          got.push_back(got_q[static_cast<size_t>(head * head_dim + i)]);
        } else {
          const int64_t kv_head = (head - num_q_heads) % num_kv_heads;
          const int64_t slot = (1 * num_kv_heads + kv_head) * kPageSize + kPosition % kPageSize;
          got.push_back(std::exchange(
              (is_v ? got_v : got_k)[static_cast<size_t>(slot * head_dim + i)], kNaN));
        }
      }
      SCOPED_TRACE(testing::Message() << "head " << head);
      // With norms of heads the product is rounded on its way.
      expect_close(got, want, kRounding, has_norms ? 4e-2 : 3e-5);
    }
    for (size_t i = 0; i < got_k.size(); ++i) {
      ASSERT_TRUE(std::isnan(got_k[i]) && std::isnan(got_v[i])) << "written at " << i;
    }
  }
};

TEST_F(CudaOneRow, HeadsMatchPlainLoops) {
  for (const bool has_bias : {false, true}) {
    for (const int64_t head_dim : {8, 64, 80, 128, 256}) {
      for (const bool has_norms : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << "head_dim " << head_dim << " bias " << has_bias << " norms " << has_norms);
        Heads{head_dim, 6, 2, has_bias, has_norms}.run(*ops_);
      }
    }
    Heads{128, 28, 4, has_bias, false}.run(*ops_);
  }
}

TEST_F(CudaOneRow, GatesOfWeightsInF8AreWhatTheStepsOneByOneGive) {
  constexpr int64_t kDim = 384, kIn = 512;
  const Operands operands(2 * kDim, kIn);
  const PackedWeights weights = operands.weights.quantized(kGpu);
  const Tensor normed(DType::kBF16, {1, kIn}, kGpu.device);
  const Tensor product(DType::kBF16, {1, 2 * kDim}, kGpu.device);
  const PaddedRows together(DType::kBF16, 1, kDim), one_by_one(DType::kBF16, 1, kDim);
  OneRowTask task = operands.task();
  task.weights = &weights;
  task.product = product.view();
  task.activated = together.view();
  ASSERT_TRUE(ops_->run_one_row(task));
  ops_->norm(task.residual, task.norm_weight, task.eps, 0, normed.view());
  ops_->matmul(normed.view(), weights, product.view());
  ops_->activate(task.function, product.view(), one_by_one.view());
  const std::vector<float> want = one_by_one.values();
  // The row is rounded before the norm's factor, or after it.
  expect_close(together.values(), {want.begin(), want.end()}, 3 * kRounding, 1e-2);
}

TEST_F(CudaOneRow, NotesALayerThatIsNotFinite) {
  Operands operands(16, 576);
  const Tensor product(DType::kF32, {1, 16}, kGpu.device);
  OneRowTask task = operands.task();
  task.product = product.view();
  ASSERT_TRUE(ops_->run_one_row(task));
  EXPECT_EQ(ops_->non_finite_layer(), -1);
  operands.x[575] = std::numeric_limits<float>::infinity();
  const Tensor infinite = upload(operands.x, DType::kF32, {1, 576});
  task.residual = infinite.view();
  task.layer = -1;  // to be noted nowhere
  ASSERT_TRUE(ops_->run_one_row(task));
  EXPECT_EQ(ops_->non_finite_layer(), -1);
  task.layer = 7;
  ASSERT_TRUE(ops_->run_one_row(task));
  task.layer = 9;
  ASSERT_TRUE(ops_->run_one_row(task));
  EXPECT_EQ(ops_->non_finite_layer(), 7);
}

TEST_F(CudaOneRow, LeavesSeveralRowsAloneAndRefusesWhatDoesNotFit) {
  const Operands operands(16, 64);
  const Tensor rows(DType::kF32, {2, 64}, kGpu.device), product(DType::kF32, {2, 16}, kGpu.device);
  OneRowTask task = operands.task();
  task.residual = rows.view();
  task.product = product.view();
  EXPECT_FALSE(ops_->run_one_row(task));

  const Tensor on_cpu(DType::kF32, {1, 16}), short_row(DType::kF32, {1, 8}, kGpu.device);
  task.residual = operands.residual.view();
  for (const TensorView& wrong : {on_cpu.view(), short_row.view(), product.view()}) {
    task.product = wrong;
    EXPECT_THROW(ops_->run_one_row(task), Error);
  }
  task.product = rows_of(product.view(), 0, 1);
  task.activated = rows_of(product.view(), 0, 1);
  EXPECT_THROW(ops_->run_one_row(task), Error);
}

}  // namespace
}  // namespace fovea
