#include "fovea/engine/transformer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "fovea/attention/attention.h"
#include "fovea/base/checked_math.h"
#include "fovea/base/parallel.h"
#include "fovea/engine/weights.h"
#include "fovea/ops/elementwise.h"
#include "fovea/ops/gated_activation.h"
#include "fovea/ops/rms_norm.h"
#include "fovea/ops/sampling.h"

namespace fovea {
namespace {

using Clock = StepClock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr bool is_slab_matmul(StepOp op) {
  return op == StepOp::kQkvMatmul || op == StepOp::kOutputMatmul || op == StepOp::kGateUpMatmul ||
         op == StepOp::kDownMatmul;
}

/// Rows [first, first + count) of a dense [rows, ...] tensor.
TensorView rows_of(const TensorView& view, int64_t first, int64_t count) {
  TensorView part = view;
  part.data = view.as<std::byte>() + first * view.stride[0] * dtype_bytes(view.dtype);
  part.shape[0] = count;
  return part;
}

/// Heads [first, first + count) of [rows, width], as [rows, count, head_dim].
TensorView heads_of(const TensorView& view, int64_t first, int64_t count, int64_t head_dim) {
  TensorView part = view;
  part.data = view.as<std::byte>() + first * head_dim * dtype_bytes(view.dtype);
  part.rank = 3;
  part.shape = {view.shape[0], count, head_dim};
  part.stride = {view.stride[0], head_dim, 1};
  return part;
}

/// [rows, heads, head_dim] as [rows, heads * head_dim].
TensorView flat(const TensorView& view) {
  return make_view(view.data, view.dtype, {view.shape[0], view.shape[1] * view.shape[2]});
}

/// Slots [first_slot, first_slot + count) of a page of [pages, heads, slots, head_dim], as
/// [count, heads, head_dim].
TensorView page_slots(const TensorView& pages, int32_t page, int64_t first_slot, int64_t count) {
  TensorView part = pages;
  part.data = pages.as<std::byte>() +
              (page * pages.stride[0] + first_slot * pages.stride[2]) * dtype_bytes(pages.dtype);
  part.rank = 3;
  part.shape = {count, pages.shape[1], pages.shape[3]};
  part.stride = {pages.stride[2], pages.stride[1], 1};
  return part;
}

/// How `logits` rate `target`.
TokenScore rate_token(std::span<const float> logits, int32_t target) {
  TokenScore score;
  score.best_token = argmax(logits);
  score.best_logit = logits[static_cast<size_t>(score.best_token)];
  float second = -std::numeric_limits<float>::infinity();
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += std::exp(static_cast<double>(logits[i] - score.best_logit));
    if (static_cast<int32_t>(i) != score.best_token) second = std::max(second, logits[i]);
  }
  score.margin = score.best_logit - second;
  score.target_logprob = static_cast<float>(
      static_cast<double>(logits[static_cast<size_t>(target)] - score.best_logit) - std::log(sum));
  return score;
}

/// FLOPs of rows through a matrix.
int64_t matmul_flops(int64_t rows, const PackedWeights& weights) {
  return 2 * rows * weights.out_features() * weights.in_features();
}

/// Keys that rows of a query block see in their own, the diagonal, block: 1, 2, 3 ...
int64_t diagonal_pairs(int64_t first_slot, int64_t rows) {
  return rows * (2 * first_slot + rows + 1) / 2;
}

/// (query, key) pairs, all heads together, that one causal sequence's lists keep.
int64_t listed_pairs(const BlockSelectionView& selection, int64_t q_len, int64_t kv_len) {
  const int64_t block_size = selection.block_size;
  const int64_t first = first_q_block(q_len, kv_len, block_size);
  int64_t pairs = 0;
  for (int64_t list = 0; list < selection.num_q_heads * selection.num_q_blocks; ++list) {
    const int64_t q_block = first + list % selection.num_q_blocks;
    const int64_t first_row = std::max(q_block * block_size, kv_len - q_len);
    const int64_t rows = std::min((q_block + 1) * block_size, kv_len) - first_row;
    const int64_t len = selection.len[list];
    const bool diagonal = len > 0 && selection.blocks[selection.begin[list] + len - 1] == q_block;
    pairs += (len - (diagonal ? 1 : 0)) * rows * block_size;
    if (diagonal) pairs += diagonal_pairs(first_row - q_block * block_size, rows);
  }
  return pairs;
}

/// Adds a call of causal attention on one sequence.
void count_attention(const AttentionParams& params, WorkDone* work) {
  const int64_t q_len = params.q.shape[0];
  const int64_t kv_len = params.batch.kv_lens[0];
  const int64_t reach = params.window_left >= 0 ? params.window_left + 1 : kv_len;
  int64_t pairs = 0;
  if (params.selection != nullptr) {
    pairs = listed_pairs(*params.selection, q_len, kv_len);
  } else {
    for (int64_t row = 0; row < q_len; ++row) pairs += std::min(kv_len - q_len + row + 1, reach);
    pairs *= params.num_q_heads();
  }
  work->attention_flops += 4 * pairs * params.head_dim();
  work->kv_bytes += 2 * std::min(kv_len, q_len - 1 + reach) * params.kv.num_kv_heads() *
                    params.head_dim() * dtype_bytes(params.kv.k.dtype);
}

}  // namespace

