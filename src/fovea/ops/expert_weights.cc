#include "fovea/ops/expert_weights.h"

#include <utility>

#include "fovea/base/checked_math.h"

namespace fovea {

ExpertWeights::ExpertWeights(DType dtype, int64_t num_experts, int64_t out_features,
                             int64_t in_features, Device device)
    : num_experts_(num_experts), out_features_(out_features) {
  check_argument(num_experts > 0, "num_experts must be positive, got {}", num_experts);
  if (device.type != DeviceType::kCpu) {
    parts_.emplace_back(dtype, checked_mul(num_experts, out_features, "experts' rows"), in_features,
                        device);
    return;
  }
  for (int64_t i = 0; i < num_experts; ++i) parts_.emplace_back(dtype, out_features, in_features);
}

ExpertWeights::ExpertWeights(int64_t num_experts, Tensor matrices) : num_experts_(num_experts) {
  parts_.emplace_back(std::move(matrices));
  const int64_t rows = parts_.front().out_features();
  check_argument(num_experts > 0 && rows % num_experts == 0,
                 "{} rows cannot be the matrices of {} experts", rows, num_experts);
  out_features_ = rows / num_experts;
}

void ExpertWeights::set_rows(int64_t expert, int64_t first_row, int64_t num_rows,
                             const float* rows) {
  check_argument(expert >= 0 && expert < num_experts_, "expert {} is not one of {}", expert,
                 num_experts_);
  check_argument(first_row >= 0 && num_rows >= 0 && first_row <= out_features_ - num_rows,
                 "rows [{}, {} + {}) must lie in [0, {})", first_row, first_row, num_rows,
                 out_features_);
  if (device().type == DeviceType::kCpu) {
    parts_[static_cast<size_t>(expert)].set_rows(first_row, num_rows, rows);
  } else {
    parts_.front().set_rows(expert * out_features_ + first_row, num_rows, rows);
  }
}

int64_t ExpertWeights::size_bytes() const {
  int64_t bytes = 0;
  for (const PackedWeights& part : parts_) bytes += part.size_bytes();
  return bytes;
}

const PackedWeights& ExpertWeights::expert(int64_t index) const {
  check_argument(device().type == DeviceType::kCpu, "a GPU's experts have no matrix of their own");
  check_argument(index >= 0 && index < num_experts_, "expert {} is not one of {}", index,
                 num_experts_);
  return parts_[static_cast<size_t>(index)];
}

const TensorView& ExpertWeights::view() const {
  check_argument(!empty(), "there are no experts");
  return parts_.front().view();
}

const TensorView& ExpertWeights::scales() const {
  check_argument(!empty(), "there are no experts");
  return parts_.front().scales();
}

ExpertWeights ExpertWeights::quantized(const Context& context) const {
  check_argument(device().type != DeviceType::kCpu, "only a GPU's experts can be f8e4m3");
  check_argument(out_features_ % 128 == 0, "out_features must be a multiple of 128, got {}",
                 out_features_);
  ExpertWeights result;
  result.num_experts_ = num_experts_;
  result.out_features_ = out_features_;
  result.parts_.push_back(parts_.front().quantized(context));
  return result;
}

}  // namespace fovea
