// Decode of one or very few rows: many CTAs a row, none of which loads more than it reads.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "fovea/attention/cuda/prefill_params.h"
#include "fovea/base/dtype.h"

namespace fovea::cuda {

/// How the copy engine sees K and V: boxes of a tile's keys, 128 bytes wide, and of turned V all
/// columns.
struct DecodeMaps {
  CUtensorMap k;
  CUtensorMap v;
};

/// K or V of a single row that joins its f8e4m3 page: a bf16 row of each KV head, and the pages.
/// Strides in elements; a row of turned V is a column.
struct NewRow {
  const void* from = nullptr;  // null: none
  int64_t from_head_stride = 0;
  void* pages = nullptr;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

struct DecodeParams {
  /// batch, heads, out, lse, sinks and pieces as of split KV; piece number = (row, KV head) *
  /// max_splits + split.
  PrefillParams common;
  const void* q = nullptr;
  bool q_is_f8 = false;  // where K and V are: else bf16
  int64_t q_row_stride = 0;
  int64_t q_head_stride = 0;
  NewRow new_k, new_v;                // f8e4m3 with a scale for each page only
  int max_splits = 1;                 // of a row with one KV head
  bool only_last_key_is_new = false;  // see AttentionParams
};

constexpr int64_t kMaxDecodeGroup = 16;  // q heads of a KV head

/// Keys that a warp takes at once. Page sizes are multiples of it.
constexpr int32_t decode_tile_keys(DType kv_dtype) { return kv_dtype == DType::kF8E4M3 ? 32 : 16; }
/// Of a box of turned V.
constexpr int32_t kDecodeTurnedRowBytes = 32;

/// K and V in bf16 or f16 with head_dim 64 or 128, or in f8e4m3 with 128. Rows of q are aligned to
/// 16 bytes.
void launch_decode(const DecodeParams& params, const DecodeMaps& maps, DType kv_dtype, int head_dim,
                   cudaStream_t stream);

}  // namespace fovea::cuda
