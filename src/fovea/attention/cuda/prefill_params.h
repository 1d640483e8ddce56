// What the prefill kernel gets beside its tensor maps. Plain data; strides in elements.
#pragma once

#include <cstdint>

#include "fovea/attention/cuda/prefill_tiles.h"

namespace fovea::cuda {

/// A query tile that exists: filled on the device, because lengths live there.
struct QTile {
  int32_t seq = 0;
  int32_t q_tile = 0;  // absolute, see prefill_tiles.h
};

/// Workspace of one launch. The plan kernel writes it, the prefill kernel reads it.
struct PrefillPlan {
  int32_t* num_tiles = nullptr;
  int32_t* next_work = nullptr;  // hands out (tile, head) pairs beyond the first of each CTA
  QTile* tiles = nullptr;        // longest first
};

/// Scales of K or V, one of each KV head, in f8e4m3.
struct F8Scale {
  const float* values = nullptr;  // null: 1
  int64_t page_stride = 0;        // 0: all pages have the same

#ifdef __CUDACC__
  __device__ float at(int page, int kv_head) const {
    return values != nullptr ? values[page * page_stride + kv_head] : 1.f;
  }
#endif
};

struct PrefillParams {
  PrefillPlan plan;

  // Batch, see RaggedBatch and KvView.
  const int64_t* q_offsets = nullptr;
  const int64_t* kv_lens = nullptr;
  const int64_t* kv_offsets = nullptr;  // contiguous
  const int32_t* page_table = nullptr;  // paged
  int64_t page_table_stride = 0;
  int32_t page_size = 0;       // 0: contiguous
  int32_t tiles_per_page = 0;  // f8e4m3 only
  int32_t num_pages = 0;
  int32_t max_keys = 0;  // of a sequence: what a row of the table can name, or rows of K
  int32_t box_rows = 0;  // rows of one TMA box of K and V

  int32_t batch_size = 0;
  int32_t num_q_heads = 0;
  int32_t group_size = 1;
  int32_t window_left = -1;
  bool causal = true;
  float scale_log2 = 0;  // softmax_scale * log2(e)

  // f8e4m3 only.
  const float* q_scale = nullptr;  // [num_q_heads]; null: 1
  F8Scale k_scale;
  F8Scale v_scale;

  void* out = nullptr;
  int64_t out_row_stride = 0;
  int64_t out_head_stride = 0;
  float* lse = nullptr;  // may be null
  int64_t lse_head_stride = 0;
  int64_t lse_row_stride = 0;
  const float* sinks = nullptr;  // may be null
  int64_t sinks_stride = 0;

  // Split KV (decode) only, see split_kv.h.
  // [total_q + 1]: KV tiles, or chunks, of the q rows before, per KV head; null for a single row
  const int32_t* tile_offsets = nullptr;
  int32_t chunk_tiles = 0;       // KV tiles of a chunk; 0: no chunks
  float* partial_out = nullptr;  // [pieces, group_size, head_dim]
  float* partial_lse = nullptr;  // [pieces, group_size]
  int32_t total_q = 0;

  // Selection; begin == nullptr means dense.
  const int64_t* q_block_offsets = nullptr;
  const int64_t* list_begin = nullptr;
  const int32_t* list_len = nullptr;
  const int32_t* list_blocks = nullptr;
  int64_t num_q_blocks = 0;
  int32_t block_size = 0;
  int32_t tiles_per_block = 0;

  // Periphery: packed means, see periphery.h; max_means == 0 means none.
  int32_t max_means = 0;  // of one sequence and KV head, a multiple of a KV tile's rows
  // A mean's weight as a logit: log(block_size) / softmax_scale. f8e4m3: log2(block_size).
  float mean_bias = 0;
  F8Scale k_mean_scale;  // f8e4m3 only: of the pages that means are packed into
  F8Scale v_mean_scale;
};

/// A sequence of the batch. Lengths are read on the device and cannot be refused there: one beyond
/// the page table is cut to it, so that nothing reads past it.
FOVEA_HOST_DEVICE SequenceShape sequence_shape(const PrefillParams& params, int seq) {
  SequenceShape shape;
  shape.q_len = static_cast<int>(params.q_offsets[seq + 1] - params.q_offsets[seq]);
  const int64_t kv_len = params.kv_lens[seq];
  shape.kv_len = kv_len < params.max_keys ? static_cast<int>(kv_len) : params.max_keys;
  shape.causal = params.causal;
  shape.window_left = params.window_left;
  return shape;
}

}  // namespace fovea::cuda
