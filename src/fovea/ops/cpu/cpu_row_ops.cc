#include "fovea/ops/cpu/cpu_row_ops.h"

#include <algorithm>

#include "fovea/base/checked_math.h"
#include "fovea/ops/elementwise.h"
#include "fovea/ops/rms_norm.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/slices.h"

namespace fovea {
namespace {

/// Slots [first_slot, first_slot + count) of a page of [pages, heads, slots, head_dim], as
/// [count, heads, head_dim].
TensorView page_slots(const TensorView& pages, int32_t page, int64_t first_slot, int64_t count) {
  TensorView part = pages;
  part.data = pages.as<std::byte>() +
              (page * pages.stride[0] + first_slot * pages.stride[2]) * dtype_bytes(pages.dtype);
  part.rank = 3;
  part.shape = {count, pages.shape[1], pages.shape[3]};
  part.stride = {pages.stride[2], pages.stride[1], 1};
  return part;
}

}  // namespace

void CpuRowOps::begin_step(int64_t num_rows) {
  is_single_row_ = num_rows == 1;
  non_finite_layer_ = -1;
}

void CpuRowOps::embed(const int32_t* tokens, const TensorView& table, float scale,
                      const TensorView& out) {
  const int64_t dim = table.shape[1];
  check_argument(out.dtype == DType::kF32 && out.shape[1] == dim,
                 "out must be f32 with rows of {}, got {}", dim, out.describe());
  for (int64_t row = 0; row < out.shape[0]; ++row) {
    const int64_t token = tokens[row];
    check_argument(token >= 0 && token < table.shape[0], "token {} is not in a table of {}", token,
                   table.shape[0]);
    float* to = out.as<float>() + row * out.stride[0];
    if (table.dtype == DType::kF32) {
      const float* from = table.as<float>() + token * table.stride[0];
      for (int64_t i = 0; i < dim; ++i) to[i] = scale * from[i];
    } else {
      const BFloat16* from = table.as<BFloat16>() + token * table.stride[0];
      for (int64_t i = 0; i < dim; ++i) to[i] = scale * to_float(from[i]);
    }
  }
}

void CpuRowOps::norm(const TensorView& x, const TensorView& weight, float eps, int64_t layer,
                     const TensorView& out) {
  if (!rms_norm(x, weight, eps, out) && non_finite_layer_ < 0) non_finite_layer_ = layer;
}

void CpuRowOps::matmul(const TensorView& in, const PackedWeights& weights, const TensorView& out) {
  if (is_single_row_) {
    matmul_row(make_view(in.data, in.dtype, {in.shape[1]}), weights,
               make_view(out.data, out.dtype, {out.shape[1]}), context_);
  } else {
    matmul_slab(in, weights, out, scratch_);
  }
}

void CpuRowOps::matmul_add(const TensorView& in, const PackedWeights& weights,
                           const TensorView& residual) {
  const int64_t rows = in.shape[0];
  const int64_t dim = weights.out_features();
  const int64_t padded_rows = padded_slab_rows(rows);
  if (product_.size_bytes() < padded_rows * dim * dtype_bytes(DType::kF32)) {
    product_ = Tensor(DType::kF32, {padded_rows, dim});
  }
  const TensorView product = make_view(product_.view().data, DType::kF32, {rows, dim});
  matmul(in, weights, product);
  add_rows(product, residual);
}

void CpuRowOps::finish_qkv(const QkvTask& task) {
  const int64_t num_q_heads = task.q.shape[1];
  const int64_t head_dim = task.q.shape[2];
  const int64_t num_kv_heads = task.k.shape[1];
  const int64_t page_size = task.k.shape[2];
  if (!task.bias.empty()) add_bias(task.bias, task.qkv);
  const TensorView q = heads_of(task.qkv, 0, num_q_heads, head_dim);
  const TensorView k = heads_of(task.qkv, num_q_heads, num_kv_heads, head_dim);
  const TensorView v = heads_of(task.qkv, num_q_heads + num_kv_heads, num_kv_heads, head_dim);
  if (!task.q_norm.empty()) rms_norm(q, task.q_norm, task.eps, q);
  if (!task.k_norm.empty()) rms_norm(k, task.k_norm, task.eps, k);
  rope(q, *task.table, task.first_row, task.q);

  const int64_t num_rows = task.qkv.shape[0];
  for (int64_t row = 0; row < num_rows;) {  // what falls into one page
    const int64_t position = *task.position + task.first_row + row;
    const int32_t page = task.page_table[position / page_size];
    const int64_t slot = position % page_size;
    const int64_t count = std::min(page_size - slot, num_rows - row);
    rope(rows_of(k, row, count), *task.table, task.first_row + row,
         page_slots(task.k, page, slot, count));
    convert_rows(rows_of(v, row, count), page_slots(task.v, page, slot, count));
    row += count;
  }
}

void CpuRowOps::activate(GateFunction function, const TensorView& gate_up, const TensorView& out) {
  gated_activation(function, gate_up, out);
}

void CpuRowOps::add_normed(const TensorView& x, const TensorView& weight, float eps,
                           const TensorView& residual) {
  rms_norm(x, weight, eps, x);
  add_rows(x, residual);
}

}  // namespace fovea
