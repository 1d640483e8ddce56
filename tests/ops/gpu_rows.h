// Rows in a GPU's memory, for tests: values go there and come back in the type of the rows, and
// what lies between rows is watched.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fovea/ops/row_ops.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/tensor.h"

namespace fovea::test {

const Context kGpu{.device = {DeviceType::kCuda, 0}};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
/// Rounding to the 8 significant bits of bf16, and f32 arithmetic before it.
constexpr double kRounding = 1.01 / 256;

inline void expect_close(const std::vector<float>& got, const std::vector<double>& want,
                         double relative, double absolute) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], relative * std::abs(want[i]) + absolute) << "at " << i;
  }
}

/// Skips where there is no GPU.
class GpuRowOps : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_unusable(kGpu.device); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    ops_ = make_row_ops(DType::kBF16, kGpu);
    ops_->begin_step(1);
  }
  std::unique_ptr<RowOps> ops_;
};

/// Normal values, rounded as `dtype` holds them.
inline std::vector<float> random_values(int64_t count, DType dtype, uint32_t seed,
                                        float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = dtype == DType::kF32 ? normal(random) : to_float(to_bfloat16(normal(random)));
  }
  return values;
}

inline std::vector<float> download(const TensorView& view) {
  const auto count = static_cast<size_t>(view.num_elements());
  std::vector<float> values(count);
  if (view.dtype == DType::kF32) {
    copy_tensor(view, make_view(values.data(), DType::kF32, {view.num_elements()}), kGpu);
    return values;
  }
  std::vector<BFloat16> halves(count);
  copy_tensor(view, make_view(halves.data(), DType::kBF16, {view.num_elements()}), kGpu);
  std::transform(halves.begin(), halves.end(), values.begin(),
                 [](BFloat16 half) { return to_float(half); });
  return values;
}

inline Tensor upload(const std::vector<float>& values, DType dtype,
                     std::initializer_list<int64_t> shape) {
  Tensor tensor(dtype, shape, kGpu.device);
  const auto count = static_cast<int64_t>(values.size());
  std::vector<BFloat16> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), to_bfloat16);
  void* from = dtype == DType::kF32 ? static_cast<void*>(const_cast<float*>(values.data()))
                                    : static_cast<void*>(halves.data());
  copy_tensor(make_view(from, dtype, {count}), tensor.view(), kGpu);
  return tensor;
}

template <typename T>
Tensor upload_integers(const std::vector<T>& values) {
  const DType dtype = sizeof(T) == 4 ? DType::kI32 : DType::kI64;
  const auto count = static_cast<int64_t>(values.size());
  Tensor tensor(dtype, {count}, kGpu.device);
  copy_tensor(make_view(const_cast<T*>(values.data()), dtype, {count}), tensor.view(), kGpu);
  return tensor;
}

/// Rows on the GPU with eight elements of NaN after each.
class PaddedRows {
 public:
  PaddedRows(DType dtype, int64_t rows, int64_t dim, const std::vector<float>& values)
      : stride_(dim + kPadding) {
    std::vector<float> padded(static_cast<size_t>(rows * stride_), kNaN);
    for (size_t i = 0; i < values.size(); ++i) padded[offset(i, dim)] = values[i];
    memory_ = upload(padded, dtype, {rows, stride_});
    view_ = memory_.view();
    view_.shape[1] = dim;
  }
  /// Filled with NaN.
  PaddedRows(DType dtype, int64_t rows, int64_t dim) : PaddedRows(dtype, rows, dim, {}) {}

  const TensorView& view() const { return view_; }
  /// The rows; fails the test when something wrote between them.
  std::vector<float> values() const {
    const std::vector<float> padded = download(memory_.view());
    std::vector<float> values(static_cast<size_t>(view_.num_elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = padded[offset(i, view_.shape[1])];
    for (size_t i = 0; i < padded.size(); ++i) {
      if (static_cast<int64_t>(i) % stride_ < view_.shape[1]) continue;
      EXPECT_TRUE(std::isnan(padded[i])) << "written after a row, at " << i;
    }
    return values;
  }

 private:
  static constexpr int64_t kPadding = 8;
  size_t offset(size_t i, int64_t dim) const {
    return i / static_cast<size_t>(dim) * static_cast<size_t>(stride_) +
           i % static_cast<size_t>(dim);
  }
  int64_t stride_;
  Tensor memory_;
  TensorView view_;
};

}  // namespace fovea::test
