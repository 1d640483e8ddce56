// f8e4m3 pages: one CTA for K, or V, of one head of one page.
#include "fovea/attention/append_kv.h"
#include "fovea/attention/cuda/quantize_launch.h"
#include "fovea/attention/kv_view.h"
#include "fovea/attention/quantize_kv.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/float8.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"
#include "fovea/tensor/cuda/ptx/math.h"

namespace fovea::cuda {
namespace {

constexpr int kQuantizeThreads = 256;

/// Eight elements that lie side by side, as floats.
template <typename Element>
struct Eight {
  float values[8];

  __device__ explicit Eight(const Element* from) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = ptx::unpack2<Element>(words[i]);
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
  }
};

/// Where token t of the page's sequence begins.
template <typename Element>
__device__ const Element* token(const QuantizeKvParams& p, const QuantizeSide& side, int t,
                                int head) {
  int64_t offset = head * side.from_head_stride;
  if (p.from_page_table != nullptr) {
    offset += p.from_page_table[t / p.from_page_size] * side.from_page_stride +
              t % p.from_page_size * side.from_row_stride;
  } else {
    const int64_t row = p.position != nullptr ? t - *p.position : *p.from_offset + t;
    offset += row * side.from_row_stride;
  }
  return static_cast<const Element*>(side.from) + offset;
}

/// The largest finite magnitude of a page's tokens; every thread gets it.
template <typename Element>
__device__ float largest_magnitude(const QuantizeKvParams& p, const QuantizeSide& side,
                                   int first_token, int num_tokens, int head) {
  const int eights = p.head_dim / 8;
  float largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_tokens * eights; i += kQuantizeThreads) {
    const Eight<Element> eight(token<Element>(p, side, first_token + i / eights, head) +
                               i % eights * 8);
#pragma unroll
    for (const float value : eight.values) {
      if (isfinite(value)) largest = fmaxf(largest, fabsf(value));
    }
  }
  // Not negative, so their bits order like numbers.
  __shared__ uint32_t of_warp[kQuantizeThreads / 32];
  const uint32_t of_this_warp = __reduce_max_sync(~0u, __float_as_uint(largest));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = of_this_warp;
  __syncthreads();
  uint32_t all = 0;
  for (const uint32_t of_one : of_warp) all = max(all, of_one);
  return __uint_as_float(all);
}

template <typename Element>
__device__ void write_keys(const QuantizeKvParams& p, int first_token, int num_tokens, int head,
                           int page, float scale) {
  const int eights = p.head_dim / 8;
  uint8_t* to = p.k.to + page * p.k.to_strides[0] + head * p.k.to_strides[1];
  for (int i = static_cast<int>(threadIdx.x); i < p.page_size * eights; i += kQuantizeThreads) {
    const int t = i / eights;
    const int column = i % eights * 8;
    uint2 codes{};
    if (t < num_tokens) {
      const Eight<Element> eight(token<Element>(p, p.k, first_token + t, head) + column);
      const float* v = eight.values;
      codes = {ptx::pack_e4m3(v[0] / scale, v[1] / scale, v[2] / scale, v[3] / scale),
               ptx::pack_e4m3(v[4] / scale, v[5] / scale, v[6] / scale, v[7] / scale)};
    }
    *reinterpret_cast<uint2*>(to + t * p.k.to_strides[2] + column) = codes;
  }
}

/// A thread turns one column of 16 tokens, which are 16 bytes of a row of V; neighbours take both
/// halves of 32 bytes, and 16 columns, so that sectors are read and written whole.
template <typename Element>
__device__ void write_values(const QuantizeKvParams& p, int first_token, int num_tokens, int head,
                             int page, float scale) {
  const int groups = p.page_size / 16;
  const int width = groups % 2 == 0 ? 2 : 1;
  uint8_t* to = p.v.to + page * p.v.to_strides[0] + head * p.v.to_strides[1];
  for (int i = static_cast<int>(threadIdx.x); i < groups * p.head_dim; i += kQuantizeThreads) {
    const int column = i / width % p.head_dim;
    const int group = i / (width * p.head_dim) * width + i % width;
    float values[16];
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      const int at = group * 16 + t;
      values[t] =
          at < num_tokens
              ? static_cast<float>(token<Element>(p, p.v, first_token + at, head)[column]) / scale
              : 0.f;
    }
    // The order of f8_value_slot(): word c holds tokens 2 c, 2 c + 1, 2 c + 8, 2 c + 9.
    uint32_t words[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      words[c] =
          ptx::pack_e4m3(values[2 * c], values[2 * c + 1], values[2 * c + 8], values[2 * c + 9]);
    }
    *reinterpret_cast<uint4*>(to + column * p.v.to_strides[2] + group * 16) =
        uint4{words[0], words[1], words[2], words[3]};
  }
}

