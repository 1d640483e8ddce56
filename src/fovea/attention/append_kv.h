// A cache of keys and values in codes that grows row by row.
#pragma once

#include <bit>
#include <cstdint>

#include "fovea/attention/kv_view.h"
#include "fovea/attention/quantize_kv.h"
#include "fovea/base/context.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// The least power of two, as a scale, under which the largest magnitude of a page does not
/// saturate. What was rounded under it needs no second rounding when the page grows and the scale
/// with it, except for subnormals; and a code times it is exact in bf16.
constexpr float f8_growing_scale(float largest) {
  const auto bits = std::bit_cast<uint32_t>(f8_page_scale(largest));
  return std::bit_cast<float>((bits + 0x7fffffu) & 0x7f800000u);
}

/// The same for i8, whose largest code is 127.
constexpr float i8_growing_scale(float largest) {
  constexpr float kSmallest = 0x1p-100f;  // a scale must stay positive and normal
  const auto bits = std::bit_cast<uint32_t>(largest / 127 > kSmallest ? largest / 127 : kSmallest);
  return std::bit_cast<float>((bits + 0x7fffffu) & 0x7f800000u);
}

/// Rows that follow what the pages of a sequence hold.
struct AppendKvTask {
  TensorView k, v;  // [rows, num_kv_heads, head_dim], f32 or bf16, any strides but the last: 1
  /// Of the first row; memory of the device, as is the page table. Tokens before it are in the
  /// pages.
  const int64_t* position = nullptr;
  /// Where to: f8e4m3 or i8 (see KvView) with a scale for each page and head; on a GPU f8e4m3, in
  /// pages of a multiple of 128 tokens.
  KvView to;
  /// The caller's word that all but k and v was written by work that had ended when the last kernel
  /// in front of this call in its stream began. A GPU then reads it while that kernel runs.
  bool only_rows_are_new = false;
};

/// Rounds the rows to codes and writes them with their scales; tokens that a page held are kept,
/// under a new scale where the old one has become too small. Inf becomes the largest code times the
/// scale. NaN stays NaN; as i8, which has none, it becomes the scale of its page and head. Throws
/// kInvalidArgument on shapes that do not fit.
void append_kv(const AppendKvTask& task, const Context& context);

/// Queries for keys of f8e4m3: `to` is f8e4m3 on a GPU, of the type of `from` on the CPU. No scale:
/// what is beyond 448 saturates. Throws kInvalidArgument on shapes that do not fit.
void round_queries(const TensorView& from, const TensorView& to, const Context& context);

}  // namespace fovea
