// One sequence being read and continued by a model.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fovea/engine/model.h"
#include "fovea/ops/sampling.h"
#include "fovea/selector/block_selector.h"

namespace fovea {

class KvCache;       // engine/kv_cache.h
class StepObserver;  // engine/step_observer.h

/// How the layers attend.
struct AttentionSettings {
  std::optional<SelectorSettings> selector;  // empty: dense
  /// Each layer's budget over the selector's density: one positive number for each layer of the
  /// model (those of layers that attend locally are not used); empty: 1 for all. A layer's density
  /// ends at 1.
  std::vector<float> layer_budgets;
  /// Blocks that a row does not read are seen through their means, in all layers but the first.
  bool periphery = false;
  /// Prompts with fewer tokens are read densely, because sparse would not be faster: 0 for never,
  /// -1 for the length at which the two were measured to cost the same. The selector's own
  /// min_sparse_len counts as well.
  int64_t min_sparse_len = -1;
  /// Keys and values are kept as these codes, with a scale for each page and head; empty: in the
  /// model's type. f8e4m3: queries are rounded to it too, a GPU then multiplies in it, and the CPU
  /// computes with the same numbers in its own type. i8, the CPU's only, rounds more finely: seven
  /// bits below a page's largest number, where E4M3 has three below each. Blocks must be multiples
  /// of 16 tokens; on a GPU of 128, where head_dim must be 128.
  std::optional<DType> kv_codes;
  /// Whether decode reads the blocks that the selector chooses for its one query, wherever a prompt
  /// of that length would be read sparsely; if not, it reads all keys.
  bool sparse_decode = false;
  /// In (0, 1]: share of each head's attention whose values decode reads, see AttentionParams; on a
  /// GPU 1 only.
  float value_share = 1;
};

struct SessionOptions {
  AttentionSettings attention;
  /// Tokens per prefill step, rounded up to a multiple of the block size; 0: the default.
  int64_t chunk_size = 0;
  /// Tokens (prompt and answer) that the session's own cache has room for; 0: the model's context
  /// length. Memory is taken as it fills.
  int64_t max_len = 0;
  /// Pages to share with other sessions of the same model, which makes prefix hits possible; null:
  /// the session makes its own.
  std::shared_ptr<KvCache> cache;
  /// Bytes of its device's memory that the session may take; 0: what is free.
  int64_t memory_limit = 0;
  /// Is told of each step and where its time went; outlives the session. Null: nobody.
  StepObserver* observer = nullptr;
};

/// Where a prefill's time went; the parts add up to total_ms.
struct PhaseTimes {
  double total_ms = 0;
  double attention_ms = 0;
  double selection_ms = 0;  // block statistics included
  double matmul_ms = 0;
  double other_ms = 0;  // norms, rope, activations, copies, embedding
};

/// What was multiplied and read, counted from the shapes of the calls to matmul and attention.
struct WorkDone {
  int64_t matmul_flops = 0;     // a multiply-add is two; projections, MLPs, LM head
  int64_t attention_flops = 0;  // q k^T and the weighted sum, over the (query, key) pairs kept
  int64_t weight_bytes = 0;     // matrices as they lie in memory, once a step
  int64_t kv_bytes = 0;         // K and V within reach of some query, once a layer and step
};

struct PrefillReport {
  int64_t num_tokens = 0;         // of the prompt
  int64_t num_cached_tokens = 0;  // of these, taken from the prefix cache
  int64_t chunk_size = 0;
  PhaseTimes times;
  WorkDone work;
  /// Whether layers attended sparsely, and if not though asked for, why ("prompt of 900 tokens is
  /// below the break-even length 2048"), or how when that is worth a word: a GPU's blocks may have
  /// been selected on the CPU.
  bool sparse = false;
  std::string note;

  // Accounting over the layers that select, see BlockSelection; zeros when dense.
  int64_t causal_pairs = 0;
  int64_t kept_pairs = 0;
  int64_t forced_pairs = 0;
  int64_t non_finite_pairs = 0;
  int64_t skipped_pairs = 0;
  /// Density of each layer and head, [num_layers, num_q_heads] row-major; 1 where dense.
  std::vector<double> head_density;

  int64_t kv_bytes = 0;                 // K and V pages in use by the sequence
  int64_t stats_bytes = 0;              // statistics beside them
  int64_t selection_scratch_bytes = 0;  // most that lists of one call took
  int64_t activation_bytes = 0;         // buffers of one chunk

  double density() const;       // kept share of the causal pairs; 1 when dense
  double forced_share() const;  // forced share of the kept pairs; 0 when dense
};

struct PrefillOptions {
  /// Called after each layer of each chunk with the work done so far, 0 ... 1.
  std::function<void(double share)> progress;
  /// Looked at between steps shorter than a second; when true, prefill throws Cancelled.
  const std::atomic<bool>* cancel = nullptr;
  /// Rows of logits to keep, those of the last positions; at least 1.
  int64_t num_logit_rows = 1;
};

/// Thrown by a prefill whose cancel flag was raised; the session is then as it was before.
class Cancelled : public std::exception {
 public:
  const char* what() const noexcept override { return "cancelled"; }
};

/// What score() says of one position: how the model rates the token that follows it.
struct TokenScore {
  int32_t best_token = 0;    // the model's own choice
  float best_logit = 0;      // its logit
  float margin = 0;          // best logit minus the second best
  float target_logprob = 0;  // natural log-probability of the token that follows in the text
};

/// Not safe for use by two threads at once.
class Session {
 public:
  /// Throws kInvalidArgument on settings that break a rule; on a GPU kOutOfMemory ("needs X, has Y,
  /// try ...") when cache, buffers and scratch of prompts of max_len do not fit: nothing is taken
  /// before.
  Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Appends `tokens` and returns logits [num_logit_rows, vocab_size] of the last positions, valid
  /// until the next call.
  ///
  /// Throws kInvalidArgument on an empty prompt, an unknown token, or more tokens than the context
  /// length or the cache has room for; kOutOfMemory before any work when pages and buffers do not
  /// fit; kInvalidFile when activations turn NaN (names the layer); Cancelled.
  std::span<const float> prefill(std::span<const int32_t> tokens,
                                 const PrefillOptions& options = {});

  /// Appends one token and returns logits [vocab_size], valid until the next call. Errors as
  /// prefill.
  std::span<const float> decode(int32_t token);

  /// Appends one token and draws the next by its logits, where these are: on a GPU a token comes
  /// back and no logits. Errors as decode; kInvalidArgument when logits hold a NaN.
  int32_t decode(int32_t token, Sampler& sampler);
  /// Logits [vocab_size] of the last decode(), valid until the next call. Throws kInvalidArgument
  /// when another call came after it.
  std::span<const float> decode_logits();

  /// Appends `tokens` as prefill does and rates each position's next token; the result has
  /// tokens.size() - 1 entries. Holds logits of a few rows at a time only.
  std::vector<TokenScore> score(std::span<const int32_t> tokens,
                                const PrefillOptions& options = {});

  /// Forgets the sequence; full pages stay behind for prefix hits when the cache is shared.
  void reset();

  /// Tokens in the sequence, and how many more fit.
  int64_t length() const;
  int64_t room() const;
  const std::vector<int32_t>& tokens() const;
  const Model& model() const;
  StepObserver* observer() const;
  /// Of the last prefill() or score().
  const PrefillReport& report() const;
  /// Kept share of the causal pairs over the decode steps since; 1 when dense.
  double decode_density() const;
  /// Since the last prefill() or score() began: decode() adds to it.
  WorkDone work() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea
