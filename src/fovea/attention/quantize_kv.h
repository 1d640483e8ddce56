// Keys, values and queries as f8e4m3: what attention in that type reads.
#pragma once

#include <cstdint>

#include "fovea/attention/kv_view.h"
#include "fovea/base/context.h"
#include "fovea/tensor/float8.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// Writes tokens [first_page * to.page_size, kv_len) of sequence `seq` as f8e4m3 pages (see
/// KvView), which are to.page_table[seq][first_page ...]. Rows of the last page past kv_len become
/// zeros; when the sequence has grown, that page is written anew.
///
/// `from` is f32 or bf16, contiguous or in pages of any size. A scale for each page is written: the
/// page's largest finite magnitude becomes 448. One for each head, or none (1), is used as it is,
/// and what it leaves beyond 448 saturates. NaN stays NaN, Inf becomes +-448.
/// Throws kInvalidArgument on shapes that do not fit.
void quantize_kv(const KvView& from, const KvView& to, int64_t seq, int64_t first_page,
                 int64_t kv_len, const Context& context);

/// Writes [rows, heads, head_dim], f32 or bf16, as f8e4m3 codes of the number over its head's
/// scale, f32 [heads]; none means 1. Saturates. Throws kInvalidArgument as above.
void quantize_q(const TensorView& from, const TensorView& scale, const TensorView& to,
                const Context& context);

/// A page's scale, from the largest finite magnitude in it.
constexpr float f8_page_scale(float largest) {
  constexpr float kSmallest = 0x1p-100f;  // a scale must stay positive and normal
  if (largest == 0) return 1;
  return largest / kMaxFloat8E4M3 > kSmallest ? largest / kMaxFloat8E4M3 : kSmallest;
}

/// Throws kInvalidArgument unless K, V and their scales have the form of codes that KvView says.
void check_code_pages(const KvView& kv);

/// What both devices check; `dtype_ok`: the device reads the type of `from`.
void check_quantize_kv(const KvView& from, const KvView& to, int64_t seq, int64_t first_page,
                       int64_t kv_len, bool dtype_ok);
void check_quantize_q(const TensorView& from, const TensorView& scale, const TensorView& to,
                      bool dtype_ok);

}  // namespace fovea
