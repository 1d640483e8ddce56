#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fovea/attention/cuda/join_pieces.cuh"
#include "fovea/attention/cuda/split_kv.cuh"
#include "fovea/attention/cuda/split_kv.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"
#include "fovea/tensor/cuda/ptx/math.h"

namespace fovea::cuda {
namespace {

constexpr int kPlanThreads = 1024;

/// One CTA: exclusive sums of the rows' tiles, 1024 rows at a time.
__global__ __launch_bounds__(kPlanThreads) void split_plan_kernel(const PrefillParams params,
                                                                  int32_t* tile_offsets,
                                                                  int kv_tile_rows) {
  __shared__ int warp_sums[kPlanThreads / 32];
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  int before = 0;
  for (int start = 0; start < params.total_q; start += kPlanThreads) {
    const int q_row = start + thread;
    int tiles = 0;
    if (q_row < params.total_q) {
      tiles = tiles_of_row(params, q_row, kv_tile_rows);
    }
    int sum = tiles;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const int other = __shfl_up_sync(~0u, sum, o);
      if (lane >= o) sum += other;
    }
    if (lane == 31) warp_sums[thread / 32] = sum;
    __syncthreads();
    int total = 0;
    int warps_before = 0;
    for (int w = 0; w < kPlanThreads / 32; ++w) {
      if (w < thread / 32) warps_before += warp_sums[w];
      total += warp_sums[w];
    }
    if (q_row < params.total_q) tile_offsets[q_row] = before + warps_before + sum - tiles;
    before += total;
    __syncthreads();
  }
  if (thread == 0) tile_offsets[params.total_q] = before;
}

/// CTA whose run holds tile `at` of all.
__device__ int cta_of_tile(int64_t num_tiles, int64_t at, int num_ctas) {
  auto cta = static_cast<int>(at * num_ctas / num_tiles);
  while (first_tile_of_cta(num_tiles, cta + 1, num_ctas) <= at) ++cta;
  while (first_tile_of_cta(num_tiles, cta, num_ctas) > at) --cta;
  return cta;
}

/// One CTA per (query row, q head).
template <typename Element, int kHeadDim>
__global__ __launch_bounds__(kJoinThreads) void combine_kernel(const PrefillParams params,
                                                               int launched_ctas,
                                                               int kv_tile_rows) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const auto q_row = static_cast<int>(blockIdx.x);
  const auto head = static_cast<int>(blockIdx.y);
  const int num_kv_heads = params.num_q_heads / params.group_size;
  const int kv_head = head / params.group_size;
  const auto tiles_before = [&](int row) { return tiles_before_row(params, row, kv_tile_rows); };
  const int64_t num_tiles = int64_t{tiles_before(params.total_q)} * num_kv_heads;
  const int num_ctas = busy_ctas(num_tiles, launched_ctas);
  const int tiles = tiles_before(q_row + 1) - tiles_before(q_row);
  const int64_t unit_begin = int64_t{tiles_before(q_row)} * num_kv_heads + int64_t{kv_head} * tiles;
  int first_cta = 0;
  int num_pieces = params.chunk_tiles > 0 ? tiles : 0;
  if (tiles > 0 && params.chunk_tiles == 0) {
    first_cta = cta_of_tile(num_tiles, unit_begin, num_ctas);
    num_pieces = cta_of_tile(num_tiles, unit_begin + tiles - 1, num_ctas) + 1 - first_cta;
  }
  const int64_t first_piece =
      params.chunk_tiles > 0 ? unit_begin : first_cta + int64_t{q_row} * num_kv_heads + kv_head;
  join_pieces<Element, kHeadDim>(params, q_row, head, first_piece, num_pieces);
}

}  // namespace

void launch_split_plan(const PrefillParams& params, int kv_tile_rows, cudaStream_t stream) {
  split_plan_kernel<<<1, kPlanThreads, 0, stream>>>(
      params, const_cast<int32_t*>(params.tile_offsets), kv_tile_rows);
  check_cuda(cudaGetLastError(), "launching split_plan_kernel");
}

template <typename Element>
void launch_split_combine(const PrefillParams& params, int head_dim, int num_ctas, int kv_tile_rows,
                          cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(params.total_q), static_cast<unsigned>(params.num_q_heads));
  with_head_dim(head_dim, [&](auto constant) {
    launch_overlapping(combine_kernel<Element, decltype(constant)::value>, grid, kJoinThreads, 0,
                       stream, "launching combine_kernel", params, num_ctas, kv_tile_rows);
  });
}

template void launch_split_combine<__nv_bfloat16>(const PrefillParams&, int, int, int,
                                                  cudaStream_t);
template void launch_split_combine<__half>(const PrefillParams&, int, int, int, cudaStream_t);

}  // namespace fovea::cuda
