// One CTA per row, whose threads hold it in registers: read once, summed, written.
#include <algorithm>

#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/vectors.cuh"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {
namespace {

constexpr int kMaxThreads = 256;

/// Sum over the CTA; every thread gets it.
__device__ float block_sum(float x) {
  __shared__ float partial[kMaxThreads / 32];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(~0u, x, o);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / 32; ++warp) sum += partial[warp];
  return sum;
}

/// A thread's share of a row: every blockDim-th group of eight.
template <int kGroups>
struct RowShare {
  __device__ explicit RowShare(int dim) : num_groups(dim / 8) {}
  template <typename Visit>  // visit(i, first element of the group)
  __device__ void for_each(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int group = static_cast<int>(threadIdx.x + i * blockDim.x);
      if (group < num_groups) visit(i, group * 8);
    }
  }
  int num_groups;
};

struct NormParams {
  const void* x;
  const float* weight;
  int64_t x_stride;
  int dim;
  float eps;
  int32_t layer;
  int32_t* noted;  // null: nothing is noted
  void* out;
  int64_t out_stride;
};

template <int kGroups>
__global__ __launch_bounds__(kMaxThreads) void norm_kernel(const NormParams p) {
  const float* x = static_cast<const float*>(p.x) + blockIdx.x * p.x_stride;
  auto* out = static_cast<__nv_bfloat16*>(p.out) + blockIdx.x * p.out_stride;
  const RowShare<kGroups> share(p.dim);
  Floats<8> row[kGroups], weight[kGroups];
  float sum = 0;
  share.for_each([&](int i, int at) { weight[i] = load<8>(p.weight + at); });
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  share.for_each([&](int i, int at) { row[i] = load<8>(x + at); });
  share.for_each([&](int i, int) { sum += sum_of_squares(row[i]); });
  const float mean = block_sum(sum) / static_cast<float>(p.dim);
  if (threadIdx.x == 0 && p.noted != nullptr && !isfinite(mean)) atomicMin(p.noted, p.layer);
  const float scale = 1.0f / sqrtf(mean + p.eps);
  share.for_each([&](int i, int at) {
#pragma unroll
    for (int j = 0; j < 8; ++j) row[i].values[j] *= scale * weight[i].values[j];
    store(row[i], out + at);
  });
}

template <int kGroups>
__global__ __launch_bounds__(kMaxThreads) void add_normed_kernel(const NormParams p) {
  const auto* x = static_cast<const __nv_bfloat16*>(p.x) + blockIdx.x * p.x_stride;
  float* residual = static_cast<float*>(p.out) + blockIdx.x * p.out_stride;
  const RowShare<kGroups> share(p.dim);
  Floats<8> row[kGroups], sums[kGroups];
  float sum = 0;
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  share.for_each([&](int i, int at) {
    row[i] = load<8>(x + at);
    sums[i] = load<8>(residual + at);
  });
  share.for_each([&](int i, int) { sum += sum_of_squares(row[i]); });
  const float scale = 1.0f / sqrtf(block_sum(sum) / static_cast<float>(p.dim) + p.eps);
  share.for_each([&](int i, int at) {
    const Floats<8> weight = load<8>(p.weight + at);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sums[i].values[j] = fmaf(row[i].values[j] * scale, weight.values[j], sums[i].values[j]);
    }
    store(sums[i], residual + at);
  });
}

struct EmbedParams {
  const int32_t* tokens;
  const __nv_bfloat16* table;
  int64_t table_stride;
  int vocab_size, dim;
  float scale;
  float* out;
  int64_t out_stride;
};

__global__ __launch_bounds__(kMaxThreads) void embed_kernel(const EmbedParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const int32_t token = p.tokens[blockIdx.x];
  const bool is_known = 0 <= token && token < p.vocab_size;
  // What is not finite is noted by the next norm, and no memory outside the table is read.
  const float scale = is_known ? p.scale : __int_as_float(0x7fc00000);
  const __nv_bfloat16* from = p.table + (is_known ? token : 0) * p.table_stride;
  float* to = p.out + blockIdx.x * p.out_stride;
  for (int at = static_cast<int>(threadIdx.x) * 8; at < p.dim;
       at += static_cast<int>(blockDim.x) * 8) {
    Floats<8> row = load<8>(from + at);
#pragma unroll
    for (float& value : row.values) value *= scale;
    store(row, to + at);
  }
}

/// Calls launch(groups per thread, threads) for rows of `dim` elements.
template <typename Launch>
void with_groups(int64_t dim, Launch launch) {
  const auto threads = [dim](int64_t groups) { return blocks_for(dim, 8 * groups * 32) * 32; };
  const auto fits = [&](int64_t groups) { return threads(groups) <= kMaxThreads; };
  if (fits(1)) return launch(std::integral_constant<int, 1>(), threads(1));
  if (fits(2)) return launch(std::integral_constant<int, 2>(), threads(2));
  if (fits(4)) return launch(std::integral_constant<int, 4>(), threads(4));
  launch(std::integral_constant<int, 8>(), threads(8));
}

}  // namespace

void launch_embed(const int32_t* tokens, const TensorView& table, float scale,
                  const TensorView& out, cudaStream_t stream) {
  const EmbedParams p{tokens,
                      table.as<const __nv_bfloat16>(),
                      table.stride[0],
                      static_cast<int>(table.shape[0]),
                      static_cast<int>(table.shape[1]),
                      scale,
                      out.as<float>(),
                      out.stride[0]};
  launch_overlapping(embed_kernel, static_cast<unsigned>(out.shape[0]), kMaxThreads, 0, stream,
                     "launching embed_kernel", p);
}

void launch_norm(const TensorView& x, const TensorView& weight, float eps, int32_t layer,
                 int32_t* noted, const TensorView& out, cudaStream_t stream) {
  const NormParams p{x.data,       weight.as<const float>(),
                     x.stride[0],  static_cast<int>(x.shape[1]),
                     eps,          layer,
                     noted,        out.data,
                     out.stride[0]};
  with_groups(x.shape[1], [&]<int kGroups>(std::integral_constant<int, kGroups>, unsigned threads) {
    launch_overlapping(norm_kernel<kGroups>, static_cast<unsigned>(x.shape[0]), threads, 0, stream,
                       "launching norm_kernel", p);
  });
}

void launch_add_normed(const TensorView& x, const TensorView& weight, float eps,
                       const TensorView& residual, cudaStream_t stream) {
  const NormParams p{x.data,
                     weight.as<const float>(),
                     x.stride[0],
                     static_cast<int>(x.shape[1]),
                     eps,
                     0,
                     nullptr,
                     residual.data,
                     residual.stride[0]};
  with_groups(x.shape[1], [&]<int kGroups>(std::integral_constant<int, kGroups>, unsigned threads) {
    launch_overlapping(add_normed_kernel<kGroups>, static_cast<unsigned>(x.shape[0]), threads, 0,
                       stream, "launching add_normed_kernel", p);
  });
}

}  // namespace fovea::cuda
