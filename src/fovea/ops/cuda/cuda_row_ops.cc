#include "fovea/ops/cuda/cuda_row_ops.h"

#include <algorithm>
#include <optional>

#include "fovea/base/checked_math.h"
#include "fovea/ops/cuda/cuda_matmul.h"
#include "fovea/ops/cuda/moe.h"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/sampling.h"
#include "fovea/tensor/cuda/device.h"
#include "fovea/tensor/device_memory.h"

namespace fovea {
namespace {

using cuda::check_cuda;
using cuda::DeviceScope;

/// Throws kInvalidArgument unless `view` is of this type, rank and last size, and can be read 16
/// bytes at a time.
void check_rows(const TensorView& view, const char* name, DType dtype, int32_t rank, int64_t dim,
                Device device) {
  const auto last = static_cast<size_t>(rank - 1);
  check_argument(view.dtype == dtype && view.rank == rank && view.shape[last] == dim,
                 "{} must be {} of rank {} with rows of {}, got {}", name, dtype_name(dtype), rank,
                 dim, view.describe());
  check_argument(view.device == device, "{} must be memory of GPU {}", name, device.index);
  check_argument(dim % 8 == 0, "{} must have rows of a multiple of 8, got {}", name, dim);
  check_argument(dim == 0 || view.stride[last] == 1, "the last stride of {} must be 1, got {}",
                 name, view.stride[last]);
  for (size_t i = 0; i < last; ++i) {
    check_argument(view.stride[i] % 8 == 0, "strides of {} must be multiples of 8, got {}", name,
                   view.stride[i]);
  }
  check_argument(reinterpret_cast<uintptr_t>(view.data) % 16 == 0, "{} must be aligned to 16 bytes",
                 name);
}

void check_same_rows(int64_t rows, const TensorView& view, const char* name) {
  check_argument(view.shape[0] == rows, "{} must have {} rows, got {}", name, rows, view.shape[0]);
}

class CudaRowOps final : public RowOps {
 public:
  explicit CudaRowOps(const Context& context)
      : context_(context),
        matmul_(context),
        noted_(DType::kI32, {1}, context.device),
        staged_noted_(make_staging(sizeof(int32_t), context.device)) {
    begin_step(0);
  }

  void begin_step(int64_t) override {
    const DeviceScope scope(context_);
    check_cuda(cudaMemsetAsync(noted_.view().data, kNothingByte, sizeof(int32_t), stream()),
               "beginning a step");
  }

  int64_t non_finite_layer() override {
    const auto* layer = static_cast<const int32_t*>(staged_noted_.get());
    enqueue_copy(noted_.view(), make_view(staged_noted_.get(), DType::kI32, {1}), context_);
    synchronize(context_);
    return *layer == kNothing ? -1 : *layer;
  }

  void embed(const int32_t* tokens, const TensorView& table, float scale,
             const TensorView& out) override {
    const int64_t dim = table.shape[1];
    check_rows(table, "table", DType::kBF16, 2, dim, context_.device);
    check_rows(out, "out", DType::kF32, 2, dim, context_.device);
    if (out.shape[0] == 0) return;
    const DeviceScope scope(context_);
    cuda::launch_embed(tokens, table, scale, out, stream());
  }

  void norm(const TensorView& x, const TensorView& weight, float eps, int64_t layer,
            const TensorView& out) override {
    check_norm(x, DType::kF32, weight, eps);
    check_rows(out, "out", DType::kBF16, 2, x.shape[1], context_.device);
    check_same_rows(x.shape[0], out, "out");
    if (x.shape[0] == 0) return;
    const DeviceScope scope(context_);
    cuda::launch_norm(x, weight, eps, static_cast<int32_t>(layer),
                      layer < 0 ? nullptr : noted_.as<int32_t>(), out, stream());
  }

  void add_normed(const TensorView& x, const TensorView& weight, float eps,
                  const TensorView& residual) override {
    check_norm(x, DType::kBF16, weight, eps);
    check_rows(residual, "residual", DType::kF32, 2, x.shape[1], context_.device);
    check_same_rows(x.shape[0], residual, "residual");
    if (x.shape[0] == 0) return;
    const DeviceScope scope(context_);
    cuda::launch_add_normed(x, weight, eps, residual, stream());
  }

  void matmul(const TensorView& in, const PackedWeights& weights, const TensorView& out) override {
    check_argument(out.dtype == DType::kBF16 || out.dtype == DType::kF32,
                   "out must be bf16 or f32, got {}", out.describe());
    multiply(in, weights, out, false);
  }

