#include "fovea/ops/cuda/moe.h"

#include "fovea/base/checked_math.h"
#include "fovea/tensor/cuda/device.h"

namespace fovea::cuda {
namespace {

/// Up to here every row reads its experts' matrices for itself: rows seldom share one.
constexpr int64_t kFewRows = 8;

}  // namespace

void run_moe(const MoeTask& task, CudaMatmul& matmul, const Context& context) {
  MoeRoutes routes;
  routes.rows = task.normed.shape[0];
  if (routes.rows == 0) return;
  routes.num_experts = task.router->out_features();
  routes.top_k = task.top_k;
  const int64_t dim = task.normed.shape[1];
  const int64_t expert_dim = task.down->in_features();
  const int64_t num_chosen = routes.rows * routes.top_k;
  const bool is_few = routes.rows <= kFewRows;
  const int64_t num_slots = is_few ? num_chosen : routes.max_tiles() * kRowsPerTile;
  const auto slot_bytes = [&](int64_t width) {
    return Workspace::padded(
        checked_mul(checked_mul(num_slots, width, "experts' rows"), 2, "experts' rows"));
  };

  const DeviceScope scope(context);
  const cudaStream_t stream = stream_of(context);
  Workspace workspace(Workspace::padded(routes.rows * routes.num_experts * 4) +
                          3 * Workspace::padded(num_chosen * 4) +
                          2 * Workspace::padded((routes.num_experts + 1) * 4) +
                          Workspace::padded(routes.max_tiles() * 4) + slot_bytes(expert_dim) +
                          (is_few ? 0 : slot_bytes(dim)),
                      "a mixture of experts", context);
  auto* logits = workspace.take<float>(routes.rows * routes.num_experts);
  routes.experts = workspace.take<int32_t>(num_chosen);
  routes.weights = workspace.take<float>(num_chosen);
  routes.ranks = workspace.take<int32_t>(num_chosen);
  auto* activated = workspace.take<uint16_t>(num_slots * expert_dim);
  if (!is_few) {
    routes.counts = workspace.take<int32_t>(routes.num_experts);
    check_cuda(
        cudaMemsetAsync(routes.counts, 0, static_cast<size_t>(routes.num_experts) * 4, stream),
        "clearing the experts' counts");
  }

  matmul.run(task.normed, task.router->view(),
             make_view(logits, DType::kF32, {routes.rows, routes.num_experts}, context.device),
             false);
  launch_route(logits, task.normalise, routes, stream);
  if (is_few) {
    launch_few_gate_up(task, routes, activated, stream);
    launch_few_down(task, routes, activated, stream);
    return;
  }

  routes.first_tile = workspace.take<int32_t>(routes.num_experts + 1);
  routes.expert_of_tile = workspace.take<int32_t>(routes.max_tiles());
  auto* rows = workspace.take<uint16_t>(num_slots * dim);  // first inputs, then outputs
  launch_tiles(routes, stream);
  launch_gather(task.normed, routes, rows, stream);
  launch_grouped_product({.in = rows,
                          .depth = dim,
                          .weights = task.gate_up->view(),
                          .out = activated,
                          .columns = expert_dim,
                          .is_gated = true,
                          .function = task.function},
                         routes, context);
  launch_grouped_product({.in = activated,
                          .depth = expert_dim,
                          .weights = task.down->view(),
                          .out = rows,
                          .columns = dim},
                         routes, context);
  launch_combine(rows, routes, task.residual, stream);
}

}  // namespace fovea::cuda
