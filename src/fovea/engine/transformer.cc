#include "fovea/engine/transformer.h"

#include <algorithm>
#include <optional>

#include "fovea/attention/append_kv.h"
#include "fovea/attention/attention.h"
#include "fovea/base/checked_math.h"
#include "fovea/engine/layer_budgets.h"
#include "fovea/engine/weights.h"
#include "fovea/engine/work_count.h"
#include "fovea/tensor/slices.h"

namespace fovea {
namespace {

/// Room of a page table in decode: few different numbers whatever the length, so that a recorded
/// step fits many.
int64_t decode_page_room(int64_t num_pages) {
  int64_t room = 64;
  while (room < num_pages) room *= 2;
  return room;
}

/// Of queries that are rounded to E4M3, see round_queries().
DType rounded_q_dtype(DType compute_dtype, Device device) {
  return device.type == DeviceType::kCpu ? compute_dtype : DType::kF8E4M3;
}

GateFunction gate_function(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return GateFunction::kSilu;
    case Activation::kGeluTanh:
      return GateFunction::kGeluTanh;
    case Activation::kClampedSwiglu:
      return GateFunction::kClampedSwiglu;
  }
  fail(ErrorCode::kUnsupported, "activation {} is not known", static_cast<int>(activation));
}

/// The sum that a piece's time goes to, or null.
double* sum_of(StepOp op, ForwardReport& report) {
  switch (op) {
    case StepOp::kDenseAttention:
    case StepOp::kSparseAttention:
    case StepOp::kDecodeAttention:
      return &report.attention_s;
    case StepOp::kBlockStatistics:
    case StepOp::kSelection:
      return &report.selection_s;
    case StepOp::kQkvMatmul:
    case StepOp::kOutputMatmul:
    case StepOp::kGateUpMatmul:
    case StepOp::kDownMatmul:
    case StepOp::kExperts:
    case StepOp::kLogitsMatmul:
      return &report.matmul_s;
    default:
      return nullptr;
  }
}

}  // namespace

Transformer::Transformer(const Model& model, int64_t max_rows, std::optional<DType> kv_codes)
    : model_(model),
      max_rows_(ceil_div(max_rows, kSlabRows) * kSlabRows),
      workers_(make_workers(model, max_rows_)),
      input_(model.context().device),
      selection_(make_selection_buffer(workers_->context())) {
  const ModelConfig& config = model.config();
  const Device device = model.context().device;
  residual_ = Tensor(DType::kF32, {max_rows_, config.model_dim}, device);
  q_ = Tensor(model.compute_dtype(), {max_rows_, config.num_q_heads, config.head_dim}, device);
  attended_ =
      Tensor(model.compute_dtype(), {max_rows_, config.num_q_heads, config.head_dim}, device);
  if (kv_codes) {
    new_k_ =
        Tensor(model.compute_dtype(), {1, config.num_kv_heads, max_rows_, config.head_dim}, device);
    new_v_ =
        Tensor(model.compute_dtype(), {1, config.num_kv_heads, max_rows_, config.head_dim}, device);
    if (kv_codes == DType::kF8E4M3) {
      rounded_q_ = Tensor(rounded_q_dtype(model.compute_dtype(), device),
                          {max_rows_, config.num_q_heads, config.head_dim}, device);
    }
    zero_ = Tensor(DType::kI64, {1}, device);
  }
  rope_ = RopeTable(config.head_dim, config.rope_theta, config.rope_factors, device);
  rope_local_ = RopeTable(config.head_dim, config.rope_theta_local,
                          config.scales_local_rope ? std::span<const float>(config.rope_factors)
                                                   : std::span<const float>(),
                          device);
  reset_report();
}

Transformer::~Transformer() = default;

int64_t Transformer::activation_bytes() const {
  return residual_.size_bytes() + q_.size_bytes() + attended_.size_bytes() + new_k_.size_bytes() +
         new_v_.size_bytes() + rounded_q_.size_bytes() + rope_.size_bytes() +
         rope_local_.size_bytes() + workers_->size_bytes();
}

int64_t Transformer::planned_bytes(const ModelConfig& config, DType compute_dtype,
                                   const Context& context, std::optional<DType> kv_codes,
                                   int64_t max_rows) {
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  int64_t code_bytes = kv_codes ? 2 * kv_dim * dtype_bytes(compute_dtype) : 0;  // K, V, queries
  if (kv_codes == DType::kF8E4M3) {
    code_bytes += q_dim * dtype_bytes(rounded_q_dtype(compute_dtype, context.device));
  }
  const int64_t per_row =
      code_bytes + config.model_dim * dtype_bytes(DType::kF32) +
      2 * q_dim * dtype_bytes(compute_dtype) +
      config.head_dim * dtype_bytes(DType::kF32) * (config.sliding_window > 0 ? 2 : 1);
  return checked_add(checked_mul(max_rows, per_row, "activation bytes"),
                     planned_worker_bytes(config, compute_dtype, context, max_rows),
                     "activation bytes");
}