/// What one thread needs for a slab.
struct Transformer::Worker {
  Worker(const ModelConfig& config, DType dtype)
      : normed(dtype, {kSlabRows, config.model_dim}),
        qkv(DType::kF32,
            {kSlabRows, (config.num_q_heads + 2 * config.num_kv_heads) * config.head_dim}),
        added(DType::kF32, {kSlabRows, config.model_dim}),
        gate_up(DType::kF32, {kSlabRows, 2 * config.mlp_dim}),
        activated(dtype, {kSlabRows, config.mlp_dim}) {}

  Tensor normed;     // [slab, model_dim], compute type: input of the next matmul
  Tensor qkv;        // f32
  Tensor added;      // f32 [slab, model_dim]: what goes onto the residual
  Tensor gate_up;    // f32
  Tensor activated;  // compute type
  MatmulScratch scratch;
  int64_t matmul_flops = 0;

  /// The time since the last lap was `op`.
  void lap(StepOp op) {
    const auto now = Clock::now();
    op_s[static_cast<size_t>(op)] += std::chrono::duration<double>(now - lap_start).count();
    lap_start = now;
  }
  Clock::time_point lap_start;
  std::array<double, kNumStepOps> op_s{};  // since the last for_each_slab
};

Transformer::Transformer(const Model& model, int64_t max_rows)
    : model_(model), max_rows_(ceil_div(max_rows, kSlabRows) * kSlabRows) {
  const ModelConfig& config = model.config();
  residual_ = Tensor(DType::kF32, {max_rows_, config.model_dim});
  q_ = Tensor(model.compute_dtype(), {max_rows_, config.num_q_heads, config.head_dim});
  attended_ = Tensor(model.compute_dtype(), {max_rows_, config.num_q_heads, config.head_dim});
  rope_ = RopeTable(config.head_dim, config.rope_theta, config.rope_factors);
  rope_local_ = RopeTable(config.head_dim, config.rope_theta_local, {});
  for (int32_t i = 0; i < model.context().num_threads; ++i) {
    workers_.push_back(std::make_unique<Worker>(config, model.compute_dtype()));
  }
  reset_report();
}

Transformer::~Transformer() = default;

int64_t Transformer::activation_bytes() const {
  int64_t bytes = residual_.size_bytes() + q_.size_bytes() + attended_.size_bytes() +
                  rope_.size_bytes() + rope_local_.size_bytes();
  for (const auto& worker : workers_) {
    bytes += worker->normed.size_bytes() + worker->qkv.size_bytes() + worker->added.size_bytes() +
             worker->gate_up.size_bytes() + worker->activated.size_bytes();
  }
  return bytes;
}

void Transformer::reset_report() {
  report_ = {};
  const auto heads = static_cast<size_t>(model_.config().num_layers * model_.config().num_q_heads);
  report_.head_kept.assign(heads, 0);
  report_.head_causal.assign(heads, 0);
  for (const auto& worker : workers_) {  // a step that was cancelled left its sums
    worker->matmul_flops = 0;
    worker->op_s = {};
  }
}

