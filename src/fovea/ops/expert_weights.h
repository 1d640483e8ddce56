// The matrices of a mixture's experts.
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/base/context.h"
#include "fovea/ops/matmul.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// Matrices [out_features, in_features] of experts 0 ... num_experts - 1. On a GPU they lie one
/// after another, so that one launch multiplies with all.
class ExpertWeights {
 public:
  ExpertWeights() = default;
  /// Zeros. Throws as PackedWeights does, and kInvalidArgument unless num_experts is positive.
  ExpertWeights(DType dtype, int64_t num_experts, int64_t out_features, int64_t in_features,
                Device device = {});
  /// Matrices that are on a GPU already: bf16 [num_experts * out_features, in_features].
  ExpertWeights(int64_t num_experts, Tensor matrices);

  /// As PackedWeights::quantized(); an expert's out_features must be a multiple of 128 too.
  ExpertWeights quantized(const Context& context) const;

  /// Writes rows [first_row, first_row + num_rows) of one expert's matrix, as
  /// PackedWeights::set_rows().
  void set_rows(int64_t expert, int64_t first_row, int64_t num_rows, const float* rows);

  DType dtype() const { return parts_.empty() ? DType::kF32 : parts_.front().dtype(); }
  int64_t num_experts() const { return num_experts_; }
  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return parts_.empty() ? 0 : parts_.front().in_features(); }
  int64_t size_bytes() const;
  bool empty() const { return num_experts_ == 0; }
  Device device() const { return parts_.empty() ? Device{} : parts_.front().device(); }
  /// One expert's matrix, on the CPU only.
  const PackedWeights& expert(int64_t index) const;
  /// All of them, [num_experts * out_features, in_features], on a GPU only.
  const TensorView& view() const;
  /// As PackedWeights::scales(), of all of them.
  const TensorView& scales() const;

 private:
  int64_t num_experts_ = 0;
  int64_t out_features_ = 0;
  std::vector<PackedWeights> parts_;  // one an expert on the CPU, a single one on a GPU
};

}  // namespace fovea