void Transformer::reset_report() {
  report_ = {};
  const auto heads = static_cast<size_t>(model_.config().num_layers * model_.config().num_q_heads);
  report_.head_kept.assign(heads, 0);
  report_.head_causal.assign(heads, 0);
}

void Transformer::forward(const ForwardStep& step) {
  num_rows_ = static_cast<int64_t>(step.tokens.size());
  check_argument(num_rows_ > 0 && num_rows_ <= max_rows_,
                 "a step must have 1 ... {} tokens, got {}", max_rows_, num_rows_);
  observer_ = step.observer;
  selection_->take_lengths();  // a step that was cancelled left its own
  workers_->begin_step(num_rows_, !step.is_decode || observer_ != nullptr);
  const auto num_pages = static_cast<int64_t>(step.page_table.size());
  input_.set(step.tokens, step.position, step.page_table,
             step.is_decode ? decode_page_room(num_pages) : num_pages, step.prompt_len,
             rows_per_piece(step), workers_->context(), step.draw.value_or(Draw{}));
  const auto compute = [&] {
    run_layers(step);
    if (step.is_decode) output(0);
    if (step.draw) draw_token();
  };
  if (step.is_decode && step.selector == nullptr) {
    workers_->replay({reinterpret_cast<int64_t>(step.cache), input_.page_table_stride(),
                      input_.generation(), step.draw.has_value()},
                     compute);
  } else {
    compute();
  }
  has_fetched_logits_ = false;
  if (step.is_decode && !step.draw) fetch_logits();
  for (const LayerWeights& layer : model_.weights().layers) {
    count_layer_matmuls(num_rows_, layer, model_.config().experts_per_token, &report_.work);
  }
  if (step.is_decode) count_matmul(1, model_.weights().output, &report_.work);
  check_finite();
  count_attention(step);
  report_timings();
}

void Transformer::run_layers(const ForwardStep& step) {
  const ModelConfig& config = model_.config();
  const Weights& weights = model_.weights();
  rope_.fill(input_.position(), num_rows_, workers_->context());
  if (config.sliding_window > 0) {
    rope_local_.fill(input_.position(), num_rows_, workers_->context());
  }
  workers_->lap(StepOp::kRopeTable, -1);

  // Between two layers' attention, rows need nothing of each other: a slab goes through the end of
  // one layer and the beginning of the next while it is in a core's cache.
  const auto for_each_slab = [&](const Workers::Body& body) {
    workers_->for_each_slab(num_rows_, max_rows_, [&](const Slab& slab, Worker& worker) {
      if (step.check_cancel) step.check_cancel();
      body(slab, worker);
    });
  };
  for_each_slab([&](const Slab& slab, Worker& worker) {
    weights.embedding->read(input_.tokens() + slab.first,
                            rows_of(residual_.view(), slab.first, slab.count), *worker.ops);
    worker.lap(StepOp::kEmbedding, -1);
    attention_in(step, 0, slab, worker);
  });
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    attend_layer(step, layer);
    for_each_slab([&](const Slab& slab, Worker& worker) {
      attention_out(layer, slab, worker);
      mlp(layer, slab, worker);
      if (layer + 1 < config.num_layers) attention_in(step, layer + 1, slab, worker);
    });
    workers_->catch_up();
    if (step.after_layer) step.after_layer(layer + 1);
  }
}