  void matmul_add(const TensorView& in, const PackedWeights& weights,
                  const TensorView& residual) override {
    check_argument(residual.dtype == DType::kF32, "residual must be f32, got {}",
                   residual.describe());
    multiply(in, weights, residual, true);
  }

  void add_bias(const TensorView& bias, const TensorView& rows) override {
    check_rows(rows, "rows", DType::kF32, 2, rows.shape[1], context_.device);
    check_rows(bias, "bias", DType::kF32, 1, rows.shape[1], context_.device);
    check_argument(checked_mul(rows.shape[0], rows.shape[1], "elements") < int64_t{1} << 34,
                   "rows must have fewer than 2^34 elements, got {}", rows.describe());
    if (rows.num_elements() == 0) return;
    const DeviceScope scope(context_);
    cuda::launch_add_bias(bias, rows, stream());
  }
  void finish_qkv(const QkvTask& task) override;
  bool has_page_stats(int64_t head_dim, int64_t page_size) const override {
    return cuda::has_finish_pages(head_dim, page_size);
  }
  void moe(const MoeTask& task) override;
  bool run_one_row(const OneRowTask& task) override;

  void draw(const TensorView& logits, const Draw* draw, int32_t* token) override {
    check_argument(logits.dtype == DType::kF32 && logits.rank == 2 && logits.shape[0] == 1 &&
                       logits.stride[1] == 1 && logits.device == context_.device,
                   "logits must be GPU memory f32[1, vocab_size], got {}", logits.describe());
    check_argument(logits.shape[1] > 0 && logits.shape[1] < int64_t{1} << 31,
                   "there must be 1 ... 2^31 - 1 logits, got {}", logits.shape[1]);
    const DeviceScope scope(context_);
    const int64_t scratch_bytes = cuda::draw_scratch_bytes(logits.shape[1]);
    std::optional<cuda::Workspace> workspace;
    if (scratch_bytes > 0) {
      workspace.emplace(cuda::Workspace::padded(scratch_bytes), "weights of tokens", context_);
    }
    cuda::launch_draw(logits, draw, token,
                      workspace ? workspace->take<uint64_t>(logits.shape[1]) : nullptr, stream());
  }

  void activate(GateFunction function, const TensorView& gate_up, const TensorView& out) override {
    check_rows(out, "out", DType::kBF16, 2, out.shape[1], context_.device);
    check_rows(gate_up, "gate_up", DType::kBF16, 2, 2 * out.shape[1], context_.device);
    check_same_rows(out.shape[0], gate_up, "gate_up");
    check_argument(checked_mul(out.shape[0], out.shape[1], "activations") < int64_t{1} << 34,
                   "out must have fewer than 2^34 elements, got {}", out.describe());
    if (out.num_elements() == 0) return;
    const DeviceScope scope(context_);
    cuda::launch_activate(function, gate_up, out, stream());
  }

 private:
  // A word of one byte repeated, since memset writes bytes; greater than any layer.
  static constexpr int kNothingByte = 0x7f;
  static constexpr int32_t kNothing = 0x7f7f7f7f;

  cudaStream_t stream() const { return cuda::stream_of(context_); }

  void check_norm(const TensorView& x, DType dtype, const TensorView& weight, float eps) const {
    const int64_t dim = x.shape[1];
    check_rows(x, "x", dtype, 2, dim, context_.device);
    check_argument(dim > 0 && dim <= cuda::kMaxNormDim,
                   "rows of x must have 8 ... {} elements, got {}", cuda::kMaxNormDim, dim);
    check_rows(weight, "weight", DType::kF32, 1, dim, context_.device);
    check_argument(eps >= 0, "eps must not be negative, got {}", eps);
  }

  void check_qkv(const QkvTask& task) const;
  void check_stats(const QkvTask& task) const;

  void check_product(int64_t rows, const PackedWeights& weights, const TensorView& out) const {
    check_argument(out.rank == 2 && out.shape[0] == rows &&
                       out.shape[1] == weights.out_features() && out.stride[1] == 1 &&
                       out.device == context_.device &&
                       reinterpret_cast<uintptr_t>(out.data) % 16 == 0,
                   "out must be aligned GPU memory [{}, {}], got {}", rows, weights.out_features(),
                   out.describe());
  }

  void multiply(const TensorView& in, const PackedWeights& weights, const TensorView& out,
                bool add) {
    check_rows(in, "in", DType::kBF16, 2, weights.in_features(), context_.device);
    check_product(in.shape[0], weights, out);
    matmul_.run(in, weights, out, add);
  }

