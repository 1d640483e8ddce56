#include "fovea/engine/workers.h"

#include "fovea/engine/cpu_workers.h"
#include "fovea/engine/model.h"
#include "fovea/model_io/model_config.h"
#ifdef FOVEA_WITH_CUDA
#include "fovea/engine/cuda/cuda_workers.h"
#endif

namespace fovea {

Worker::Worker(const Model& model, int64_t max_rows, const Context& context)
    : ops(make_row_ops(model.compute_dtype(), context)) {
  const ModelConfig& config = model.config();
  const Device device = context.device;
  const DType compute = model.compute_dtype();
  const DType product = ops->product_dtype();
  normed = Tensor(compute, {max_rows, config.model_dim}, device);
  qkv =
      Tensor(product, {max_rows, (config.num_q_heads + 2 * config.num_kv_heads) * config.head_dim},
             device);
  if (config.post_norms) added = Tensor(product, {max_rows, config.model_dim}, device);
  if (config.num_experts > 0) return;  // their buffers are the operation's own
  gate_up = Tensor(product, {max_rows, 2 * config.mlp_dim}, device);
  activated = Tensor(compute, {max_rows, config.mlp_dim}, device);
}

int64_t Worker::size_bytes() const {
  return normed.size_bytes() + qkv.size_bytes() + added.size_bytes() + gate_up.size_bytes() +
         activated.size_bytes();
}

std::unique_ptr<Workers> make_workers(const Model& model, [[maybe_unused]] int64_t max_rows) {
#ifdef FOVEA_WITH_CUDA
  if (model.context().device.type == DeviceType::kCuda) return make_cuda_workers(model, max_rows);
#endif
  return make_cpu_workers(model);
}

}  // namespace fovea
