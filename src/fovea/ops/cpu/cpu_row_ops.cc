#include "fovea/ops/cpu/cpu_row_ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "fovea/base/checked_math.h"
#include "fovea/ops/elementwise.h"
#include "fovea/ops/rms_norm.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/device_memory.h"
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

/// The experts of one row, the likeliest first, and their weights.
struct Route {
  std::vector<int64_t> experts;
  std::vector<float> weights;
};

Route route_row(const float* logits, int64_t num_experts, int64_t top_k, bool normalise) {
  Route route;
  route.experts.resize(static_cast<size_t>(num_experts));
  std::iota(route.experts.begin(), route.experts.end(), 0);
  std::partial_sort(
      route.experts.begin(), route.experts.begin() + top_k, route.experts.end(),
      [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  const float largest = logits[route.experts[0]];
  const auto sum_first = [&](int64_t count) {
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      sum += std::exp(logits[route.experts[static_cast<size_t>(i)]] - largest);
    }
    return sum;
  };
  const float sum = sum_first(normalise ? top_k : num_experts);
  route.experts.resize(static_cast<size_t>(top_k));
  for (const int64_t expert : route.experts) {
    route.weights.push_back(std::exp(logits[expert] - largest) / sum);
  }
  return route;
}

}  // namespace

/// Buffers of kSlabRows rows.
struct CpuRowOps::MoeScratch {
  MoeScratch(const MoeTask& task, int64_t rows)
      : dim(task.router->in_features()),
        expert_dim(task.down->in_features()),
        logits(DType::kF32, {rows, task.router->out_features()}),
        gathered(task.normed.dtype, {rows, dim}),
        gate_up(DType::kF32, {rows, 2 * expert_dim}),
        activated(task.normed.dtype, {rows, expert_dim}),
        out(DType::kF32, {rows, dim}) {}
  int64_t dim, expert_dim;
  Tensor logits, gathered, gate_up, activated, out;
};

CpuRowOps::CpuRowOps(const Context& context) : context_(context) {}
CpuRowOps::~CpuRowOps() = default;

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

void CpuRowOps::add_bias(const TensorView& bias, const TensorView& rows) {
  fovea::add_bias(bias, rows);
}

void CpuRowOps::finish_qkv(const QkvTask& task) {
  check_argument(task.stats == nullptr, "stats must be null: has_page_stats() says so on a CPU");
  const int64_t num_q_heads = task.q.shape[1];
  const int64_t head_dim = task.q.shape[2];
  const int64_t num_kv_heads = task.k.shape[1];
  const int64_t page_size = task.k.shape[2];
  if (!task.bias.empty()) fovea::add_bias(task.bias, task.qkv);
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

/// Expert after expert, each on the rows that chose it: every row adds its experts in the order of
/// their numbers, whatever rows came with it.
void CpuRowOps::moe(const MoeTask& task) {
  check_moe(task);
  const int64_t rows = task.normed.shape[0];
  const int64_t num_experts = task.router->out_features();
  if (rows == 0) return;
  if (moe_ == nullptr || moe_->dim != task.router->in_features() ||
      moe_->expert_dim != task.down->in_features() || moe_->logits.view().shape[1] != num_experts) {
    moe_ = std::make_unique<MoeScratch>(task, kSlabRows);
  }
  const TensorView logits = rows_of(moe_->logits.view(), 0, rows);
  matmul(task.normed, *task.router, logits);
  if (!task.router_bias.empty()) fovea::add_bias(task.router_bias, logits);
  struct Choice {
    int64_t row;
    float weight;
  };
  std::vector<std::vector<Choice>> choices(static_cast<size_t>(num_experts));
  for (int64_t row = 0; row < rows; ++row) {
    const Route route = route_row(moe_->logits.as<float>() + row * num_experts, num_experts,
                                  task.top_k, task.normalise);
    for (size_t i = 0; i < route.experts.size(); ++i) {
      choices[static_cast<size_t>(route.experts[i])].push_back({row, route.weights[i]});
    }
  }
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const std::vector<Choice>& chosen = choices[static_cast<size_t>(expert)];
    const auto count = static_cast<int64_t>(chosen.size());
    if (count == 0) continue;
    const TensorView gathered = rows_of(moe_->gathered.view(), 0, count);
    const TensorView gate_up = rows_of(moe_->gate_up.view(), 0, count);
    const TensorView activated = rows_of(moe_->activated.view(), 0, count);
    const TensorView out = rows_of(moe_->out.view(), 0, count);
    for (int64_t i = 0; i < count; ++i) {
      copy_tensor(rows_of(task.normed, chosen[static_cast<size_t>(i)].row, 1),
                  rows_of(gathered, i, 1), context_);
    }
    const auto add_own_bias = [&](const TensorView& of_all, const TensorView& to) {
      if (of_all.empty()) return;
      const int64_t size = of_all.shape[1];
      fovea::add_bias(make_view(of_all.as<float>() + expert * size, DType::kF32, {size}), to);
    };
    matmul(gathered, task.gate_up->expert(expert), gate_up);
    add_own_bias(task.gate_up_bias, gate_up);
    gated_activation(task.function, gate_up, activated);
    matmul(activated, task.down->expert(expert), out);
    add_own_bias(task.down_bias, out);
    for (int64_t i = 0; i < count; ++i) {
      const auto [row, weight] = chosen[static_cast<size_t>(i)];
      float* sum = task.residual.as<float>() + row * task.residual.stride[0];
      const float* terms = out.as<float>() + i * moe_->dim;
      for (int64_t column = 0; column < moe_->dim; ++column) sum[column] += weight * terms[column];
    }
  }
}

void CpuRowOps::draw(const TensorView& logits, const Draw* draw, int32_t* token) {
  const auto vocab_size = static_cast<size_t>(logits.shape[1]);
  *token = draw_token({logits.as<const float>(), vocab_size}, *draw, draw_scratch_);
}

}  // namespace fovea
