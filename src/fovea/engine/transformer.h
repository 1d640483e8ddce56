// The way of tokens through the layers. Read forward() in transformer.cc from top to bottom: it is
// the way of a prompt in docs/architecture.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/attention/append_kv.h"
#include "fovea/engine/kv_cache.h"
#include "fovea/engine/model.h"
#include "fovea/engine/session.h"
#include "fovea/engine/step_input.h"
#include "fovea/engine/step_observer.h"
#include "fovea/engine/workers.h"
#include "fovea/ops/rope.h"
#include "fovea/selector/block_selector.h"
#include "fovea/selector/selection_buffer.h"

namespace fovea {

/// One step: some tokens of one sequence, and what they attend to.
struct ForwardStep {
  std::span<const int32_t> tokens;
  int64_t position = 0;  // of the first token; keys before it are in the pages
  KvCache* cache = nullptr;
  std::span<const int32_t> page_table;         // pages for all positions up to the last token's
  const SelectorSettings* selector = nullptr;  // null: dense
  std::span<const float> layer_budgets;        // as AttentionSettings has them
  int64_t num_stats_pages = 0;  // pages from the start whose statistics are computed already
  bool periphery = false;
  float value_share = 1;   // of decode, as AttentionSettings has it
  int64_t prompt_len = 0;  // of the whole prompt, which places the dense tail
  bool is_decode = false;
  std::optional<Draw> draw;  // of decode: the next token is drawn on the device
  StepObserver* observer = nullptr;
  /// Called after each layer with layers done; may throw to stop the step.
  std::function<void(int64_t layers_done)> after_layer;
  /// Called between pieces of work shorter than a second, by any thread, also by two at once; may
  /// throw to stop the step.
  std::function<void()> check_cancel;
};

/// Sums over the steps since reset_report(); times in seconds.
struct ForwardReport {
  double attention_s = 0, selection_s = 0, matmul_s = 0;
  WorkDone work;
  int64_t causal_pairs = 0, kept_pairs = 0, forced_pairs = 0, non_finite_pairs = 0,
          skipped_pairs = 0;
  /// Kept and causal pairs of each layer and head, [num_layers, num_q_heads]; causal 0 where dense.
  std::vector<int64_t> head_kept, head_causal;
  int64_t selection_scratch_bytes = 0;
  std::string selection_note;  // as SelectionBuffer::note()
};

/// Holds the buffers of a step and computes it, on the model's device.
class Transformer {
 public:
  /// With `kv_codes`, the steps' caches hold them.
  Transformer(const Model& model, int64_t max_rows, std::optional<DType> kv_codes = {});
  ~Transformer();

  /// Runs all layers; writes K and V into the pages; for decode computes the row's logits as well,
  /// and draws the next token where `step.draw` is given.
  /// Throws kInvalidFile naming the layer whose input holds NaN or Inf, and what the callbacks
  /// throw.
  void forward(const ForwardStep& step);

  /// Logits [vocab_size] of the last step, one of decode; valid until the next. Where a token was
  /// drawn, they come from the device only now.
  std::span<const float> decode_logits();

  /// The token that the last step drew. Throws kInvalidArgument when its logits hold a NaN.
  int32_t drawn_token() const;

  /// Logits [num_rows, vocab_size] of rows [first_row, first_row + num_rows) of the last step, in
  /// memory of the CPU.
  void logits(int64_t first_row, int64_t num_rows, float* out);

  /// Rates what follows each of rows [0, targets.size()) of the last step. `check_cancel` as in
  /// ForwardStep.
  void score(std::span<const int32_t> targets, TokenScore* out,
             const std::function<void()>& check_cancel);

  int64_t max_rows() const { return max_rows_; }
  const ForwardReport& report() const { return report_; }
  void reset_report();
  int64_t activation_bytes() const;
  /// What activation_bytes() will be for steps of up to `max_rows`, a multiple of kSlabRows.
  static int64_t planned_bytes(const ModelConfig& config, DType compute_dtype,
                               const Context& context, std::optional<DType> kv_codes,
                               int64_t max_rows);

 private:
  void run_layers(const ForwardStep& step);
  /// Logits of one row of the step.
  void output(int64_t row);
  /// Starts the copy of logits_ to staged_logits_.
  void fetch_logits();
  /// Draws a token by logits_ and starts its copy to staged_token_.
  void draw_token();
  void attention_in(const ForwardStep& step, int64_t layer, const Slab& slab, Worker& worker);
  void attention_out(int64_t layer, const Slab& slab, Worker& worker);
  void mlp(int64_t layer, const Slab& slab, Worker& worker);
  /// How the step's K and V join the pages; f8 only.
  AppendKvTask append_task(const ForwardStep& step, int64_t layer);
  void attend_layer(const ForwardStep& step, int64_t layer);
  /// Queries as attention reads them.
  const TensorView& rounded_queries();
  void attend_dense(const ForwardStep& step, int64_t layer, const KvView& kv,
                    const AppendKvTask* append);
  void attend_sparse(const ForwardStep& step, int64_t layer, const KvView& kv);
  /// Whether what writes the step's K and V computes the statistics of the pages that they fill.
  bool writes_stats(const ForwardStep& step, int64_t layer);
  const BlockSelectionView& select_layer(const ForwardStep& step, int64_t layer, const KvView& kv);
  int64_t rows_per_piece(const ForwardStep& step) const;
  void check_finite();
  /// Adds what the layers' attention did.
  void count_attention(const ForwardStep& step);
  /// Tells the observer of the pieces that ended, and adds them up.
  void report_timings();

  const Model& model_;
  int64_t max_rows_ = 0;
  int64_t num_rows_ = 0;  // of the step in progress
  std::unique_ptr<Workers> workers_;
  StepInput input_;
  Tensor residual_;  // f32 [max_rows, model_dim]
  Tensor q_;         // [max_rows, num_q_heads, head_dim], compute type
  Tensor attended_;  // the same shape
  // f8 only: the step's K and V before they are rounded, as one page [1, num_kv_heads, max_rows,
  // head_dim] of which row 0 is the step's first; q rounded; and a zero, its page and position.
  Tensor new_k_, new_v_, rounded_q_, zero_;
  // f32 [1, vocab_size], made when first asked for: on the device, and where the CPU reads them.
  Tensor logits_;
  std::shared_ptr<void> staged_logits_;
  bool has_fetched_logits_ = false;  // of the last step
  Tensor token_;                     // i32 [1], drawn
  std::shared_ptr<void> staged_token_;
  RopeTable rope_, rope_local_;
  std::unique_ptr<SelectionBuffer> selection_;
  StepObserver* observer_ = nullptr;  // of the last step
  ForwardReport report_;
};

}  // namespace fovea
