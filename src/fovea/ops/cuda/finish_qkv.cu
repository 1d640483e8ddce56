// From the product with q, k and v to attention in one pass: one CTA per row, a few lanes per head,
// each with the same columns of both halves of a head, so that RoPE needs no neighbour.
#include <algorithm>

#include "fovea/ops/cuda/qkv_params.cuh"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {
namespace {

constexpr int kMaxThreads = 256;

struct FinishParams {
  QkvParams to;
  const __nv_bfloat16* qkv;
  int64_t qkv_stride;
  const float *q_norm, *k_norm;  // null: none
  float eps;
  int num_heads;       // of the row, from the first q head on
  int lanes_per_head;  // a power of two
};

template <int kCount>
__global__ __launch_bounds__(kMaxThreads) void finish_qkv_kernel(const FinishParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const int64_t row = blockIdx.x;
  const QkvParams& to = p.to;
  const QkvRow places(to, row);
  const int thread = static_cast<int>(threadIdx.x);
  const int half = to.head_dim / 2;
  const int column = thread % p.lanes_per_head * kCount;
  const bool has_column = column < half;
  Floats<kCount> cos = {}, sin = {};
  if (has_column) {
    cos = load<kCount>(to.cos + row * half + column);
    sin = load<kCount>(to.sin + row * half + column);
  }

  const int heads_at_once = static_cast<int>(blockDim.x) / p.lanes_per_head;
  for (int first = 0; first < p.num_heads; first += heads_at_once) {
    const int head = first + thread / p.lanes_per_head;
    const bool is_active = has_column && head < p.num_heads;
    const int at = head * to.head_dim + column;
    Floats<kCount> low = {}, high = {};
    if (is_active) {
      low = load<kCount>(p.qkv + row * p.qkv_stride + at);
      high = load<kCount>(p.qkv + row * p.qkv_stride + at + half);
      if (to.bias != nullptr) {
        add(low, to.bias + at);
        add(high, to.bias + at + half);
      }
    }
    const bool is_v = places.is_v(head);
    if (p.q_norm != nullptr || p.k_norm != nullptr) {
      float sum = sum_of_squares(low) + sum_of_squares(high);
      for (int o = p.lanes_per_head / 2; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
      const float* norm = head < to.num_q_heads ? p.q_norm : is_v ? nullptr : p.k_norm;
      if (norm != nullptr && is_active) {
        const float factor = norm_factor(sum, to.head_dim, p.eps);
        scale(low, factor, norm + column);
        scale(high, factor, norm + column + half);
      }
    }
    if (!is_active) continue;

    if (!is_v) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float a = low.values[i], b = high.values[i];
        low.values[i] = turned(a, b, cos.values[i], -sin.values[i]);
        high.values[i] = turned(b, a, cos.values[i], sin.values[i]);
      }
    }
    __nv_bfloat16* out = places.at(head) + column;
    store(low, out);
    store(high, out + half);
  }
}

}  // namespace

void launch_finish_qkv(const QkvTask& task, cudaStream_t stream) {
  const int64_t head_dim = task.q.shape[2];
  // K and V of pages with statistics are launch_finish_pages()'s.
  const int64_t num_heads = task.q.shape[1] + (task.stats == nullptr ? 2 * task.k.shape[1] : 0);
  const int64_t columns_per_lane = head_dim % 16 == 0 ? 8 : 4;
  int64_t lanes_per_head = 1;
  while (lanes_per_head * columns_per_lane < head_dim / 2) lanes_per_head *= 2;
  const FinishParams p{.to = QkvParams(task),
                       .qkv = task.qkv.as<const __nv_bfloat16>(),
                       .qkv_stride = task.qkv.stride[0],
                       .q_norm = task.q_norm.as<const float>(),
                       .k_norm = task.k_norm.as<const float>(),
                       .eps = task.eps,
                       .num_heads = static_cast<int>(num_heads),
                       .lanes_per_head = static_cast<int>(lanes_per_head)};
  // Two rounds of heads: enough loads in flight, and cosines are read once for both.
  const unsigned threads =
      std::min<unsigned>(kMaxThreads, blocks_for(lanes_per_head * ((num_heads + 1) / 2), 32) * 32);
  launch_overlapping(columns_per_lane == 8 ? finish_qkv_kernel<8> : finish_qkv_kernel<4>,
                     static_cast<unsigned>(task.q.shape[0]), threads, 0, stream,
                     "launching finish_qkv_kernel", p);
  if (task.stats != nullptr) launch_finish_pages(task, stream);
}

}  // namespace fovea::cuda