void Transformer::forward(const ForwardStep& step) {
  num_rows_ = static_cast<int64_t>(step.tokens.size());
  check_argument(num_rows_ > 0 && num_rows_ <= max_rows_,
                 "a step must have 1 ... {} tokens, got {}", max_rows_, num_rows_);
  const ModelConfig& config = model_.config();
  observer_ = step.observer;
  const auto start = Clock::now();
  rope_.fill(step.position, num_rows_, model_.context());
  if (config.sliding_window > 0) {
    rope_local_.fill(step.position, num_rows_, model_.context());
  }
  record(StepOp::kRopeTable, -1, start);
  non_finite_layer_ = -1;

  // Between two layers' attention, rows need nothing of each other: a slab goes through the end of
  // one layer and the beginning of the next while it is in a core's cache.
  const auto check_cancel = [&] {
    if (step.check_cancel) step.check_cancel();
  };
  for_each_slab(-1, [&](const Slab& slab, Worker& worker) {
    check_cancel();
    embed(step, slab, worker);
    attention_in(step, 0, slab, worker);
  });
  for (const LayerWeights& layer : model_.weights().layers) {
    report_.work.weight_bytes += layer.qkv.size_bytes() + layer.attention_out.size_bytes() +
                                 layer.gate_up.size_bytes() + layer.down.size_bytes();
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    attend_layer(step, layer);
    for_each_slab(layer, [&](const Slab& slab, Worker& worker) {
      check_cancel();
      attention_out(layer, slab, worker);
      if (layer + 1 < config.num_layers) attention_in(step, layer + 1, slab, worker);
    });
    if (non_finite_layer_ >= 0) {
      fail(ErrorCode::kInvalidFile, "{}: the input of layer {} holds NaN or infinity",
           model_.path(), non_finite_layer_.load());
    }
    if (step.after_layer) step.after_layer(layer + 1);
  }
}

/// Rows of the embedding matrix onto the residual stream.
void Transformer::embed(const ForwardStep& step, const Slab& slab, Worker& worker) {
  const ModelConfig& config = model_.config();
  const ModelFile& file = model_.weights().file;
  const ModelTensor& table = file.tensor("token_embedding");
  const auto scale = static_cast<float>(config.embedding_scale);
  for (int64_t row = slab.first; row < slab.first + slab.count; ++row) {
    const std::span<float> out(residual_.as<float>() + row * config.model_dim,
                               static_cast<size_t>(config.model_dim));
    file.read_rows(table, step.tokens[static_cast<size_t>(row)], 1, out);
    if (scale != 1.0f) {
      for (float& value : out) value *= scale;
    }
  }
  worker.lap(StepOp::kEmbedding);
}

/// Norm, q/k/v, RoPE; q into its buffer, k and v into the pages.
void Transformer::attention_in(const ForwardStep& step, int64_t layer, const Slab& slab,
                               Worker& worker) {
  const ModelConfig& config = model_.config();
  const LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  const auto eps = static_cast<float>(config.rms_eps);
  const TensorView residual = rows_of(residual_.view(), slab.first, slab.count);
  const TensorView normed = rows_of(worker.normed.view(), 0, slab.count);
  const TensorView qkv = rows_of(worker.qkv.view(), 0, slab.count);

  if (!rms_norm(residual, weights.attention_norm.view(), eps, normed)) non_finite_layer_ = layer;
  worker.lap(StepOp::kInputNorm);
  multiply(normed, weights.qkv, qkv, worker);
  worker.lap(StepOp::kQkvMatmul);
  if (config.qkv_bias) add_bias(weights.qkv_bias.view(), qkv);

  const int64_t num_kv_heads = config.num_kv_heads;
  const TensorView q = heads_of(qkv, 0, config.num_q_heads, config.head_dim);
  const TensorView k = heads_of(qkv, config.num_q_heads, num_kv_heads, config.head_dim);
  const TensorView v =
      heads_of(qkv, config.num_q_heads + num_kv_heads, num_kv_heads, config.head_dim);
  if (config.qk_norm) {
    rms_norm(q, weights.q_norm.view(), eps, q);
    rms_norm(k, weights.k_norm.view(), eps, k);
  }
  const RopeTable& table = config.is_local(layer) ? rope_local_ : rope_;
  rope(q, table, slab.first, rows_of(q_.view(), slab.first, slab.count));
  worker.lap(StepOp::kRope);

  const int64_t page_size = step.cache->shape().page_size;
  for (int64_t row = 0; row < slab.count;) {
    const int64_t position = step.position + slab.first + row;
    const int32_t page = step.page_table[static_cast<size_t>(position / page_size)];
    const int64_t slot = position % page_size;
    const int64_t count = std::min(page_size - slot, slab.count - row);
    rope(rows_of(k, row, count), table, slab.first + row,
         page_slots(step.cache->k(layer), page, slot, count));
    convert_rows(rows_of(v, row, count), page_slots(step.cache->v(layer), page, slot, count));
    row += count;
  }
  worker.lap(StepOp::kKvWrite);
}