/// Norm, q/k/v, RoPE; q into its buffer, k and v into the pages.
void Transformer::attention_in(const ForwardStep& step, int64_t layer, const Slab& slab,
                               Worker& worker) {
  const ModelConfig& config = model_.config();
  const LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  RowOps& ops = *worker.ops;
  const TensorView residual = rows_of(residual_.view(), slab.first, slab.count);
  const TensorView normed = rows_of(worker.normed.view(), 0, slab.count);
  const auto eps = static_cast<float>(config.rms_eps);

  QkvTask task;
  task.qkv = rows_of(worker.qkv.view(), 0, slab.count);
  task.bias = weights.qkv_bias.view();
  task.q_norm = weights.q_norm.view();
  task.k_norm = weights.k_norm.view();
  task.eps = eps;
  task.table = config.is_local(layer) ? &rope_local_ : &rope_;
  task.first_row = slab.first;
  task.q = rows_of(q_.view(), slab.first, slab.count);
  if (new_k_.empty()) {
    const KvView kv = step.cache->kv(layer);
    task.k = kv.k;
    task.v = kv.v;
    task.page_table = input_.page_table();
    task.position = input_.position();
    if (writes_stats(step, layer)) task.stats = &step.cache->stats(layer);
  } else {
    task.k = new_k_.view();
    task.v = new_v_.view();
    task.page_table = zero_.as<int32_t>();
    task.position = zero_.as<int64_t>();
  }

  if (ops.run_one_row({.residual = residual,
                       .norm_weight = weights.attention_norm.view(),
                       .eps = eps,
                       .layer = layer,
                       .weights = &weights.qkv,
                       .product = task.qkv,
                       .qkv = &task})) {
    worker.lap(StepOp::kQkvMatmul, layer);
    return;
  }
  ops.norm(residual, weights.attention_norm.view(), eps, layer, normed);
  worker.lap(StepOp::kInputNorm, layer);
  ops.matmul(normed, weights.qkv, task.qkv);
  worker.lap(StepOp::kQkvMatmul, layer);
  ops.finish_qkv(task);
  worker.lap(StepOp::kKvWrite, layer);
}

/// Attention's output matmul onto the residual stream.
void Transformer::attention_out(int64_t layer, const Slab& slab, Worker& worker) {
  const ModelConfig& config = model_.config();
  const LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  const auto eps = static_cast<float>(config.rms_eps);
  RowOps& ops = *worker.ops;
  const TensorView residual = rows_of(residual_.view(), slab.first, slab.count);
  const TensorView attended = flat(rows_of(attended_.view(), slab.first, slab.count));

  if (config.post_norms) {
    const TensorView added = rows_of(worker.added.view(), 0, slab.count);
    ops.matmul(attended, weights.attention_out, added);
    worker.lap(StepOp::kOutputMatmul, layer);
    ops.add_normed(added, weights.post_attention_norm.view(), eps, residual);
  } else {
    ops.matmul_add(attended, weights.attention_out, residual);
    worker.lap(StepOp::kOutputMatmul, layer);
  }
  if (!weights.attention_out_bias.empty()) {
    ops.add_bias(weights.attention_out_bias.view(), residual);
  }
}

/// The norm and the gated mlp, or a mixture of them, onto the residual stream.
void Transformer::mlp(int64_t layer, const Slab& slab, Worker& worker) {
  const ModelConfig& config = model_.config();
  const LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  const GateFunction function = gate_function(config.activation);
  const auto eps = static_cast<float>(config.rms_eps);
  RowOps& ops = *worker.ops;
  const TensorView residual = rows_of(residual_.view(), slab.first, slab.count);
  const TensorView normed = rows_of(worker.normed.view(), 0, slab.count);
  const auto norm = [&] {
    ops.norm(residual, weights.mlp_norm.view(), eps, layer + 1, normed);
    worker.lap(StepOp::kMlpNorm, layer);
  };
  if (config.num_experts > 0) {
    norm();
    MoeTask task;
    task.normed = normed;
    task.router = &weights.router;
    task.gate_up = &weights.experts_gate_up;
    task.down = &weights.experts_down;
    task.router_bias = weights.router_bias.view();
    task.gate_up_bias = weights.experts_gate_up_bias.view();
    task.down_bias = weights.experts_down_bias.view();
    task.top_k = config.experts_per_token;
    task.normalise = config.normalise_experts;
    task.function = function;
    task.residual = residual;
    ops.moe(task);
    worker.lap(StepOp::kExperts, layer);
    return;
  }
  const TensorView gate_up = rows_of(worker.gate_up.view(), 0, slab.count);
  const TensorView activated = rows_of(worker.activated.view(), 0, slab.count);

  if (ops.run_one_row({.residual = residual,
                       .norm_weight = weights.mlp_norm.view(),
                       .eps = eps,
                       .layer = layer + 1,
                       .weights = &weights.gate_up,
                       .product = gate_up,
                       .function = function,
                       .activated = activated})) {
    worker.lap(StepOp::kGateUpMatmul, layer);
  } else {
    norm();
    ops.matmul(normed, weights.gate_up, gate_up);
    worker.lap(StepOp::kGateUpMatmul, layer);
    ops.activate(function, gate_up, activated);
    worker.lap(StepOp::kActivation, layer);
  }
  if (config.post_norms) {
    const TensorView added = rows_of(worker.added.view(), 0, slab.count);
    ops.matmul(activated, weights.down, added);
    worker.lap(StepOp::kDownMatmul, layer);
    ops.add_normed(added, weights.post_mlp_norm.view(), eps, residual);
    worker.lap(StepOp::kResidualAdd, layer);
  } else {
    ops.matmul_add(activated, weights.down, residual);
    worker.lap(StepOp::kDownMatmul, layer);
  }
}

