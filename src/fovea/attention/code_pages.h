// Numbers out of pages of codes, f8e4m3 or i8, on the CPU: a code times its scale, as f32 or bf16.
// Exact but for scales that are no powers of two, whose products are rounded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fovea/attention/kv_view.h"

namespace fovea {

/// Where numbers go: rows of `dtype`, row_bytes apart.
struct CodeRows {
  DType dtype;
  std::byte* data;
  int64_t row_bytes;
};

/// K of tokens [first, first + count) of a page and a KV head, a row each.
void read_code_keys(const KvView& kv, int64_t page, int64_t kv_head, int64_t first, int64_t count,
                    const CodeRows& to);
/// The same of V.
void read_code_values(const KvView& kv, int64_t page, int64_t kv_head, int64_t first, int64_t count,
                      const CodeRows& to);

/// K and V of tokens [first, first + count) of a sequence and a KV head, whatever pages they lie
/// in: rows [count, head_dim] of `dtype` without gaps at `keys` and at `values`; either may be
/// null.
void read_code_rows(const KvView& kv, int64_t sequence, int64_t kv_head, int64_t first,
                    int64_t count, DType dtype, std::byte* keys, std::byte* values);

/// `kv_scale` is kv.k_scale or kv.v_scale.
float code_scale(const TensorView& kv_scale, int64_t page, int64_t kv_head);

}  // namespace fovea
