// Decode of one or very few rows: many CTAs a row, none of which loads more than it reads.
#pragma once

#include <cuda_runtime_api.h>

#include "fovea/attention/cuda/prefill_params.h"
#include "fovea/base/dtype.h"

namespace fovea::cuda {

/// K or V; strides in elements.
struct DecodeSide {
  const void* data = nullptr;
  int64_t page_stride = 0;  // 0: contiguous
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

struct DecodeParams {
  /// batch, heads, out, lse, sinks and pieces as of split KV; piece number = (row, KV head) *
  /// max_splits + split.
  PrefillParams common;
  const void* q = nullptr;
  int64_t q_row_stride = 0;
  int64_t q_head_stride = 0;
  DecodeSide k, v;
  int max_splits = 1;                 // of a row with one KV head
  bool only_last_key_is_new = false;  // see AttentionParams
};

constexpr int64_t kMaxDecodeGroup = 16;  // q heads of a KV head
constexpr int64_t kDecodeTileKeys = 16;  // that a warp takes at once

/// bf16 or f16, head_dim 64 or 128, pages of a multiple of kDecodeTileKeys. Rows of q, K and V are
/// aligned to 16 bytes.
void launch_decode(const DecodeParams& params, DType dtype, int head_dim, cudaStream_t stream);

}  // namespace fovea::cuda