/// Output matmul and the mlp, each onto the residual stream.
void Transformer::attention_out(int64_t layer, const Slab& slab, Worker& worker) {
  const ModelConfig& config = model_.config();
  const LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  const auto eps = static_cast<float>(config.rms_eps);
  const TensorView residual = rows_of(residual_.view(), slab.first, slab.count);
  const TensorView added = rows_of(worker.added.view(), 0, slab.count);
  const TensorView normed = rows_of(worker.normed.view(), 0, slab.count);
  const TensorView gate_up = rows_of(worker.gate_up.view(), 0, slab.count);
  const TensorView activated = rows_of(worker.activated.view(), 0, slab.count);

  multiply(flat(rows_of(attended_.view(), slab.first, slab.count)), weights.attention_out, added,
           worker);
  worker.lap(StepOp::kOutputMatmul);
  if (config.post_norms) rms_norm(added, weights.post_attention_norm.view(), eps, added);
  add_rows(added, residual);
  rms_norm(residual, weights.mlp_norm.view(), eps, normed);
  worker.lap(StepOp::kMlpNorm);

  multiply(normed, weights.gate_up, gate_up, worker);
  worker.lap(StepOp::kGateUpMatmul);
  gated_activation(
      config.activation == Activation::kSilu ? GateFunction::kSilu : GateFunction::kGeluTanh,
      gate_up, activated);
  worker.lap(StepOp::kActivation);
  multiply(activated, weights.down, added, worker);
  worker.lap(StepOp::kDownMatmul);
  if (config.post_norms) rms_norm(added, weights.post_mlp_norm.view(), eps, added);
  add_rows(added, residual);
  worker.lap(StepOp::kResidualAdd);
}

void Transformer::attend_layer(const ForwardStep& step, int64_t layer) {
  const ModelConfig& config = model_.config();
  const int64_t kv_len = step.position + num_rows_;
  const int64_t q_offsets[2] = {0, num_rows_};
  const RaggedBatch batch{1, q_offsets, &kv_len};
  KvView kv;
  kv.k = step.cache->k(layer);
  kv.v = step.cache->v(layer);
  kv.page_table = step.page_table.data();
  kv.page_table_stride = static_cast<int64_t>(step.page_table.size());
  kv.page_size = step.cache->shape().page_size;
  const TensorView q = rows_of(q_.view(), 0, num_rows_);
  const TensorView out = rows_of(attended_.view(), 0, num_rows_);

  // Local layers see little already: they stay dense.
  if (step.selector == nullptr || config.is_local(layer)) {
    attend_dense(step, layer, q, kv, out);
    return;
  }
  if (step.check_cancel) step.check_cancel();
  select_layer(step, layer, q, kv, batch);

  const auto start = Clock::now();
  const BlockSelectionView selection = selection_.view();
  AttentionParams params;
  params.q = q;
  params.kv = kv;
  params.batch = batch;
  params.out = out;
  params.softmax_scale = static_cast<float>(config.softmax_scale);
  params.selection = &selection;
  if (step.periphery) {
    params.periphery.k_mean = step.cache->stats(layer).centroid;
    params.periphery.v_mean = step.cache->stats(layer).v_mean;
  }
  attend(params, model_.context());
  report_.attention_s += record(StepOp::kSparseAttention, layer, start);
  count_attention(params, &report_.work);
}

