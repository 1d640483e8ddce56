// What a step gives: a row's logits, the token drawn by them, and how a text's tokens are rated.
#include <algorithm>
#include <cmath>

#include "fovea/base/parallel.h"
#include "fovea/engine/transformer.h"
#include "fovea/engine/weights.h"
#include "fovea/engine/work_count.h"
#include "fovea/ops/cpu/row_kernels.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/slices.h"

namespace fovea {
namespace {

/// Rows whose logits [rows, vocab_size] are there at a time while a text is rated. A GPU's go to
/// the CPU in pieces of 32 MiB, large enough to be worth the way.
int64_t rows_per_score(int64_t vocab_size, Device device) {
  constexpr int64_t kRows = 32;
  constexpr int64_t kGpuLogits = 8 << 20;
  return device.type == DeviceType::kCpu ? kRows : std::max(kRows, kGpuLogits / vocab_size);
}

/// How `logits` rate `target`. Throws kInvalidArgument when they hold a NaN or plus infinity.
TokenScore rate_token(std::span<const float> logits, int32_t target) {
  const cpu::LeadingLogits leading =
      cpu::row_kernels().leading_logits(logits.data(), static_cast<int64_t>(logits.size()));
  check_argument(std::isfinite(leading.exp_sum), "logits hold a NaN or infinity");
  TokenScore score;
  score.best_token = static_cast<int32_t>(leading.best);
  score.best_logit = logits[static_cast<size_t>(leading.best)];
  score.margin = score.best_logit - leading.second;
  score.target_logprob = static_cast<float>(
      static_cast<double>(logits[static_cast<size_t>(target)] - score.best_logit) -
      std::log(leading.exp_sum));
  return score;
}

}  // namespace

void Transformer::output(int64_t row) {
  const ModelConfig& config = model_.config();
  const Weights& weights = model_.weights();
  if (logits_.empty()) {
    logits_ = Tensor(DType::kF32, {1, config.vocab_size}, model_.context().device);
    staged_logits_ = make_staging(logits_.size_bytes(), model_.context().device);
    token_ = Tensor(DType::kI32, {1}, model_.context().device);
    staged_token_ = make_staging(token_.size_bytes(), model_.context().device);
  }
  Worker& worker = workers_->first();
  const OneRowTask task{.residual = rows_of(residual_.view(), row, 1),
                        .norm_weight = weights.output_norm.view(),
                        .eps = static_cast<float>(config.rms_eps),
                        .layer = config.num_layers,
                        .weights = &weights.output,
                        .product = logits_.view()};
  if (!worker.ops->run_one_row(task)) {
    const TensorView normed = rows_of(worker.normed.view(), 0, 1);
    worker.ops->norm(task.residual, task.norm_weight, task.eps, task.layer, normed);
    workers_->lap(StepOp::kOutputNorm, -1);
    worker.ops->matmul(normed, weights.output, logits_.view());
  }
  workers_->lap(StepOp::kLogitsMatmul, -1);
}

void Transformer::fetch_logits() {
  enqueue_copy(logits_.view(),
               make_view(staged_logits_.get(), DType::kF32, {1, model_.config().vocab_size}),
               workers_->context());
  has_fetched_logits_ = true;
}

void Transformer::draw_token() {
  workers_->first().ops->draw(logits_.view(), input_.draw(), token_.as<int32_t>());
  enqueue_copy(token_.view(), make_view(staged_token_.get(), DType::kI32, {1}),
               workers_->context());
  workers_->lap(StepOp::kSampling, -1);
}

int32_t Transformer::drawn_token() const {
  const int32_t token = *static_cast<const int32_t*>(staged_token_.get());
  check_argument(token >= 0, "logits hold a NaN");
  return token;
}

std::span<const float> Transformer::decode_logits() {
  if (!has_fetched_logits_) {
    fetch_logits();
    synchronize(workers_->context());
  }
  return {static_cast<const float*>(staged_logits_.get()),
          static_cast<size_t>(model_.config().vocab_size)};
}

void Transformer::logits(int64_t first_row, int64_t num_rows, float* out) {
  check_argument(first_row >= 0 && num_rows >= 0 && first_row <= num_rows_ - num_rows,
                 "rows [{}, {} + {}) must lie in the last step's {}", first_row, first_row,
                 num_rows, num_rows_);
  const int64_t vocab_size = model_.config().vocab_size;
  workers_->begin_step(1, true);
  for (int64_t row = 0; row < num_rows; ++row) {
    output(first_row + row);
    fetch_logits();
    synchronize(workers_->context());
    std::copy_n(static_cast<const float*>(staged_logits_.get()), vocab_size,
                out + row * vocab_size);
    count_matmul(1, model_.weights().output, &report_.work);
  }
  check_finite();
  report_timings();
}

void Transformer::score(std::span<const int32_t> targets, TokenScore* out,
                        const std::function<void()>& check_cancel) {
  const ModelConfig& config = model_.config();
  const Weights& weights = model_.weights();
  const auto num_targets = static_cast<int64_t>(targets.size());
  check_argument(num_targets <= num_rows_, "{} targets for {} rows", num_targets, num_rows_);
  const int64_t vocab_size = config.vocab_size;
  const Device device = workers_->context().device;
  const int64_t most_rows = rows_per_score(vocab_size, device);
  workers_->begin_step(num_rows_, false);
  workers_->for_each_slab(num_targets, most_rows, [&](const Slab& slab, Worker& worker) {
    check_cancel();
    if (worker.logits.empty()) {
      worker.logits = Tensor(DType::kF32, {most_rows, vocab_size}, device);
      if (device.type != DeviceType::kCpu) {
        worker.staged_logits = make_staging(worker.logits.size_bytes(), device);
      }
    }
    const TensorView logits = rows_of(worker.logits.view(), 0, slab.count);
    const TensorView normed = rows_of(worker.normed.view(), 0, slab.count);
    worker.ops->norm(rows_of(residual_.view(), slab.first, slab.count), weights.output_norm.view(),
                     static_cast<float>(config.rms_eps), config.num_layers, normed);
    worker.ops->matmul(normed, weights.output, logits);
    const float* values = logits.as<float>();
    if (worker.staged_logits != nullptr) {
      values = static_cast<const float*>(worker.staged_logits.get());
      enqueue_copy(logits,
                   make_view(worker.staged_logits.get(), DType::kF32, {slab.count, vocab_size}),
                   workers_->context());
      synchronize(workers_->context());
    }
    // Within a thread of the CPU's that has its own slab this is a plain loop.
    parallel_for(workers_->context(), slab.count, [&](int64_t row, int32_t) {
      out[slab.first + row] =
          rate_token({values + row * vocab_size, static_cast<size_t>(vocab_size)},
                     targets[static_cast<size_t>(slab.first + row)]);
    });
  });
  check_finite();
  workers_->take_timings();
  count_matmul(num_targets, weights.output, &report_.work);
}

}  // namespace fovea
