// Copies the tensors of a case to the GPU in 16-bit types or f8e4m3, poisons what must not be
// touched, and brings results back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fovea/attention/attention.h"
#include "tests/cases/attention_cases.h"

namespace fovea::cases {

/// Empty when tests can use a Hopper GPU, else the reason for GTEST_SKIP.
std::string why_no_gpu();

/// Bytes on the GPU.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(int64_t bytes);
  /// A copy of `count` elements at `data`; null stays null.
  template <typename T>
  static DeviceBuffer copy_of(const T* data, int64_t count) {
    if (data == nullptr) return {};
    DeviceBuffer buffer(count * static_cast<int64_t>(sizeof(T)));
    buffer.upload(data);
    return buffer;
  }
  void upload(const void* source);
  void download(void* destination) const;
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }

 private:
  std::shared_ptr<void> data_;
  int64_t bytes_ = 0;
};

/// Rounds every element of q, K, V and the means to `dtype`, so that a reference over `data` (f32)
/// and a kernel over its mirror see the same numbers.
void round_inputs(const AttentionData& data, DType dtype);

/// Empty when outputs agree: NaN and Inf positions, the norm over everything, then the norm of each
/// row of head_dim elements. A row's error is measured against that row: early rows are averages of
/// few values and far larger than late ones. Weights and results are rounded once each.
std::string row_difference(const std::vector<float>& actual, const std::vector<float>& expected,
                           int64_t head_dim, DType dtype);

/// Expects NaN and infinities where they should be, and every other lse within `tolerance` times
/// the greater of its size and one. Stops at the first that is not.
void expect_lse(const std::vector<float>& actual, const std::vector<float>& expected,
                double tolerance);

/// One call's tensors on the GPU, in a 16-bit type, or in f8e4m3 with results in bf16. Rows are
/// padded (16 bytes, and one head more, of NaN) where `is_padded`; a guard of poison lies around
/// every output.
class DeviceMirror {
 public:
  /// `host` is f32, or f8e4m3 where `dtype` is.
  DeviceMirror(const AttentionParams& host, DType dtype, bool is_padded);
  DeviceMirror(const AttentionData& data, DType dtype, bool is_padded)
      : DeviceMirror(data.params(), dtype, is_padded) {}

  const AttentionParams& params() const { return params_; }
  AttentionParams& params() { return params_; }
  static Context context();

  /// Runs the backend on poisoned outputs and fetches them.
  void run(const AttentionBackend& backend);
  /// The same with a call, or several, of the caller's own.
  void run(const std::function<void()>& launch);
  /// Output and lse as floats in the order of their views; after run().
  const std::vector<float>& out() const { return out_values_; }
  const std::vector<float>& lse() const { return lse_values_; }
  /// Whether padding and guards of the outputs still hold the poison.
  bool is_untouched() const { return is_untouched_; }

 private:
  struct Layout {
    TensorView view;  // on the device
    int64_t start = 0;
    int64_t num_elements = 0;
  };
  Layout layout_like(const TensorView& host, DType dtype) const;
  TensorView mirror_input(const TensorView& host);
  TensorView mirror_floats(const TensorView& host);

  DType dtype_;
  DType out_dtype_;
  bool is_padded_;
  AttentionParams params_;
  BlockSelectionView selection_;
  std::vector<DeviceBuffer> buffers_;
  Layout out_layout_, lse_layout_;
  DeviceBuffer out_buffer_, lse_buffer_;
  std::vector<float> out_values_, lse_values_;
  bool is_untouched_ = false;
};

}  // namespace fovea::cases