/// Statistics of the pages that have none yet, then the lists of the step's query blocks.
void Transformer::select_layer(const ForwardStep& step, int64_t layer, const TensorView& q,
                               const KvView& kv, const RaggedBatch& batch) {
  const BlockStatsView& stats = step.cache->stats(layer);
  const int64_t block_size = step.selector->block_size;
  const int64_t end_block = (step.position + num_rows_) / block_size;
  auto start = Clock::now();
  compute_block_stats(kv, 0, step.num_stats_pages, end_block, 0, stats, model_.context());
  report_.selection_s += record(StepOp::kBlockStatistics, layer, start);

  SelectorParams params;
  params.q = q;
  params.kv = kv;
  params.batch = batch;
  params.stats = stats;
  params.softmax_scale = static_cast<float>(model_.config().softmax_scale);
  params.prompt_lens = &step.prompt_len;
  params.settings = *step.selector;
  start = Clock::now();
  select_blocks(params, model_.context(), selection_);
  report_.selection_s += record(StepOp::kSelection, layer, start);

  report_.causal_pairs += selection_.causal_pairs;
  report_.kept_pairs += selection_.kept_pairs;
  report_.forced_pairs += selection_.forced_pairs;
  report_.non_finite_pairs += selection_.non_finite_pairs;
  const int64_t first_block = step.position / block_size;
  for (int64_t head = 0; head < selection_.num_q_heads; ++head) {
    const auto entry = static_cast<size_t>(layer * selection_.num_q_heads + head);
    for (int64_t i = 0; i < selection_.num_q_blocks; ++i) {
      report_.head_causal[entry] += first_block + i + 1;
      report_.head_kept[entry] +=
          selection_.len[static_cast<size_t>(head * selection_.num_q_blocks + i)];
    }
  }
  const size_t scratch = selection_.begin.capacity() * sizeof(int64_t) +
                         selection_.len.capacity() * sizeof(int32_t) +
                         selection_.blocks.capacity() * sizeof(int32_t);
  report_.selection_scratch_bytes =
      std::max(report_.selection_scratch_bytes, static_cast<int64_t>(scratch));
}

void Transformer::attend_dense(const ForwardStep& step, int64_t layer, const TensorView& q,
                               const KvView& kv, const TensorView& out) {
  const ModelConfig& config = model_.config();
  const auto start = Clock::now();
  // A large chunk far into a prompt is seconds of work: cut it so that a cancel flag is seen soon.
  constexpr double kFlopsPerPiece = 1.5e11;
  constexpr int64_t kLeastRows = 512;
  const double flops_per_row = 4.0 * static_cast<double>(config.num_q_heads * config.head_dim) *
                               static_cast<double>(step.position + num_rows_);
  const int64_t rows_per_piece = std::max(
      kLeastRows, static_cast<int64_t>(kFlopsPerPiece / flops_per_row) / kLeastRows * kLeastRows);
  for (int64_t row = 0; row < num_rows_; row += rows_per_piece) {
    if (step.check_cancel) step.check_cancel();
    const int64_t count = std::min(rows_per_piece, num_rows_ - row);
    const int64_t q_offsets[2] = {0, count};
    const int64_t kv_len = step.position + row + count;
    AttentionParams params;
    params.q = rows_of(q, row, count);
    params.kv = kv;
    params.batch = {1, q_offsets, &kv_len};
    params.out = rows_of(out, row, count);
    params.softmax_scale = static_cast<float>(config.softmax_scale);
    if (config.is_local(layer)) params.window_left = config.sliding_window - 1;
    attend(params, model_.context());
    count_attention(params, &report_.work);
  }
  const StepOp op = num_rows_ == 1 ? StepOp::kDecodeAttention : StepOp::kDenseAttention;
  report_.attention_s += record(op, layer, start);
}

void Transformer::logits(int64_t first_row, int64_t num_rows, float* out) {
  check_argument(first_row >= 0 && num_rows >= 0 && first_row <= num_rows_ - num_rows,
                 "rows [{}, {} + {}) must lie in the last step's {}", first_row, first_row,
                 num_rows, num_rows_);
  const ModelConfig& config = model_.config();
  const Weights& weights = model_.weights();
  const auto eps = static_cast<float>(config.rms_eps);
  Worker& worker = *workers_[0];
  for (int64_t row = 0; row < num_rows; ++row) {
    const TensorView normed = rows_of(worker.normed.view(), 0, 1);
    const auto norm_start = Clock::now();
    if (!rms_norm(rows_of(residual_.view(), first_row + row, 1), weights.output_norm.view(), eps,
                  normed)) {
      fail(ErrorCode::kInvalidFile, "{}: the output of the last layer holds NaN or infinity",
           model_.path());
    }
    record(StepOp::kOutputNorm, -1, norm_start);
    const auto start = Clock::now();
    matmul_row(make_view(normed.data, normed.dtype, {config.model_dim}), weights.output,
               make_view(out + row * config.vocab_size, DType::kF32, {config.vocab_size}),
               model_.context());
    report_.matmul_s += record(StepOp::kLogitsMatmul, -1, start);
    report_.work.matmul_flops += matmul_flops(1, weights.output);
    report_.work.weight_bytes += weights.output.size_bytes();
  }
}

