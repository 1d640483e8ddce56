// Where the rows of K, V and of the means are, whether contiguous or paged.
#pragma once

#include <algorithm>

#include "fovea/attention/attention.h"

namespace fovea::cpu {

inline const std::byte* element_address(const TensorView& view, int64_t offset) {
  return view.as<const std::byte>() + offset * dtype_bytes(view.dtype);
}

/// Row of key t of sequence s and a KV head, in `view`, which is kv.k or kv.v.
inline const std::byte* key_row(const KvView& kv, const TensorView& view, int64_t s,
                                int64_t kv_head, int64_t t) {
  if (!kv.is_paged()) {
    return element_address(view,
                           (kv.kv_offsets[s] + t) * view.stride[0] + kv_head * view.stride[1]);
  }
  const int64_t page = kv.page_table[s * kv.page_table_stride + t / kv.page_size];
  return element_address(
      view, page * view.stride[0] + kv_head * view.stride[1] + t % kv.page_size * view.stride[2]);
}

/// Rows of keys [first, first + num), as key_row() of each.
inline void list_key_rows(const KvView& kv, const TensorView& view, int64_t s, int64_t kv_head,
                          int64_t first, int64_t num, const std::byte** rows) {
  const int64_t row_bytes =
      (kv.is_paged() ? view.stride[2] : view.stride[0]) * dtype_bytes(view.dtype);
  for (int64_t i = 0; i < num;) {
    const int64_t t = first + i;
    const std::byte* row = key_row(kv, view, s, kv_head, t);
    const int64_t left = num - i;
    const int64_t end = i + (kv.is_paged() ? std::min(left, kv.page_size - t % kv.page_size)
                                           : left);  // of the page
    for (; i < end; ++i, row += row_bytes) rows[i] = row;
  }
}

/// Row of the mean of block b of sequence s, in `view`, which is periphery.k_mean or v_mean.
inline const std::byte* mean_row(const AttentionParams& params, const TensorView& view, int64_t s,
                                 int64_t kv_head, int64_t b) {
  const KvView& kv = params.kv;
  const int64_t row = kv.is_paged() ? kv.page_table[s * kv.page_table_stride + b]
                                    : params.periphery.block_offsets[s] + b;
  return element_address(view, row * view.stride[0] + kv_head * view.stride[1]);
}

/// Where rows of params.q or params.out are: row i, counted over the whole batch, of q head h.
class RowAddress {
 public:
  explicit RowAddress(const TensorView& view)
      : first_(view.as<std::byte>()),
        row_bytes_(view.stride[0] * dtype_bytes(view.dtype)),
        head_bytes_(view.stride[1] * dtype_bytes(view.dtype)) {}
  std::byte* operator()(int64_t i, int64_t h) const {
    return first_ + i * row_bytes_ + h * head_bytes_;
  }

 private:
  std::byte* first_;
  int64_t row_bytes_, head_bytes_;
};
inline std::byte* q_row(const TensorView& view, int64_t i, int64_t h) {
  return RowAddress(view)(i, h);
}

/// Keys [begin, end) that a query at `position` may see, lists aside.
struct KeyRange {
  int32_t begin;
  int32_t end;
};
inline KeyRange visible_keys(const AttentionParams& params, int64_t position, int64_t kv_len) {
  int64_t end = params.causal ? position + 1 : kv_len;
  end = end < 0 ? 0 : (end > kv_len ? kv_len : end);
  int64_t begin = params.window_left >= 0 ? position - params.window_left : 0;
  begin = begin < 0 ? 0 : (begin > end ? end : begin);
  return {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

}  // namespace fovea::cpu
