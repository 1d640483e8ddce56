// Parts of views, and views in other shapes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fovea/tensor/tensor.h"

namespace fovea {

/// Rows [first, first + count) of [rows, ...].
inline TensorView rows_of(const TensorView& view, int64_t first, int64_t count) {
  TensorView part = view;
  part.data = view.as<std::byte>() + first * view.stride[0] * dtype_bytes(view.dtype);
  part.shape[0] = count;
  return part;
}

/// Heads [first, first + count) of [rows, width], as [rows, count, head_dim].
inline TensorView heads_of(const TensorView& view, int64_t first, int64_t count, int64_t head_dim) {
  TensorView part = view;
  part.data = view.as<std::byte>() + first * head_dim * dtype_bytes(view.dtype);
  part.rank = 3;
  part.shape = {view.shape[0], count, head_dim};
  part.stride = {view.stride[0], head_dim, 1};
  return part;
}

/// A dense [rows, heads, head_dim] as [rows, heads * head_dim].
inline TensorView flat(const TensorView& view) {
  return make_view(view.data, view.dtype, {view.shape[0], view.shape[1] * view.shape[2]},
                   view.device);
}

}  // namespace fovea
