// The product of one row with a matrix, as decode has it, with what comes before and after it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fovea/ops/row_ops.h"

namespace fovea::cuda {

/// A norm in front of a product, see launch_norm(). The row times the norm's weights is rounded to
/// bf16, and the sums are multiplied by the norm's factor.
struct NormInFront {
  const float* weight = nullptr;  // null: no norm
  float eps = 0;
  int32_t layer = 0;
  int32_t* noted = nullptr;
};

struct RowProduct {
  enum class After {
    kStore,  // into out, bf16 or f32
    kAdd,    // onto out, f32
    kGate,  // the first half of the features are gates of the second, of which out gets what passes
    kQkv,   // bias and RoPE, into q and the pages; there may be no norms of heads
  };
  TensorView in = {};  // bf16 [1, in_features], f32 in front of a norm
  NormInFront norm = {};
  const PackedWeights* weights = nullptr;
  After after = After::kStore;
  TensorView out = {};
  GateFunction gate = GateFunction::kSilu;
  const QkvTask* qkv = nullptr;
};

/// Does it by up to `num_ctas` CTAs, weights bf16 or f8e4m3, and says whether it could: false when
/// the row is too long for shared memory, and for gates, q, k and v of weights in f8e4m3.
bool launch_row_product(const RowProduct& product, int num_ctas, cudaStream_t stream);

}  // namespace fovea::cuda
