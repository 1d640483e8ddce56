#include "fovea/engine/workers.h"

#include "fovea/base/checked_math.h"
#include "fovea/engine/cpu_workers.h"
#include "fovea/engine/model.h"
#include "fovea/model_io/model_config.h"
#ifdef FOVEA_WITH_CUDA
#include "fovea/engine/cuda/cuda_workers.h"
#endif

namespace fovea {
namespace {

/// Columns of a worker's buffers; 0: it has no such buffer.
struct Widths {
  explicit Widths(const ModelConfig& config)
      : normed(config.model_dim),
        qkv((config.num_q_heads + 2 * config.num_kv_heads) * config.head_dim),
        added(config.post_norms ? config.model_dim : 0),
        // A mixture's buffers are the operation's own.
        activated(config.num_experts > 0 ? 0 : config.mlp_dim) {}
  int64_t normed, qkv, added, activated;
};

}  // namespace

Worker::Worker(const Model& model, int64_t max_rows, const Context& context)
    : ops(make_row_ops(model.compute_dtype(), context)) {
  const Widths widths(model.config());
  const Device device = context.device;
  const DType compute = model.compute_dtype();
  const DType product = product_dtype(device);
  normed = Tensor(compute, {max_rows, widths.normed}, device);
  qkv = Tensor(product, {max_rows, widths.qkv}, device);
  if (widths.added > 0) added = Tensor(product, {max_rows, widths.added}, device);
  if (widths.activated == 0) return;
  gate_up = Tensor(product, {max_rows, 2 * widths.activated}, device);
  activated = Tensor(compute, {max_rows, widths.activated}, device);
}

int64_t planned_worker_bytes(const ModelConfig& config, DType compute_dtype, const Context& context,
                             int64_t max_rows) {
  const Widths widths(config);
  const bool on_cpu = context.device.type == DeviceType::kCpu;
  const int64_t per_row = (widths.normed + widths.activated) * dtype_bytes(compute_dtype) +
                          (widths.qkv + widths.added + 2 * widths.activated) *
                              dtype_bytes(product_dtype(context.device));
  const int64_t rows = on_cpu ? context.num_threads * kSlabRows : max_rows;
  return checked_mul(rows, per_row, "activation bytes");
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
