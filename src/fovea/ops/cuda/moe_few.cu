// Experts for few rows: a warp per row, expert and output feature streams a row of weights.
#include "fovea/ops/cuda/gate.cuh"
#include "fovea/ops/cuda/moe.h"
#include "fovea/ops/cuda/row_dot.cuh"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 4;

struct FewParams {
  const __nv_bfloat16* normed;
  int64_t normed_stride;
  const void *gate_up, *down;
  const float *gate_up_scales, *down_scales;  // of f8
  const float *gate_up_bias, *down_bias;      // or null
  __nv_bfloat16* activated;                   // [rows, top_k, expert_dim]
  const int32_t* experts;
  const float* weights;
  int dim, expert_dim, top_k;
  float* residual;
  int64_t residual_stride;
};

/// Sum of x with row `row` of a matrix with rows of `size`.
template <typename Weight>
__device__ inline float dot(const void* matrix, const float* scales, int64_t row, int size,
                            const __nv_bfloat16* x) {
  const Weight* weights = static_cast<const Weight*>(matrix) + row * size;
  if constexpr (sizeof(Weight) == 1) {
    return row_dot(weights, scales + row / 128 * (size / 128), x, size);
  } else {
    return row_dot(weights, x, size);
  }
}

template <typename Weight, GateFunction kFunction>
__global__ __launch_bounds__(kWarps * 32) void few_gate_up_kernel(const FewParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const int feature = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (feature >= p.expert_dim) return;
  const int64_t choice = blockIdx.y;
  const __nv_bfloat16* x = p.normed + choice / p.top_k * p.normed_stride;
  const int64_t row = int64_t{p.experts[choice]} * 2 * p.expert_dim + feature;
  float gate = dot<Weight>(p.gate_up, p.gate_up_scales, row, p.dim, x);
  float up = dot<Weight>(p.gate_up, p.gate_up_scales, row + p.expert_dim, p.dim, x);
  if (p.gate_up_bias != nullptr) {
    gate += p.gate_up_bias[row];
    up += p.gate_up_bias[row + p.expert_dim];
  }
  if (threadIdx.x % 32 == 0) {
    p.activated[choice * p.expert_dim + feature] = __float2bfloat16(gated<kFunction>(gate, up));
  }
}

/// A CTA per row and output feature, a warp per expert.
template <typename Weight>
__global__ __launch_bounds__(kMaxTopK * 32) void few_down_kernel(const FewParams p) {
  __shared__ float terms[kMaxTopK];
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const int64_t row = blockIdx.y;
  const int64_t feature = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t choice = row * p.top_k + warp;
  const int64_t weight_row = p.experts[choice] * int64_t{p.dim} + feature;
  float output = dot<Weight>(p.down, p.down_scales, weight_row, p.expert_dim,
                             p.activated + choice * p.expert_dim);
  if (p.down_bias != nullptr) output += p.down_bias[weight_row];
  if (threadIdx.x % 32 == 0) terms[warp] = p.weights[choice] * output;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float sum = 0;
  for (int i = 0; i < p.top_k; ++i) sum += terms[i];
  p.residual[row * p.residual_stride + feature] += sum;
}

FewParams few_params(const MoeTask& task, const MoeRoutes& routes, const void* activated) {
  return {.normed = task.normed.as<const __nv_bfloat16>(),
          .normed_stride = task.normed.stride[0],
          .gate_up = task.gate_up->view().data,
          .down = task.down->view().data,
          .gate_up_scales = task.gate_up->scales().as<const float>(),
          .down_scales = task.down->scales().as<const float>(),
          .gate_up_bias = task.gate_up_bias.as<const float>(),
          .down_bias = task.down_bias.as<const float>(),
          .activated = static_cast<__nv_bfloat16*>(const_cast<void*>(activated)),
          .experts = routes.experts,
          .weights = routes.weights,
          .dim = static_cast<int>(task.normed.shape[1]),
          .expert_dim = static_cast<int>(task.down->in_features()),
          .top_k = static_cast<int>(routes.top_k),
          .residual = task.residual.as<float>(),
          .residual_stride = task.residual.stride[0]};
}

bool is_f8(const MoeTask& task) { return task.gate_up->dtype() == DType::kF8E4M3; }

}  // namespace

void launch_few_gate_up(const MoeTask& task, const MoeRoutes& routes, void* activated,
                        cudaStream_t stream) {
  const FewParams p = few_params(task, routes, activated);
  const dim3 grid(blocks_for(p.expert_dim, kWarps),
                  static_cast<unsigned>(routes.rows * routes.top_k));
  with_gate_function(task.function, [&](auto function) {
    constexpr GateFunction kFunction = decltype(function)::value;
    launch_overlapping(is_f8(task) ? few_gate_up_kernel<Float8E4M3, kFunction>
                                   : few_gate_up_kernel<__nv_bfloat16, kFunction>,
                       grid, kWarps * 32, 0, stream, "launching few_gate_up_kernel", p);
  });
}

void launch_few_down(const MoeTask& task, const MoeRoutes& routes, const void* activated,
                     cudaStream_t stream) {
  const FewParams p = few_params(task, routes, activated);
  const dim3 grid(static_cast<unsigned>(p.dim), static_cast<unsigned>(routes.rows));
  launch_overlapping(is_f8(task) ? few_down_kernel<Float8E4M3> : few_down_kernel<__nv_bfloat16>,
                     grid, static_cast<unsigned>(p.top_k) * 32, 0, stream,
                     "launching few_down_kernel", p);
}

}  // namespace fovea::cuda