AppendKvTask Transformer::append_task(const ForwardStep& step, int64_t layer) {
  const auto rows_of_step = [&](const Tensor& page) {  // [rows, num_kv_heads, head_dim]
    TensorView rows = page.view();
    rows.rank = 3;
    rows.shape = {num_rows_, page.view().shape[1], page.view().shape[3]};
    rows.stride = {page.view().stride[2], page.view().stride[1], 1};
    return rows;
  };
  AppendKvTask task;
  task.k = rows_of_step(new_k_);
  task.v = rows_of_step(new_v_);
  task.position = input_.position();
  task.to = step.cache->kv(layer);
  task.to.page_table = input_.page_table();
  task.to.page_table_stride = input_.page_table_stride();
  task.only_rows_are_new = step.is_decode;  // input_ was written before the step
  return task;
}

const TensorView& Transformer::rounded_queries() {
  if (rounded_q_.empty()) return q_.view();
  round_queries(rows_of(q_.view(), 0, num_rows_), rows_of(rounded_q_.view(), 0, num_rows_),
                workers_->context());
  return rounded_q_.view();
}

void Transformer::attend_layer(const ForwardStep& step, int64_t layer) {
  KvView kv = step.cache->kv(layer);
  kv.page_table = input_.page_table();
  kv.page_table_stride = input_.page_table_stride();
  // Local layers see little already: they stay dense.
  const bool is_dense = step.selector == nullptr || model_.config().is_local(layer);
  std::optional<AppendKvTask> append;
  if (!new_k_.empty()) append = append_task(step, layer);
  if (append && !(is_dense && step.is_decode)) {
    append_kv(*append, workers_->context());
    workers_->lap(StepOp::kKvWrite, layer);
    append.reset();
  }
  if (is_dense) {
    attend_dense(step, layer, kv, append ? &*append : nullptr);
  } else {
    attend_sparse(step, layer, kv);
  }
}

/// Rows of dense attention between two looks at the cancel flag: a large chunk far into a prompt is
/// seconds of work on a CPU.
int64_t Transformer::rows_per_piece(const ForwardStep& step) const {
  constexpr int64_t kLeastRows = 512;
  const ModelConfig& config = model_.config();
  const double flops_per_row = 4.0 * static_cast<double>(config.num_q_heads * config.head_dim) *
                               static_cast<double>(step.position + num_rows_);
  return std::max(kLeastRows, static_cast<int64_t>(workers_->flops_per_piece() / flops_per_row) /
                                  kLeastRows * kLeastRows);
}

void Transformer::attend_dense(const ForwardStep& step, int64_t layer, const KvView& kv,
                               const AppendKvTask* append) {
  const ModelConfig& config = model_.config();
  const int64_t piece_rows = rows_per_piece(step);
  const TensorView& q = step.is_decode ? q_.view() : rounded_queries();
  for (int64_t piece = 0; piece < input_.num_pieces(); ++piece) {
    if (step.check_cancel) step.check_cancel();
    const int64_t row = piece * piece_rows;
    const int64_t count = std::min(piece_rows, num_rows_ - row);
    AttentionParams params;
    params.q = rows_of(q, row, count);
    params.kv = kv;
    params.batch = input_.piece(piece);
    params.out = rows_of(attended_.view(), row, count);
    params.softmax_scale = static_cast<float>(config.softmax_scale);
    params.only_last_key_is_new = step.is_decode;  // input_ was written before the step
    params.value_share = step.value_share;
    params.append = append;
    if (config.is_local(layer)) params.window_left = config.sliding_window - 1;
    params.sinks = model_.weights().layers[static_cast<size_t>(layer)].sinks.view();
    attend(params, workers_->context());
  }
  workers_->lap(num_rows_ == 1 ? StepOp::kDecodeAttention : StepOp::kDenseAttention, layer);
}

