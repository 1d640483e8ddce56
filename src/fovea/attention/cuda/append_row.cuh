// A decode step's row joins its f8e4m3 page on the way to attention.
#pragma once

#include "fovea/attention/append_kv.h"
#include "fovea/attention/cuda/decode_keys.cuh"
#include "fovea/tensor/cuda/ptx/float8.h"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

/// As append_kv() of one row of head_dim 128, by a CTA of 256 threads: the first half writes K, the
/// other V, a thread a column. Ends with a barrier, behind which the CTA may read the page.
__device__ inline void append_row(const DecodeParams& p, int seq, int position, int kv_head) {
  constexpr int kThreadsOfSide = 128;
  constexpr int kWarpsOfSide = kThreadsOfSide / 32;
  __shared__ uint32_t largest_of_warp[2 * kWarpsOfSide];
  const auto thread = static_cast<int>(threadIdx.x);
  const bool is_v = thread >= kThreadsOfSide;
  const int column = thread % kThreadsOfSide;
  const PrefillParams& common = p.common;
  const int64_t page =
      common.page_table[seq * common.page_table_stride + position / common.page_size];
  const int slot = position % common.page_size;
  const NewRow& side = is_v ? p.new_v : p.new_k;
  const F8Scale& scales = is_v ? common.v_scale : common.k_scale;
  auto* held_scale = const_cast<float*>(scales.values) + page * scales.page_stride + kv_head;
  auto* codes =
      static_cast<uint8_t*>(side.pages) + page * side.page_stride + kv_head * side.head_stride;
  const auto* row = static_cast<const __nv_bfloat16*>(side.from) + kv_head * side.from_head_stride;

  const float old_scale = slot > 0 ? __ldcg(held_scale) : 0.f;
  const float value = __bfloat162float(row[column]);
  // Not negative, so their bits order like numbers.
  const uint32_t magnitude = isfinite(value) ? __float_as_uint(fabsf(value)) : 0;
  const uint32_t of_warp = __reduce_max_sync(~0u, magnitude);
  if (thread % 32 == 0) largest_of_warp[thread / 32] = of_warp;
  __syncthreads();
  uint32_t largest = 0;
#pragma unroll
  for (int w = 0; w < kWarpsOfSide; ++w) {
    largest = max(largest, largest_of_warp[(is_v ? kWarpsOfSide : 0) + w]);
  }
  const float scale = fmaxf(f8_growing_scale(__uint_as_float(largest)), old_scale);
  const auto code_of = [&](int token) -> uint8_t& {
    return is_v ? codes[column * side.row_stride + f8_value_slot(token)]
                : codes[token * side.row_stride + column];
  };
  for (int token = 0; scale > old_scale && token < slot; ++token) {
    float values[4];
    ptx::unpack_e4m3(code_of(token), values);
    code_of(token) = static_cast<uint8_t>(ptx::pack_e4m3(values[0] * old_scale / scale, 0, 0, 0));
  }
  code_of(slot) = static_cast<uint8_t>(ptx::pack_e4m3(value / scale, 0, 0, 0));
  if (column == 0) *held_scale = scale;
  ptx::global_async_proxy_fence();  // the copy engine reads the page next
  __syncthreads();
}

}  // namespace fovea::cuda
