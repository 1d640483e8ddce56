#include "fovea/ops/row_ops.h"

#include "fovea/base/error.h"
#include "fovea/ops/cpu/cpu_row_ops.h"
#include "fovea/tensor/device_memory.h"
#ifdef FOVEA_WITH_CUDA
#include "fovea/ops/cuda/cuda_row_ops.h"
#endif

namespace fovea {

std::unique_ptr<RowOps> make_row_ops([[maybe_unused]] DType compute_dtype, const Context& context) {
  check_usable(context.device);
#ifdef FOVEA_WITH_CUDA
  if (context.device.type == DeviceType::kCuda) return make_cuda_row_ops(compute_dtype, context);
#endif
  return std::make_unique<CpuRowOps>(context);
}

DType product_dtype(Device device) {
  return device.type == DeviceType::kCpu ? DType::kF32 : DType::kBF16;
}

int64_t row_scratch_bytes([[maybe_unused]] const RowScratchShape& shape,
                          [[maybe_unused]] Device device) {
#ifdef FOVEA_WITH_CUDA
  if (device.type == DeviceType::kCuda) return cuda_row_scratch_bytes(shape);
#endif
  return 0;
}

void check_moe(const MoeTask& task) {
  check_argument(task.router != nullptr && task.gate_up != nullptr && task.down != nullptr,
                 "router, gate_up and down must be given");
  const int64_t num_experts = task.router->out_features();
  const int64_t dim = task.router->in_features();
  const int64_t expert_dim = task.down->in_features();
  check_argument(
      task.gate_up->num_experts() == num_experts &&
          task.gate_up->out_features() == 2 * expert_dim && task.gate_up->in_features() == dim,
      "gate_up must be {} matrices [{}, {}], got {} of [{}, {}]", num_experts, 2 * expert_dim, dim,
      task.gate_up->num_experts(), task.gate_up->out_features(), task.gate_up->in_features());
  check_argument(task.down->num_experts() == num_experts && task.down->out_features() == dim,
                 "down must be {} matrices [{}, {}], got {} of [{}, {}]", num_experts, dim,
                 expert_dim, task.down->num_experts(), task.down->out_features(), expert_dim);
  check_argument(task.router_bias.empty() ||
                     (task.router_bias.dtype == DType::kF32 && task.router_bias.rank == 1 &&
                      task.router_bias.shape[0] == num_experts),
                 "router_bias must be f32[{}], got {}", num_experts, task.router_bias.describe());
  const auto check_bias = [&](const TensorView& bias, const char* name, int64_t size) {
    check_argument(bias.empty() || (bias.dtype == DType::kF32 && bias.rank == 2 &&
                                    bias.shape[0] == num_experts && bias.shape[1] == size),
                   "{} must be f32[{}, {}], got {}", name, num_experts, size, bias.describe());
  };
  check_bias(task.gate_up_bias, "gate_up_bias", 2 * expert_dim);
  check_bias(task.down_bias, "down_bias", dim);
  check_argument(task.top_k > 0 && task.top_k <= num_experts, "top_k must be in 1 ... {}, got {}",
                 num_experts, task.top_k);
  check_argument(task.normed.rank == 2 && task.normed.shape[1] == dim,
                 "normed must have rows of {}, got {}", dim, task.normed.describe());
  check_argument(
      task.residual.dtype == DType::kF32 && task.residual.rank == 2 &&
          task.residual.shape[0] == task.normed.shape[0] && task.residual.shape[1] == dim,
      "residual must be f32[{}, {}], got {}", task.normed.shape[0], dim, task.residual.describe());
}

}  // namespace fovea