void Transformer::attend_sparse(const ForwardStep& step, int64_t layer, const KvView& kv) {
  if (step.check_cancel) step.check_cancel();
  AttentionParams params;
  params.selection = &select_layer(step, layer, kv);  // by q before it is rounded
  params.q = rows_of(rounded_queries(), 0, num_rows_);
  params.kv = kv;
  params.batch = input_.batch();
  params.out = rows_of(attended_.view(), 0, num_rows_);
  params.value_share = step.value_share;
  params.softmax_scale = static_cast<float>(model_.config().softmax_scale);
  params.sinks = model_.weights().layers[static_cast<size_t>(layer)].sinks.view();
  // Not in layer 0: its keys and values know their token alone, so that a row's attention goes to
  // tokens like one another, of which those it reads are a better sample than a mean of a block.
  if (step.periphery && layer > 0) {
    params.periphery.k_mean = step.cache->stats(layer).centroid;
    params.periphery.v_mean = step.cache->stats(layer).v_mean;
  }
  attend(params, workers_->context());
  workers_->lap(StepOp::kSparseAttention, layer);
}

bool Transformer::writes_stats(const ForwardStep& step, int64_t layer) {
  return step.selector != nullptr && !model_.config().is_local(layer) && num_rows_ > 1 &&
         new_k_.empty() &&
         workers_->first().ops->has_page_stats(model_.config().head_dim,
                                               step.cache->shape().page_size);
}

/// Statistics of the pages that have none yet, then the lists of the step's query blocks.
const BlockSelectionView& Transformer::select_layer(const ForwardStep& step, int64_t layer,
                                                    const KvView& kv) {
  const BlockStatsView& stats = step.cache->stats(layer);
  const int64_t end_key = step.position + (writes_stats(step, layer) ? 0 : num_rows_);
  const int64_t end_block = end_key / step.selector->block_size;
  compute_block_stats(kv, 0, step.num_stats_pages, end_block, 0, stats, workers_->context());
  workers_->lap(StepOp::kBlockStatistics, layer);

  SelectorParams params;
  params.q = rows_of(q_.view(), 0, num_rows_);
  params.kv = kv;
  params.batch = input_.batch();
  params.stats = stats;
  params.softmax_scale = static_cast<float>(model_.config().softmax_scale);
  params.prompt_lens = input_.prompt_len();
  params.settings = settings_of_layer(*step.selector, step.layer_budgets, layer);
  const BlockSelectionView& selection = selection_->select(params);
  workers_->lap(StepOp::kSelection, layer);
  if (observer_ != nullptr) observer_->selected(layer, params, selection);
  return selection;
}

void Transformer::check_finite() {
  const int64_t layer = workers_->non_finite_layer();
  if (layer < 0) return;
  if (layer == model_.config().num_layers) {
    fail(ErrorCode::kInvalidFile, "{}: the output of the last layer holds NaN or infinity",
         model_.path());
  }
  fail(ErrorCode::kInvalidFile, "{}: the input of layer {} holds NaN or infinity", model_.path(),
       layer);
}

void Transformer::count_attention(const ForwardStep& step) {
  const ModelConfig& config = model_.config();
  const StepRows rows{step.position, num_rows_};
  const int64_t element_bytes = dtype_bytes(step.cache->shape().element());
  const std::vector<SelectionLengths> selections = selection_->take_lengths();
  size_t next_selection = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool is_local = config.is_local(layer);
    if (step.selector == nullptr || is_local) {
      count_dense_attention(config, rows, is_local ? config.sliding_window - 1 : -1, element_bytes,
                            &report_.work);
      continue;
    }
    const SelectionLengths& lengths = selections.at(next_selection++);
    const int64_t block_size = step.selector->block_size;
    count_sparse_attention(config, rows, block_size, lengths, element_bytes, &report_.work);
    report_.forced_pairs += lengths.forced_pairs;
    report_.non_finite_pairs += lengths.non_finite_pairs;
    report_.skipped_pairs += lengths.skipped_pairs;
    const int64_t first_block = step.position / block_size;
    const int64_t end_block = ceil_div(step.position + num_rows_, block_size);
    for (int64_t head = 0; head < config.num_q_heads; ++head) {
      const auto entry = static_cast<size_t>(layer * config.num_q_heads + head);
      for (int64_t block = first_block; block < end_block; ++block) {
        const int64_t list = head * lengths.num_q_blocks + block - first_block;
        const int64_t kept = lengths.len[static_cast<size_t>(list)];
        report_.causal_pairs += block + 1;
        report_.kept_pairs += kept;
        report_.head_causal[entry] += block + 1;
        report_.head_kept[entry] += kept;
      }
    }
  }
  report_.selection_scratch_bytes =
      std::max(report_.selection_scratch_bytes, selection_->size_bytes());
  report_.selection_note = selection_->note();
}

void Transformer::report_timings() {
  for (const OpTiming& timing : workers_->take_timings()) {
    if (double* sum = sum_of(timing.op, report_)) *sum += timing.seconds;
    if (observer_ != nullptr) observer_->record(timing);
  }
}

}  // namespace fovea