template <typename Element>
__global__ __launch_bounds__(kQuantizeThreads) void quantize_kv_kernel(const QuantizeKvParams p) {
  const int number = p.first_page + static_cast<int>(blockIdx.x);
  const auto head = static_cast<int>(blockIdx.y);
  const bool is_v = blockIdx.z != 0;
  const QuantizeSide& side = is_v ? p.v : p.k;
  const int page = p.to_page_table[number];
  const int first_token = number * p.page_size;
  const int num_tokens = min(p.page_size, p.kv_len - first_token);
  float scale = 1;
  if (side.scale_page_stride > 0) {
    scale = f8_page_scale(largest_magnitude<Element>(p, side, first_token, num_tokens, head));
    if (threadIdx.x == 0) side.scale[page * side.scale_page_stride + head] = scale;
  } else if (side.scale != nullptr) {
    scale = side.scale[head];
  }
  if (is_v) {
    write_values<Element>(p, first_token, num_tokens, head, page, scale);
  } else {
    write_keys<Element>(p, first_token, num_tokens, head, page, scale);
  }
}

/// A tile of bf16 means as a page; those of blocks that are not complete are zeros. Scales are
/// powers of two, so that means of few bits stay what they are.
__global__ __launch_bounds__(kQuantizeThreads) void quantize_means_kernel(
    const QuantizeMeansParams p) {
  const auto tile = static_cast<int>(blockIdx.x);
  const auto head = static_cast<int>(blockIdx.y);
  const auto seq = static_cast<int>(blockIdx.z / 2);
  const bool is_v = blockIdx.z % 2 != 0;
  QuantizeKvParams kv = p.kv;
  kv.from_page_table += seq * p.from_page_table_stride;
  const QuantizeSide& side = is_v ? kv.v : kv.k;
  const int page = seq * p.tiles_per_sequence + tile;
  const int first = tile * kv.page_size;
  const auto num_blocks = static_cast<int>(min(p.kv_lens[seq], int64_t{p.max_keys}) / p.block_size);
  const int count = max(0, min(kv.page_size, num_blocks - first));
  const float scale =
      f8_growing_scale(largest_magnitude<__nv_bfloat16>(kv, side, first, count, head));
  if (threadIdx.x == 0) side.scale[page * side.scale_page_stride + head] = scale;
  if (is_v) {
    write_values<__nv_bfloat16>(kv, first, count, head, page, scale);
  } else {
    write_keys<__nv_bfloat16>(kv, first, count, head, page, scale);
  }
}

/// A page that holds tokens [0, num_old) and gets those up to num_tokens, one byte at a time.
template <typename Element>
__device__ void grow_page(const QuantizeKvParams& p, const QuantizeSide& side, bool is_v,
                          int first_token, int num_old, int num_tokens, int head, int page,
                          float scale, float old_scale) {
  uint8_t* to = side.to + page * side.to_strides[0] + head * side.to_strides[1];
  const int from = scale > old_scale ? 0 : num_old;  // else the old ones stay as they are
  const int count = (num_tokens - from) * p.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kQuantizeThreads) {
    const int t = from + i / p.head_dim;
    const int column = i % p.head_dim;
    uint8_t* code = is_v ? to + column * side.to_strides[2] + f8_value_slot(t)
                         : to + t * side.to_strides[2] + column;
    float value;
    if (t < num_old) {
      float values[4];
      ptx::unpack_e4m3(*code, values);
      value = values[0] * old_scale;
    } else {
      value = static_cast<float>(token<Element>(p, side, first_token + t, head)[column]);
    }
    *code = static_cast<uint8_t>(ptx::pack_e4m3(value / scale, 0, 0, 0));
  }
}

