// The middle of a gated mlp: a thread takes eight gates and the eight values that they open for.
// And the addition of a bias, eight columns a thread.
#include "fovea/ops/cuda/gate.cuh"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/vectors.cuh"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {
namespace {

constexpr unsigned kThreads = 256;

struct ActivateParams {
  const __nv_bfloat16* gate_up;
  int64_t gate_up_stride;
  __nv_bfloat16* out;
  int64_t out_stride;
  uint32_t num_groups;  // of all rows
  uint32_t groups_per_row;
};

template <GateFunction kFunction>
__global__ __launch_bounds__(kThreads) void activate_kernel(const ActivateParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const uint32_t group = blockIdx.x * kThreads + threadIdx.x;
  if (group >= p.num_groups) return;
  const uint32_t row = group / p.groups_per_row;
  const uint32_t column = (group - row * p.groups_per_row) * 8;
  const __nv_bfloat16* gates = p.gate_up + row * p.gate_up_stride + column;
  Floats<8> gate = load<8>(gates);
  const Floats<8> up = load<8>(gates + p.groups_per_row * 8);
#pragma unroll
  for (int i = 0; i < 8; ++i) gate.values[i] = gated<kFunction>(gate.values[i], up.values[i]);
  store(gate, p.out + row * p.out_stride + column);
}

struct BiasParams {
  const float* bias;
  float* rows;
  int64_t stride;
  uint32_t num_groups;  // of all rows
  uint32_t groups_per_row;
};

__global__ __launch_bounds__(kThreads) void add_bias_kernel(const BiasParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const uint32_t group = blockIdx.x * kThreads + threadIdx.x;
  if (group >= p.num_groups) return;
  const uint32_t row = group / p.groups_per_row;
  const uint32_t column = (group - row * p.groups_per_row) * 8;
  float* to = p.rows + row * p.stride + column;
  Floats<8> sum = load<8>(to);
  const Floats<8> bias = load<8>(p.bias + column);
#pragma unroll
  for (int i = 0; i < 8; ++i) sum.values[i] += bias.values[i];
  store(sum, to);
}

}  // namespace

void launch_add_bias(const TensorView& bias, const TensorView& rows, cudaStream_t stream) {
  const int64_t groups_per_row = rows.shape[1] / 8;
  const int64_t num_groups = rows.shape[0] * groups_per_row;
  const BiasParams p{bias.as<const float>(), rows.as<float>(), rows.stride[0],
                     static_cast<uint32_t>(num_groups), static_cast<uint32_t>(groups_per_row)};
  launch_overlapping(add_bias_kernel, blocks_for(num_groups, kThreads), kThreads, 0, stream,
                     "launching add_bias_kernel", p);
}

void launch_activate(GateFunction function, const TensorView& gate_up, const TensorView& out,
                     cudaStream_t stream) {
  const int64_t groups_per_row = out.shape[1] / 8;
  const int64_t num_groups = out.shape[0] * groups_per_row;
  const ActivateParams p{gate_up.as<const __nv_bfloat16>(), gate_up.stride[0],
                         out.as<__nv_bfloat16>(),           out.stride[0],
                         static_cast<uint32_t>(num_groups), static_cast<uint32_t>(groups_per_row)};
  const unsigned grid = blocks_for(num_groups, kThreads);
  with_gate_function(function, [&](auto constant) {
    launch_overlapping(activate_kernel<decltype(constant)::value>, grid, kThreads, 0, stream,
                       "launching activate_kernel", p);
  });
}

}  // namespace fovea::cuda
