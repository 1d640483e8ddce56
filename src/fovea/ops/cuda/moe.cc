#include "fovea/ops/cuda/moe.h"

#include "fovea/base/checked_math.h"
#include "fovea/ops/cuda/grouped_product.h"
#include "fovea/ops/cuda/quantize.h"
#include "fovea/tensor/cuda/device.h"

namespace fovea::cuda {
namespace {

/// Up to here every row reads its experts' matrices for itself: rows seldom share one.
constexpr int64_t kFewRows = 8;

int64_t padded_bytes(int64_t rows, int64_t columns, DType dtype) {
  return Workspace::padded(checked_mul(checked_mul(rows, columns, "experts' rows"),
                                       dtype_bytes(dtype), "experts' rows"));
}

/// Sizes of what many rows pass through.
struct ManySizes {
  ManySizes(const MoeRoutes& routes, int64_t dim, int64_t expert_dim, DType dtype)
      : slots(routes.max_slots()),
        num_activated_scales(dtype == DType::kF8E4M3 ? slots * (expert_dim / kScaleBlock) : 0),
        in_bytes(dtype == DType::kF8E4M3 ? f8_rows_bytes(routes.rows, dim) : 0),
        bytes(in_bytes + padded_bytes(slots, 1, DType::kI32) +
              padded_bytes(slots, expert_dim, dtype) + padded_bytes(slots, dim, DType::kBF16) +
              padded_bytes(num_activated_scales, 1, DType::kF32)) {}
  int64_t slots, num_activated_scales, in_bytes, bytes;
};

int64_t route_bytes(const MoeRoutes& routes) {
  const int64_t num_chosen = routes.rows * routes.top_k;
  return padded_bytes(routes.rows, routes.num_experts, DType::kF32) +
         3 * padded_bytes(num_chosen, 1, DType::kI32) +
         padded_bytes(routes.num_experts, kCounterStride, DType::kI32) +
         3 * padded_bytes(routes.num_experts + 1, 1, DType::kI32) +
         padded_bytes(routes.max_tiles(), 1, DType::kI32);
}

void run_few(const MoeTask& task, const MoeRoutes& routes, const Context& context) {
  const int64_t expert_dim = task.down->in_features();
  const int64_t num_chosen = routes.rows * routes.top_k;
  Workspace workspace(padded_bytes(num_chosen, expert_dim, DType::kBF16), "a mixture of experts",
                      context);
  auto* activated = workspace.take<uint16_t>(num_chosen * expert_dim);
  launch_few_gate_up(task, routes, activated, stream_of(context));
  launch_few_down(task, routes, activated, stream_of(context));
}

void run_many(const MoeTask& task, const MoeRoutes& routes, const Context& context) {
  const cudaStream_t stream = stream_of(context);
  const DType dtype = task.gate_up->dtype();
  const bool is_f8 = dtype == DType::kF8E4M3;
  const int64_t dim = task.normed.shape[1];
  const int64_t expert_dim = task.down->in_features();
  const ManySizes sizes(routes, dim, expert_dim, dtype);
  const int64_t slots = sizes.slots;
  Workspace workspace(sizes.bytes, "a mixture of experts", context);
  auto* in_rows = workspace.take<int32_t>(slots);
  auto* activated = workspace.take<uint8_t>(slots * expert_dim * dtype_bytes(dtype));
  auto* activated_scales = workspace.take<float>(sizes.num_activated_scales);
  auto* outputs = workspace.take<uint16_t>(slots * dim);
  const RowTiles tiles{.rows = slots,
                       .num_experts = routes.num_experts,
                       .first_tile = routes.first_tile,
                       .expert_of_tile = routes.expert_of_tile,
                       .rows_of_expert = routes.rows_of_expert};

  TensorView in = task.normed;
  const float* in_scales = nullptr;
  if (is_f8) {
    auto* codes = workspace.take<uint8_t>(routes.rows * dim);
    auto* scales = workspace.take<float>(num_row_scales(routes.rows, dim));
    launch_quantize_rows(task.normed, codes, scales, scale_rows(routes.rows), stream);
    in = make_view(codes, dtype, {routes.rows, dim}, context.device);
    in_scales = scales;
  }
  launch_list_rows(routes, in_rows, stream);
  launch_grouped_product({.tiles = tiles,
                          .next_tile = routes.next_tile,
                          .in = in,
                          .in_rows = in_rows,
                          .in_scales = in_scales,
                          .weights = task.gate_up->view(),
                          .weight_scales = task.gate_up->scales().as<const float>(),
                          .out = activated,
                          .columns = expert_dim,
                          .out_stride = expert_dim,
                          .out_scales = activated_scales,
                          .is_gated = true,
                          .function = task.function,
                          .bias = task.gate_up_bias.as<const float>()},
                         context);
  launch_grouped_product({.tiles = tiles,
                          .next_tile = routes.next_tile + 1,
                          .in = make_view(activated, dtype, {slots, expert_dim}, context.device),
                          .in_scales = activated_scales,
                          .weights = task.down->view(),
                          .weight_scales = task.down->scales().as<const float>(),
                          .out = outputs,
                          .columns = dim,
                          .out_stride = dim},
                         context);
  launch_combine(outputs, task.down_bias.as<const float>(), routes, task.residual, stream);
}

}  // namespace

int64_t moe_scratch_bytes(const RowScratchShape& shape) {
  MoeRoutes routes;
  routes.rows = shape.rows;
  routes.num_experts = shape.num_experts;
  routes.top_k = shape.top_k;
  return route_bytes(routes) +
         ManySizes(routes, shape.model_dim, shape.expert_dim, shape.weight_dtype).bytes;
}

void run_moe(const MoeTask& task, CudaMatmul& matmul, const Context& context) {
  MoeRoutes routes;
  routes.rows = task.normed.shape[0];
  if (routes.rows == 0) return;
  routes.num_experts = task.router->out_features();
  routes.top_k = task.top_k;
  const int64_t num_chosen = routes.rows * routes.top_k;
  const bool is_few = routes.rows <= kFewRows;

  const DeviceScope scope(context);
  const cudaStream_t stream = stream_of(context);
  Workspace workspace(route_bytes(routes), "a mixture of experts", context);
  auto* logits = workspace.take<float>(routes.rows * routes.num_experts);
  routes.experts = workspace.take<int32_t>(num_chosen);
  routes.weights = workspace.take<float>(num_chosen);
  if (!is_few) {
    routes.ranks = workspace.take<int32_t>(num_chosen);
    routes.counters = workspace.take<int32_t>(routes.num_experts * kCounterStride);
    routes.rows_of_expert = workspace.take<int32_t>(routes.num_experts);
    routes.first_tile = workspace.take<int32_t>(routes.num_experts + 1);
    routes.expert_of_tile = workspace.take<int32_t>(routes.max_tiles());
    routes.next_tile = workspace.take<int32_t>(2);
    check_cuda(
        cudaMemsetAsync(routes.counters, 0,
                        static_cast<size_t>(routes.num_experts * kCounterStride) * 4, stream),
        "clearing the experts' counts");
  }
  matmul.run(task.normed, *task.router,
             make_view(logits, DType::kF32, {routes.rows, routes.num_experts}, context.device),
             false);
  launch_route(logits, task.router_bias.as<const float>(), task.normalise, routes, stream);
  (is_few ? run_few : run_many)(task, routes, context);
}

}  // namespace fovea::cuda
