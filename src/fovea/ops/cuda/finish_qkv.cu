// From the product with q, k and v to attention in one pass: one CTA per row, a few lanes per head,
// each with the same columns of both halves of a head, so that RoPE needs no neighbour.
#include <algorithm>

#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/vectors.cuh"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {
namespace {

constexpr int kMaxThreads = 256;

/// A pool of pages [num_pages, num_kv_heads, page_size, head_dim].
struct Pages {
  explicit Pages(const TensorView& view)
      : data(view.as<__nv_bfloat16>()),
        page_stride(view.stride[0]),
        head_stride(view.stride[1]),
        slot_stride(view.stride[2]) {}
  __nv_bfloat16* data;
  int64_t page_stride, head_stride, slot_stride;
};

struct FinishParams {
  const __nv_bfloat16* qkv;
  int64_t qkv_stride;
  const float* bias;             // null: none
  const float *q_norm, *k_norm;  // null: none
  float eps;
  const float *cos, *sin;  // [rows, head_dim / 2]
  __nv_bfloat16* q;
  int64_t q_row_stride, q_head_stride;
  Pages k, v;
  const int32_t* page_table;
  const int64_t* position;
  int64_t first_row, page_size;
  int num_q_heads, num_kv_heads, head_dim;
  int lanes_per_head;  // a power of two
};

template <int kCount>
__device__ void add(Floats<kCount>& x, const float* terms) {
  const Floats<kCount> y = load<kCount>(terms);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x.values[i] += y.values[i];
}

template <int kCount>
__device__ void scale(Floats<kCount>& x, float factor, const float* factors) {
  const Floats<kCount> y = load<kCount>(factors);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x.values[i] *= factor * y.values[i];
}

template <int kCount>
__global__ __launch_bounds__(kMaxThreads) void finish_qkv_kernel(const FinishParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int half = p.head_dim / 2;
  const int column = thread % p.lanes_per_head * kCount;
  const bool has_column = column < half;
  const int64_t position = *p.position + p.first_row + row;
  const int64_t page = p.page_table[position / p.page_size];
  const int64_t slot = position % p.page_size;
  Floats<kCount> cos = {}, sin = {};
  if (has_column) {
    cos = load<kCount>(p.cos + row * half + column);
    sin = load<kCount>(p.sin + row * half + column);
  }

  const int num_heads = p.num_q_heads + 2 * p.num_kv_heads;
  const int heads_at_once = static_cast<int>(blockDim.x) / p.lanes_per_head;
  for (int first = 0; first < num_heads; first += heads_at_once) {
    const int head = first + thread / p.lanes_per_head;
    const bool is_active = has_column && head < num_heads;
    const int at = head * p.head_dim + column;
    Floats<kCount> low = {}, high = {};
    if (is_active) {
      low = load<kCount>(p.qkv + row * p.qkv_stride + at);
      high = load<kCount>(p.qkv + row * p.qkv_stride + at + half);
      if (p.bias != nullptr) {
        add(low, p.bias + at);
        add(high, p.bias + at + half);
      }
    }
    const bool is_q = head < p.num_q_heads;
    const bool is_v = head >= p.num_q_heads + p.num_kv_heads;
    if (p.q_norm != nullptr || p.k_norm != nullptr) {
      float sum = sum_of_squares(low) + sum_of_squares(high);
      for (int o = p.lanes_per_head / 2; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
      const float* norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
      if (norm != nullptr && is_active) {
        const float factor = 1.0f / sqrtf(sum / static_cast<float>(p.head_dim) + p.eps);
        scale(low, factor, norm + column);
        scale(high, factor, norm + column + half);
      }
    }
    if (!is_active) continue;

    __nv_bfloat16* to;
    if (is_q) {
      to = p.q + row * p.q_row_stride + head * p.q_head_stride;
    } else {
      const Pages& pages = is_v ? p.v : p.k;
      const int kv_head = head - p.num_q_heads - (is_v ? p.num_kv_heads : 0);
      to = pages.data + page * pages.page_stride + kv_head * pages.head_stride +
           slot * pages.slot_stride;
    }
    if (!is_v) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float a = low.values[i], b = high.values[i];
        low.values[i] = a * cos.values[i] - b * sin.values[i];
        high.values[i] = b * cos.values[i] + a * sin.values[i];
      }
    }
    store(low, to + column);
    store(high, to + column + half);
  }
}

}  // namespace

void launch_finish_qkv(const QkvTask& task, cudaStream_t stream) {
  const int64_t head_dim = task.q.shape[2];
  const int64_t num_heads = task.q.shape[1] + 2 * task.k.shape[1];
  const int64_t columns_per_lane = head_dim % 16 == 0 ? 8 : 4;
  int64_t lanes_per_head = 1;
  while (lanes_per_head * columns_per_lane < head_dim / 2) lanes_per_head *= 2;
  const FinishParams p{.qkv = task.qkv.as<const __nv_bfloat16>(),
                       .qkv_stride = task.qkv.stride[0],
                       .bias = task.bias.as<const float>(),
                       .q_norm = task.q_norm.as<const float>(),
                       .k_norm = task.k_norm.as<const float>(),
                       .eps = task.eps,
                       .cos = task.table->cos(task.first_row),
                       .sin = task.table->sin(task.first_row),
                       .q = task.q.as<__nv_bfloat16>(),
                       .q_row_stride = task.q.stride[0],
                       .q_head_stride = task.q.stride[1],
                       .k = Pages(task.k),
                       .v = Pages(task.v),
                       .page_table = task.page_table,
                       .position = task.position,
                       .first_row = task.first_row,
                       .page_size = task.k.shape[2],
                       .num_q_heads = static_cast<int>(task.q.shape[1]),
                       .num_kv_heads = static_cast<int>(task.k.shape[1]),
                       .head_dim = static_cast<int>(head_dim),
                       .lanes_per_head = static_cast<int>(lanes_per_head)};
  // Two rounds of heads: enough loads in flight, and cosines are read once for both.
  const unsigned threads =
      std::min<unsigned>(kMaxThreads, blocks_for(lanes_per_head * ((num_heads + 1) / 2), 32) * 32);
  launch_overlapping(columns_per_lane == 8 ? finish_qkv_kernel<8> : finish_qkv_kernel<4>,
                     static_cast<unsigned>(task.q.shape[0]), threads, 0, stream,
                     "launching finish_qkv_kernel", p);
}

}  // namespace fovea::cuda
