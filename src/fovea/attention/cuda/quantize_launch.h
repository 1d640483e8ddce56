// Launchers of the kernels that write f8e4m3.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fovea::cuda {

/// K or V, 16 bits wide, and the codes it becomes. Strides in elements.
struct QuantizeSide {
  const void* from = nullptr;
  int64_t from_page_stride = 0;  // 0: contiguous
  int64_t from_head_stride = 0;
  int64_t from_row_stride = 0;
  uint8_t* to = nullptr;
  int64_t to_strides[3] = {};     // page, head, row
  float* scale = nullptr;         // null: 1
  int64_t scale_page_stride = 0;  // 0: one for each head, which is read; else written
};

struct QuantizeKvParams {
  QuantizeSide k;
  QuantizeSide v;
  const int32_t* from_page_table = nullptr;  // of the sequence; null: contiguous
  int32_t from_page_size = 0;
  const int64_t* from_offset = nullptr;  // contiguous: row of the sequence's key 0
  const int64_t* position = nullptr;     // contiguous, appending: the key that is row 0
  const int32_t* to_page_table = nullptr;
  int32_t page_size = 0;
  int32_t head_dim = 0;
  int32_t first_page = 0;          // not where appending
  int32_t kv_len = 0;              // where appending: rows
  bool only_rows_are_new = false;  // see AppendKvTask
};

/// Means of blocks, each side's `from` with a page of one row for each: what a page of K or V is
/// made of. `kv.page_size` means of a sequence and KV head become page number
/// s * tiles_per_sequence + tile.
struct QuantizeMeansParams {
  QuantizeKvParams kv;
  int64_t from_page_table_stride = 0;
  const int64_t* kv_lens = nullptr;
  int32_t max_keys = 0;  // of a sequence: what lies beyond is not read
  int32_t block_size = 0;
  int32_t tiles_per_sequence = 0;
  int32_t batch_size = 0;
};

struct QuantizeQParams {
  const void* from = nullptr;
  uint8_t* to = nullptr;
  const float* scale = nullptr;  // [heads]; null: 1
  int64_t from_strides[2] = {};  // row, head
  int64_t to_strides[2] = {};
  int64_t rows = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;
};

void launch_quantize_kv(const QuantizeKvParams& params, bool is_bf16, int num_pages,
                        int num_kv_heads, cudaStream_t stream);
void launch_quantize_means(const QuantizeMeansParams& params, int num_kv_heads,
                           cudaStream_t stream);
/// Appends rows, see append_kv(); pages have scales of their own.
void launch_append_kv(const QuantizeKvParams& params, bool is_bf16, int num_kv_heads,
                      cudaStream_t stream);
void launch_quantize_q(const QuantizeQParams& params, bool is_bf16, cudaStream_t stream);

}  // namespace fovea::cuda
