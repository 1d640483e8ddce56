// What the kernels that end the way to attention know of q and of the pages.
#pragma once

#include "fovea/ops/cuda/vectors.cuh"
#include "fovea/ops/row_ops.h"

namespace fovea::cuda {

/// A pool of pages [num_pages, num_kv_heads, page_size, head_dim].
struct Pages {
  explicit Pages(const TensorView& view)
      : data(view.as<__nv_bfloat16>()),
        page_stride(view.stride[0]),
        head_stride(view.stride[1]),
        slot_stride(view.stride[2]) {}
  Pages() = default;

  __nv_bfloat16* data = nullptr;
  int64_t page_stride = 0, head_stride = 0, slot_stride = 0;
};

/// A QkvTask but for the product and the norms of heads.
struct QkvParams {
  explicit QkvParams(const QkvTask& task)
      : bias(task.bias.as<const float>()),
        cos(task.table->cos(task.first_row)),
        sin(task.table->sin(task.first_row)),
        q(task.q.as<__nv_bfloat16>()),
        q_row_stride(task.q.stride[0]),
        q_head_stride(task.q.stride[1]),
        k(task.k),
        v(task.v),
        page_table(task.page_table),
        position(task.position),
        first_row(task.first_row),
        page_size(task.k.shape[2]),
        num_q_heads(static_cast<int>(task.q.shape[1])),
        num_kv_heads(static_cast<int>(task.k.shape[1])),
        head_dim(static_cast<int>(task.q.shape[2])) {}
  QkvParams() = default;

  const float* bias = nullptr;                 // null: none
  const float *cos = nullptr, *sin = nullptr;  // [rows, head_dim / 2]
  __nv_bfloat16* q = nullptr;
  int64_t q_row_stride = 0, q_head_stride = 0;
  Pages k, v;
  const int32_t* page_table = nullptr;
  const int64_t* position = nullptr;
  int64_t first_row = 0, page_size = 0;
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
};

/// RoPE of one of a pair, whose other is `partner`: sin is negative for the lower half. Rounded the
/// same wherever it stands, because a page may be written by several kernels.
__device__ inline float turned(float x, float partner, float cos, float sin) {
  return __fmaf_rn(x, cos, __fmul_rn(partner, sin));
}

/// What norms of heads multiply by.
__device__ inline float norm_factor(float sum_of_squares, int head_dim, float eps) {
  return 1.0f / sqrtf(__fadd_rn(sum_of_squares / static_cast<float>(head_dim), eps));
}

template <int kCount>
__device__ inline void add(Floats<kCount>& x, const float* terms) {
  const Floats<kCount> y = load<kCount>(terms);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x.values[i] += y.values[i];
}

template <int kCount>
__device__ inline void scale(Floats<kCount>& x, float factor, const float* factors) {
  const Floats<kCount> y = load<kCount>(factors);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x.values[i] *= factor * y.values[i];
}

/// Where a row's q, k and v go.
class QkvRow {
 public:
  __device__ QkvRow(const QkvParams& p, int64_t row) : p_(p), row_(row) {
    const int64_t position = *p.position + p.first_row + row;
    page_ = p.page_table[position / p.page_size];
    slot_ = position % p.page_size;
  }
  __device__ bool is_v(int head) const { return head >= p_.num_q_heads + p_.num_kv_heads; }
  /// The head_dim elements of one of the q heads, then K heads, then V heads.
  __device__ __nv_bfloat16* at(int head) const {
    if (head < p_.num_q_heads) return p_.q + row_ * p_.q_row_stride + head * p_.q_head_stride;
    const Pages& pages = is_v(head) ? p_.v : p_.k;
    const int kv_head = head - p_.num_q_heads - (is_v(head) ? p_.num_kv_heads : 0);
    return pages.data + page_ * pages.page_stride + kv_head * pages.head_stride +
           slot_ * pages.slot_stride;
  }

 private:
  const QkvParams& p_;
  int64_t row_, page_, slot_;
};

}  // namespace fovea::cuda