/// A CTA for each page that rows may reach, like quantize_kv_kernel.
template <typename Element>
__global__ __launch_bounds__(kQuantizeThreads) void append_kv_kernel(const QuantizeKvParams p) {
  ptx::let_next_grid_begin();
  if (!p.only_rows_are_new) ptx::wait_for_previous_grid();
  const auto position = static_cast<int>(*p.position);
  const int end = position + p.kv_len;
  const int number = position / p.page_size + static_cast<int>(blockIdx.x);
  const auto head = static_cast<int>(blockIdx.y);
  const bool is_v = blockIdx.z != 0;
  const QuantizeSide& side = is_v ? p.v : p.k;
  const int first_token = number * p.page_size;
  if (first_token >= end) {
    ptx::wait_for_previous_grid();  // no kernel behind overtakes the one in front
    return;
  }
  const int page = p.to_page_table[number];
  const int num_tokens = min(p.page_size, end - first_token);
  const int num_old = max(position - first_token, 0);
  float& held_scale = side.scale[page * side.scale_page_stride + head];
  const float old_scale = num_old > 0 ? held_scale : 0.f;
  ptx::wait_for_previous_grid();
  const float largest = largest_magnitude<Element>(p, side, first_token + num_old,
                                                   num_tokens - num_old, head);  // and a barrier
  const float scale = fmaxf(f8_growing_scale(largest), old_scale);
  if (threadIdx.x == 0) held_scale = scale;
  if (num_old > 0) {
    grow_page<Element>(p, side, is_v, first_token, num_old, num_tokens, head, page, scale,
                       old_scale);
  } else if (is_v) {
    write_values<Element>(p, first_token, num_tokens, head, page, scale);
  } else {
    write_keys<Element>(p, first_token, num_tokens, head, page, scale);
  }
}

template <typename Element>
__global__ __launch_bounds__(kQuantizeThreads) void quantize_q_kernel(const QuantizeQParams p) {
  const int eights = p.head_dim / 8;
  const int64_t i = int64_t{blockIdx.x} * kQuantizeThreads + threadIdx.x;
  const auto column = static_cast<int>(i % eights) * 8;
  const auto head = static_cast<int>(i / eights % p.heads);
  const int64_t row = i / eights / p.heads;
  if (row >= p.rows) return;
  const float scale = p.scale != nullptr ? p.scale[head] : 1.f;
  const Eight<Element> eight(static_cast<const Element*>(p.from) + row * p.from_strides[0] +
                             head * p.from_strides[1] + column);
  const float* v = eight.values;
  *reinterpret_cast<uint2*>(p.to + row * p.to_strides[0] + head * p.to_strides[1] + column) = {
      ptx::pack_e4m3(v[0] / scale, v[1] / scale, v[2] / scale, v[3] / scale),
      ptx::pack_e4m3(v[4] / scale, v[5] / scale, v[6] / scale, v[7] / scale)};
}

}  // namespace

void launch_quantize_kv(const QuantizeKvParams& params, bool is_bf16, int num_pages,
                        int num_kv_heads, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(num_pages), static_cast<unsigned>(num_kv_heads), 2);
  if (is_bf16) {
    quantize_kv_kernel<__nv_bfloat16><<<grid, kQuantizeThreads, 0, stream>>>(params);
  } else {
    quantize_kv_kernel<__half><<<grid, kQuantizeThreads, 0, stream>>>(params);
  }
  check_cuda(cudaGetLastError(), "launching quantize_kv_kernel");
}

void launch_quantize_means(const QuantizeMeansParams& params, int num_kv_heads,
                           cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(params.tiles_per_sequence),
                  static_cast<unsigned>(num_kv_heads),
                  static_cast<unsigned>(2 * params.batch_size));
  quantize_means_kernel<<<grid, kQuantizeThreads, 0, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching quantize_means_kernel");
}

void launch_append_kv(const QuantizeKvParams& params, bool is_bf16, int num_kv_heads,
                      cudaStream_t stream) {
  // Rows that begin inside a page may reach one page more than they would fill.
  const int num_pages = (params.kv_len + 2 * params.page_size - 2) / params.page_size;
  const dim3 grid(static_cast<unsigned>(num_pages), static_cast<unsigned>(num_kv_heads), 2);
  launch_overlapping(is_bf16 ? append_kv_kernel<__nv_bfloat16> : append_kv_kernel<__half>, grid,
                     kQuantizeThreads, 0, stream, "launching append_kv_kernel", params);
}

void launch_quantize_q(const QuantizeQParams& params, bool is_bf16, cudaStream_t stream) {
  const int64_t eights = params.rows * params.heads * (params.head_dim / 8);
  const auto num_ctas = static_cast<unsigned>((eights + kQuantizeThreads - 1) / kQuantizeThreads);
  if (is_bf16) {
    quantize_q_kernel<__nv_bfloat16><<<num_ctas, kQuantizeThreads, 0, stream>>>(params);
  } else {
    quantize_q_kernel<__half><<<num_ctas, kQuantizeThreads, 0, stream>>>(params);
  }
  check_cuda(cudaGetLastError(), "launching quantize_q_kernel");
}

}  // namespace fovea::cuda