void Transformer::score(std::span<const int32_t> targets, TokenScore* out,
                        const std::function<void()>& check_cancel) {
  const ModelConfig& config = model_.config();
  const Weights& weights = model_.weights();
  constexpr int64_t kRows = 32;  // logits of a few rows at a time: [32, vocab_size] per thread
  const auto num_targets = static_cast<int64_t>(targets.size());
  check_argument(num_targets <= num_rows_, "{} targets for {} rows", num_targets, num_rows_);
  report_.work.matmul_flops += matmul_flops(num_targets, weights.output);
  report_.work.weight_bytes += weights.output.size_bytes();
  std::vector<Tensor> logits(workers_.size());
  parallel_for(model_.context(), ceil_div(num_targets, kRows), [&](int64_t task, int32_t thread) {
    check_cancel();
    Tensor& rows = logits[static_cast<size_t>(thread)];
    Worker& worker = *workers_[static_cast<size_t>(thread)];
    if (rows.view().empty()) rows = Tensor(DType::kF32, {kRows, config.vocab_size});
    const int64_t first = task * kRows;
    const int64_t count = std::min(kRows, num_targets - first);
    const TensorView normed = rows_of(worker.normed.view(), 0, count);
    rms_norm(rows_of(residual_.view(), first, count), weights.output_norm.view(),
             static_cast<float>(config.rms_eps), normed);
    matmul_slab(normed, weights.output, rows_of(rows.view(), 0, count), worker.scratch);
    for (int64_t row = 0; row < count; ++row) {
      const std::span<const float> values(rows.as<float>() + row * config.vocab_size,
                                          static_cast<size_t>(config.vocab_size));
      out[first + row] = rate_token(values, targets[static_cast<size_t>(first + row)]);
    }
  });
}

void Transformer::multiply(const TensorView& in, const PackedWeights& weights,
                           const TensorView& out, Worker& worker) {
  if (num_rows_ == 1) {
    matmul_row(make_view(in.data, in.dtype, {in.shape[1]}), weights,
               make_view(out.data, out.dtype, {out.shape[1]}), model_.context());
  } else {
    matmul_slab(in, weights, out, worker.scratch);
  }
  worker.matmul_flops += matmul_flops(in.shape[0], weights);
}

void Transformer::for_each_slab(int64_t layer,
                                const std::function<void(const Slab&, Worker&)>& body) {
  const auto start = Clock::now();
  const auto timed_body = [&](const Slab& slab, Worker& worker) {
    worker.lap_start = Clock::now();
    body(slab, worker);
  };
  if (num_rows_ == 1) {
    timed_body({0, 1}, *workers_[0]);  // in the calling thread: they meet within each matmul
  } else {
    const auto num_threads = static_cast<int64_t>(workers_.size());
    const int64_t slab_rows =
        padded_slab_rows(std::min(kSlabRows, ceil_div(num_rows_, num_threads)));
    parallel_for(model_.context(), ceil_div(num_rows_, slab_rows),
                 [&](int64_t task, int32_t thread) {
                   const int64_t first = task * slab_rows;
                   timed_body({first, std::min(slab_rows, num_rows_ - first)},
                              *workers_[static_cast<size_t>(thread)]);
                 });
  }

  // Each piece's share of the threads' time, of the time that passed here.
  const double passed_s = seconds_since(start);
  std::array<double, kNumStepOps> op_s{};
  for (const auto& worker : workers_) {
    for (size_t op = 0; op < op_s.size(); ++op) op_s[op] += std::exchange(worker->op_s[op], 0.0);
    report_.work.matmul_flops += std::exchange(worker->matmul_flops, 0);
  }
  const double busy_s = std::accumulate(op_s.begin(), op_s.end(), 0.0);
  double done_s = 0;
  for (size_t i = 0; i < op_s.size(); ++i) {
    if (op_s[i] == 0) continue;
    const auto op = static_cast<StepOp>(i);
    const double seconds = passed_s * op_s[i] / busy_s;
    if (is_slab_matmul(op)) report_.matmul_s += seconds;
    if (observer_ != nullptr) {
      const auto begin = start + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(done_s));
      const int64_t of_layer = op < StepOp::kEmbedding ? layer : layer + 1;
      observer_->record({op, op == StepOp::kEmbedding ? -1 : of_layer, begin, seconds});
    }
    done_s += seconds;
  }
}

double Transformer::record(StepOp op, int64_t layer, StepClock::time_point start) {
  const double seconds = seconds_since(start);
  if (observer_ != nullptr) observer_->record({op, layer, start, seconds});
  return seconds;
}

}  // namespace fovea
