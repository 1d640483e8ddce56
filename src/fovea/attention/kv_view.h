// Keys and values of one layer, contiguous or in pages, and the ragged batch they belong to.
#pragma once

#include <cstdint>

#include "fovea/tensor/tensor.h"

namespace fovea {

/// Sequences of different lengths in one call. Pointers are to memory of the operation's device.
///
/// Sequence s owns query rows [q_offsets[s], q_offsets[s + 1]) and kv_lens[s] keys. Its query row i
/// sits at absolute position kv_lens[s] - q_len + i: queries are the last rows of what has been
/// written, which covers whole prompts, later chunks and decode (q_len 1) alike. Lengths of zero
/// are valid; where q_len exceeds kv_len the first positions are negative and, if causal, see
/// nothing (a selection refuses such sequences).
struct RaggedBatch {
  int64_t batch_size = 0;
  const int64_t* q_offsets = nullptr;  // [batch_size + 1], ascending, q_offsets[0] == 0
  const int64_t* kv_lens = nullptr;    // [batch_size]
};

/// Where token t of an f8e4m3 page of V lies in its row. Groups of 16 tokens are kept in the order
/// in which a thread holds the weights that it multiplies them with (ptx/wgmma.h): 0 1 8 9, 2 3 10
/// 11, 4 5 12 13, 6 7 14 15.
constexpr int64_t f8_value_slot(int64_t t) {
  return t / 16 * 16 + t % 8 / 2 * 4 + t % 16 / 8 * 2 + t % 2;
}

/// Types of K and V whose numbers are a code times a scale.
constexpr bool is_code(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kI8; }

/// K and V of one layer; f32, bf16, f8e4m3 or i8 on the CPU. The last stride must be 1.
///
/// Contiguous (page_size == 0): k, v are [total_kv, num_kv_heads, head_dim]; key t of sequence s is
/// row kv_offsets[s] + t. Paged: k, v are [num_pages, num_kv_heads, page_size, head_dim]; key t of
/// sequence s is row t % page_size of page page_table[s * page_table_stride + t / page_size].
///
/// f8e4m3 is paged, and its V is turned within each page, which is how the tensor cores want it:
/// [num_pages, num_kv_heads, head_dim, page_size], token t % page_size at f8_value_slot(). A code
/// times its scale is the number meant; quantize_kv.h writes both. i8, the CPU's alone, is laid out
/// in the same way; append_kv.h writes it.
struct KvView {
  TensorView k;
  TensorView v;
  const int64_t* kv_offsets = nullptr;  // [batch_size]; contiguous only
  const int32_t* page_table = nullptr;  // [batch_size, page_table_stride]; paged only
  int64_t page_table_stride = 0;        // pages that a row of the table can name
  int64_t page_size = 0;                // tokens per page; 0 means contiguous
  // Of codes only, optional (1): f32 [num_kv_heads], or [num_pages, num_kv_heads] for a scale of
  // each page; positive and finite.
  TensorView k_scale = {};
  TensorView v_scale = {};

  bool is_paged() const { return page_size > 0; }
  bool holds_codes() const { return is_code(k.dtype); }
  int64_t num_kv_heads() const { return k.shape[1]; }
  int64_t head_dim() const { return k.shape[is_paged() ? 3 : 2]; }
  int64_t num_pages() const { return is_paged() ? k.shape[0] : 0; }
};

}  // namespace fovea
