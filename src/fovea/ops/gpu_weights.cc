// What PackedWeights is on a GPU.
#include <algorithm>
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/ops/matmul.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/slices.h"
#ifdef FOVEA_WITH_CUDA
#include "fovea/ops/cuda/quantize_weights.h"
#endif

namespace fovea {

PackedWeights::PackedWeights(Tensor matrix) : memory_(std::move(matrix)) {
  const TensorView& view = memory_.view();
  check_argument(view.rank == 2 && view.device.type != DeviceType::kCpu,
                 "matrix must be a GPU's of rank 2, got {}", view.describe());
  check_argument(view.dtype == DType::kBF16, "matrix must be bf16, got {}", view.describe());
  dtype_ = view.dtype;
  out_features_ = view.shape[0];
  in_features_ = view.shape[1];
  packed_weight_bytes(dtype_, out_features_, in_features_, view.device);  // for its checks
}

const TensorView& PackedWeights::view() const {
  check_argument(device().type != DeviceType::kCpu, "a packed matrix of the CPU has no view");
  return memory_.view();
}

void PackedWeights::set_gpu_rows(int64_t first_row, int64_t num_rows, const float* rows) {
  check_argument(dtype_ == DType::kBF16, "rows can be set in bf16 only, got {}",
                 dtype_name(dtype_));
  const int64_t count = num_rows * in_features_;
  std::vector<BFloat16> rounded(static_cast<size_t>(count));
  std::transform(rows, rows + count, rounded.begin(), to_bfloat16);
  copy_tensor(make_view(rounded.data(), DType::kBF16, {num_rows, in_features_}),
              rows_of(memory_.view(), first_row, num_rows), {.device = device()});
}

PackedWeights PackedWeights::quantized([[maybe_unused]] const Context& context) const {
  check_argument(device().type != DeviceType::kCpu && dtype_ == DType::kBF16,
                 "only a GPU's bf16 matrices can be made f8e4m3");
  packed_weight_bytes(DType::kF8E4M3, out_features_, in_features_, device());  // for its checks
  PackedWeights result;
  result.dtype_ = DType::kF8E4M3;
  result.out_features_ = out_features_;
  result.in_features_ = in_features_;
#ifdef FOVEA_WITH_CUDA
  check_argument(context.device == device(), "a matrix on GPU {} must be quantised there",
                 device().index);
  result.memory_ = Tensor(DType::kF8E4M3, {out_features_, in_features_}, device());
  result.scales_ = Tensor(DType::kF32, {out_features_ / 128, in_features_ / 128}, device());
  cuda::quantize_matrix(memory_.view(), result.memory_.view(), result.scales_.view(), context);
#endif
  return result;
}

}  // namespace fovea
