// Which rows go to which experts, the tiles that this makes, and what they add up to.
#include "fovea/ops/cuda/moe.h"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/vectors.cuh"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

/// Numbers order as these integers do; NaN comes last. Never 0.
__device__ inline uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (x != x) return 1;
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float unordered(uint32_t key) {
  return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

/// A warp per row; lane l has the logits of experts l, l + 32, ..., kExpertsPerLane at most.
template <int kExpertsPerLane>
__global__ __launch_bounds__(kThreads) void route_kernel(const float* logits, const float* bias,
                                                         bool normalise, const MoeRoutes routes) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= routes.rows) return;
  const auto num_experts = static_cast<int>(routes.num_experts);
  const auto top_k = static_cast<int>(routes.top_k);
  float logit[kExpertsPerLane];
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kExpertsPerLane; ++i) {
    const int expert = lane + 32 * i;
    logit[i] = expert < num_experts ? logits[row * num_experts + expert] : -INFINITY;
    if (bias != nullptr && expert < num_experts) logit[i] += bias[expert];
    largest = fmaxf(largest, logit[i]);
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kExpertsPerLane; ++i) sum += expf(logit[i] - largest);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);

  // The best key in each round: larger logits first, equal ones by their number.
  uint32_t keys[kExpertsPerLane];  // 0: taken
#pragma unroll
  for (int i = 0; i < kExpertsPerLane; ++i) {
    keys[i] = lane + 32 * i < num_experts ? ordered(logit[i]) : 0;
  }
  float chosen_sum = 0, weight = 0;
  int chosen = 0;
  for (int k = 0; k < top_k; ++k) {
    uint32_t best = 0;
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kExpertsPerLane; ++i) {
      if (keys[i] > best) mine = lane + 32 * i;
      best = max(best, keys[i]);
    }
    const uint32_t key = __reduce_max_sync(~0u, best);
    const int expert = __reduce_min_sync(~0u, best == key ? mine : static_cast<int>(kMaxExperts));
#pragma unroll
    for (int i = 0; i < kExpertsPerLane; ++i) {
      if (expert == lane + 32 * i) keys[i] = 0;
    }
    const float probability = expf(unordered(key) - largest);
    chosen_sum += probability;
    if (lane == k) {
      chosen = expert;
      weight = probability;
    }
  }
  if (lane >= top_k) return;
  const int64_t at = row * top_k + lane;
  routes.experts[at] = chosen;
  routes.weights[at] = weight / (normalise ? chosen_sum : sum);
  if (routes.counters != nullptr) {
    routes.ranks[at] = atomicAdd(routes.counters + chosen * kCounterStride, 1);
  }
}

/// Each CTA works out for itself where each expert's tiles begin; the first one notes it.
__global__ __launch_bounds__(kThreads) void list_rows_kernel(const MoeRoutes routes,
                                                             int32_t* in_rows) {
  static_assert(kThreads >= kMaxExperts);
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  __shared__ int32_t ends[kThreads];  // of experts' tiles
  const int expert = static_cast<int>(threadIdx.x);
  const auto num_experts = static_cast<int>(routes.num_experts);
  const int rows = expert < num_experts ? routes.counters[expert * kCounterStride] : 0;
  const int tiles = (rows + static_cast<int>(kRowsPerTile) - 1) / static_cast<int>(kRowsPerTile);
  ends[expert] = tiles;
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const int before = expert >= step ? ends[expert - step] : 0;
    __syncthreads();
    ends[expert] += before;
    __syncthreads();
  }
  if (blockIdx.x == 0) {
    if (expert < 2) routes.next_tile[expert] = 0;
    if (expert < num_experts) {
      const int first = ends[expert] - tiles;
      routes.rows_of_expert[expert] = rows;
      routes.first_tile[expert] = first;
      routes.first_tile[expert + 1] = ends[expert];
      for (int i = 0; i < tiles; ++i) routes.expert_of_tile[first + i] = expert;
    }
  }
  const int64_t choice = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (choice >= routes.rows * routes.top_k) return;
  const int chosen = routes.experts[choice];
  const int first = chosen > 0 ? ends[chosen - 1] : 0;
  in_rows[first * kRowsPerTile + routes.ranks[choice]] =
      static_cast<int32_t>(choice / routes.top_k);
}

__global__ __launch_bounds__(kThreads) void combine_kernel(const __nv_bfloat16* outputs,
                                                           const float* bias, int dim,
                                                           const MoeRoutes routes, float* residual,
                                                           int64_t residual_stride) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  __shared__ int64_t slots[kMaxTopK];
  __shared__ float weights[kMaxTopK];
  __shared__ int64_t experts[kMaxTopK];
  const int64_t row = blockIdx.x;
  const auto top_k = static_cast<int>(routes.top_k);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < top_k) {
    slots[thread] = slot_of(routes, row * top_k + thread);
    weights[thread] = routes.weights[row * top_k + thread];
    experts[thread] = routes.experts[row * top_k + thread];
  }
  __syncthreads();
  for (int at = thread * 8; at < dim; at += static_cast<int>(blockDim.x) * 8) {
    Floats<8> sum = {};
#pragma unroll 8
    for (int k = 0; k < top_k; ++k) {
      const Floats<8> x =
          widened(__ldcs(reinterpret_cast<const uint4*>(outputs + slots[k] * dim + at)));
#pragma unroll
      for (int i = 0; i < 8; ++i) sum.values[i] = fmaf(weights[k], x.values[i], sum.values[i]);
    }
    for (int k = 0; bias != nullptr && k < top_k; ++k) {
      const Floats<8> x = load<8>(bias + experts[k] * dim + at);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum.values[i] = fmaf(weights[k], x.values[i], sum.values[i]);
    }
    float* to = residual + row * residual_stride + at;
    Floats<8> total = load<8>(to);
#pragma unroll
    for (int i = 0; i < 8; ++i) total.values[i] += sum.values[i];
    store(total, to);
  }
}

}  // namespace

void launch_route(const float* logits, const float* bias, bool normalise, const MoeRoutes& routes,
                  cudaStream_t stream) {
  static_assert(kMaxExperts == 8 * 32);
  launch_overlapping(routes.num_experts <= 4 * 32 ? route_kernel<4> : route_kernel<8>,
                     blocks_for(routes.rows, kWarps), kThreads, 0, stream, "launching route_kernel",
                     logits, bias, normalise, routes);
}

void launch_list_rows(const MoeRoutes& routes, int32_t* in_rows, cudaStream_t stream) {
  launch_overlapping(list_rows_kernel, blocks_for(routes.rows * routes.top_k, kThreads), kThreads,
                     0, stream, "launching list_rows_kernel", routes, in_rows);
}

void launch_combine(const void* outputs, const float* bias, const MoeRoutes& routes,
                    const TensorView& residual, cudaStream_t stream) {
  launch_overlapping(combine_kernel, static_cast<unsigned>(routes.rows), kThreads, 0, stream,
                     "launching combine_kernel", static_cast<const __nv_bfloat16*>(outputs), bias,
                     static_cast<int>(residual.shape[1]), routes, residual.as<float>(),
                     residual.stride[0]);
}

}  // namespace fovea::cuda