  Context context_;
  cuda::CudaMatmul matmul_;
  Tensor noted_;                        // i32: the least layer noted
  std::shared_ptr<void> staged_noted_;  // the same on the CPU
};

void CudaRowOps::check_qkv(const QkvTask& task) const {
  const int64_t rows = task.qkv.shape[0];
  const int64_t head_dim = task.q.shape[2];
  const int64_t num_heads = task.q.shape[1] + 2 * task.k.shape[1];
  const Device device = context_.device;
  check_rows(task.qkv, "qkv", DType::kBF16, 2, num_heads * head_dim, device);
  if (!task.bias.empty()) {
    check_rows(task.bias, "bias", DType::kF32, 1, num_heads * head_dim, device);
  }
  if (!task.q_norm.empty()) check_rows(task.q_norm, "q_norm", DType::kF32, 1, head_dim, device);
  if (!task.k_norm.empty()) check_rows(task.k_norm, "k_norm", DType::kF32, 1, head_dim, device);
  check_argument(
      task.table != nullptr && task.table->head_dim() == head_dim && task.table->device() == device,
      "the table must be of heads of {} on GPU {}", head_dim, device.index);
  check_argument(task.first_row >= 0 && task.first_row <= task.table->num_rows() - rows,
                 "rows [{}, {} + {}) must lie in the table's {}", task.first_row, task.first_row,
                 rows, task.table->num_rows());
  check_rows(task.q, "q", DType::kBF16, 3, head_dim, device);
  check_same_rows(rows, task.q, "q");
  check_rows(task.k, "k", DType::kBF16, 4, head_dim, device);
  check_rows(task.v, "v", DType::kBF16, 4, head_dim, device);
  check_argument(task.v.shape == task.k.shape, "v must have the shape of k, got {} and {}",
                 task.v.describe(), task.k.describe());
  check_argument(task.page_table != nullptr && task.position != nullptr,
                 "page_table and position must be given");
  if (task.stats != nullptr) check_stats(task);
}

void CudaRowOps::check_stats(const QkvTask& task) const {
  const BlockStatsView& stats = *task.stats;
  const int64_t head_dim = task.k.shape[3], page_size = task.k.shape[2];
  if (!has_page_stats(head_dim, page_size)) {
    fail(ErrorCode::kUnsupported,
         "statistics are computed with K and V of head_dim and page_size 64, 128 or 256, not both "
         "256; got {} and {}",
         head_dim, page_size);
  }
  check_argument(stats.block_size == page_size, "stats.block_size must be the page_size {}, got {}",
                 page_size, stats.block_size);
  const auto check = [&](const TensorView& view, const char* name, DType dtype, int64_t rows) {
    const bool has_rows = view.rank == (dtype == DType::kBF16 ? 3 : 2) &&
                          view.shape[0] == task.k.shape[0] && view.shape[1] == rows;
    check_argument(view.dtype == dtype && has_rows && view.device == context_.device,
                   "{} must be {} with {} rows for each of {} pages on GPU {}, got {}", name,
                   dtype_name(dtype), rows, task.k.shape[0], context_.device.index,
                   view.describe());
    if (dtype == DType::kBF16) check_rows(view, name, dtype, 3, head_dim, context_.device);
  };
  const int64_t heads = task.k.shape[1];
  check(stats.centroid, "stats.centroid", DType::kBF16, heads);
  check(stats.v_mean, "stats.v_mean", DType::kBF16, heads);
  check(stats.radius, "stats.radius", DType::kF32, heads);
  check(stats.non_finite, "stats.non_finite", DType::kI32, heads);
  if (stats.num_witnesses > 0) {
    check(stats.witness, "stats.witness", DType::kBF16, heads * stats.num_witnesses);
    check(stats.rest_mean, "stats.rest_mean", DType::kBF16, heads);
  }
}

void CudaRowOps::finish_qkv(const QkvTask& task) {
  check_qkv(task);
  if (task.qkv.shape[0] == 0) return;
  const DeviceScope scope(context_);
  cuda::launch_finish_qkv(task, stream());
}

bool CudaRowOps::run_one_row(const OneRowTask& task) {
  if (task.residual.shape[0] != 1 || (task.qkv != nullptr && task.qkv->stats != nullptr)) {
    return false;
  }
  check_norm(task.residual, DType::kF32, task.norm_weight, task.eps);
  const PackedWeights& weights = *task.weights;
  check_argument(task.residual.shape[1] == weights.in_features(),
                 "residual must have {} columns, got {}", weights.in_features(),
                 task.residual.describe());
  check_argument(task.product.dtype == DType::kBF16 || task.product.dtype == DType::kF32,
                 "product must be bf16 or f32, got {}", task.product.describe());
  check_product(1, weights, task.product);

  using After = cuda::RowProduct::After;
  cuda::RowProduct product{.in = task.residual,
                           .norm = {.weight = task.norm_weight.as<const float>(),
                                    .eps = task.eps,
                                    .layer = static_cast<int32_t>(task.layer),
                                    .noted = task.layer < 0 ? nullptr : noted_.as<int32_t>()},
                           .weights = &weights,
                           .out = task.product};
  if (task.qkv != nullptr) {
    check_qkv(*task.qkv);
    if (task.qkv->q_norm.empty() && task.qkv->k_norm.empty()) {
      product.after = After::kQkv;
      product.qkv = task.qkv;
      if (matmul_.run_row(product)) return true;
    }
  } else if (!task.activated.empty()) {
    check_rows(task.activated, "activated", DType::kBF16, 2, weights.out_features() / 2,
               context_.device);
    check_same_rows(1, task.activated, "activated");
    product.after = After::kGate;
    product.gate = task.function;
    product.out = task.activated;
    if (matmul_.run_row(product)) return true;
  }
  product.after = After::kStore;
  product.out = task.product;
  if (!matmul_.run_row(product)) return false;
  if (task.qkv != nullptr) finish_qkv(*task.qkv);
  if (!task.activated.empty()) activate(task.function, task.product, task.activated);
  return true;
}

void CudaRowOps::moe(const MoeTask& task) {
  check_moe(task);
  const int64_t dim = task.normed.shape[1];
  check_rows(task.normed, "normed", DType::kBF16, 2, dim, context_.device);
  check_rows(task.residual, "residual", DType::kF32, 2, dim, context_.device);
  check_argument(task.router->device() == context_.device &&
                     task.gate_up->device() == context_.device &&
                     task.down->device() == context_.device,
                 "router, gate_up and down must be memory of GPU {}", context_.device.index);
  const DType dtype = task.gate_up->dtype();
  check_argument(task.router->dtype() == DType::kBF16 && task.down->dtype() == dtype,
                 "router must be bf16, gate_up and down alike, got {}, {} and {}",
                 dtype_name(task.router->dtype()), dtype_name(dtype),
                 dtype_name(task.down->dtype()));
  check_argument(dtype == DType::kBF16 || task.down->in_features() % 128 == 0,
                 "experts in f8e4m3 must have a width that is a multiple of 128, got {}",
                 task.down->in_features());
  if (task.router->out_features() > cuda::kMaxExperts || task.top_k > cuda::kMaxTopK) {
    fail(ErrorCode::kUnsupported, "a GPU has up to {} experts, {} a row; got {} and {}",
         cuda::kMaxExperts, cuda::kMaxTopK, task.router->out_features(), task.top_k);
  }
  const bool has_bias = !task.gate_up_bias.empty();
  if (has_bias != (task.function == GateFunction::kClampedSwiglu)) {
    fail(ErrorCode::kUnsupported,
         "a GPU has biases of gates and values with the clamped swiglu only");
  }
  if (has_bias && dtype == DType::kF8E4M3) {
    fail(ErrorCode::kUnsupported, "experts with biases stay in bf16 on a GPU, not in f8e4m3");
  }
  cuda::run_moe(task, matmul_, context_);
}

}  // namespace

int64_t cuda_row_scratch_bytes(const RowScratchShape& shape) {
  int64_t bytes = shape.weight_dtype == DType::kF8E4M3
                      ? cuda::f8_rows_bytes(shape.rows, shape.max_in_features)
                      : 0;
  if (shape.num_experts > 0) bytes = std::max(bytes, cuda::moe_scratch_bytes(shape));
  return bytes + cuda::CudaMatmul::kWorkspaceBytes;
}

std::unique_ptr<RowOps> make_cuda_row_ops(DType compute_dtype, const Context& context) {
  check_usable(context.device);
  if (compute_dtype != DType::kBF16) {
    fail(ErrorCode::kUnsupported, "a GPU computes rows in bf16, not {}", dtype_name(compute_dtype));
  }
  return std::make_unique<CudaRowOps>(context);
}

}  // namespace fovea
