// The measuring loop of `fovea bench`: rivals in turn, a fresh prompt each time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fovea/engine/session.h"

namespace fovea::cli {

struct BenchPlan {
  std::vector<int64_t> lengths;  // tokens of the prompts
  std::vector<std::string> attention_names;
  std::vector<AttentionSettings> attentions;  // beside their names
  int64_t repetitions = 3;
  int64_t agreement_rows = 128;  // last positions over which answers are compared with dense
  int64_t decode_tokens = 32;    // for itl and its agreement
  int64_t chunk_size = 0;
};

/// How the next-token distributions of the last positions differ from dense's.
struct Agreement {
  int64_t num_rows = 0;
  double top1_share = 0;  // positions at which the most probable token is the same
  double mean_kl = 0;     // nats, KL(dense || this)
};

/// One length with one attention.
struct BenchRow {
  int64_t length = 0;
  std::string attention;
  std::vector<double> ttft_ms;         // one a repetition
  std::vector<double> speedup;         // dense's ttft over this one, same prompt, same repetition
  std::vector<double> density;         // one a repetition
  std::vector<PrefillReport> reports;  // one a repetition
  std::vector<double> itl_ms;          // decode right behind a prompt of the length
  double decode_density = 1;           // of these steps
  std::optional<Agreement> agreement;  // empty without dense beside it
  std::optional<Agreement> decode_agreement;  // of these steps, on the tokens that dense chose
  int64_t peak_memory_bytes = 0;              // of the process, or in use on the GPU; with weights
};

/// KL and top-1 of logits [num_rows, vocab_size] against dense's.
/// Throws kInvalidArgument when sizes differ or do not divide; Cancelled when `cancel`, if not
/// null, is raised: a hundred rows of a large vocabulary take a second.
Agreement compare_logits(std::span<const float> dense, std::span<const float> other,
                         int64_t vocab_size, const std::atomic<bool>* cancel = nullptr);

/// Where the prompt of repetition `index` of `count` begins in a text of `num_tokens`: prompts
/// follow each other, or are spread evenly (and overlap) where the text is too short for that.
int64_t window_begin(int64_t num_tokens, int64_t length, int64_t index, int64_t count);

/// Runs the plan on prompts from `text` (tokens, without bos), row by row in the order of lengths
/// and attentions. Per length, one pass over all attentions warms up and gives agreement and itl;
/// then every repetition runs all attentions on one fresh prompt, starting with another of them
/// each time.
///
/// `progress` is called before each prefill with what comes and the share done. When `cancel` is
/// raised, Cancelled is thrown; `on_rows` has by then been given the rows of each finished length.
/// Throws kInvalidArgument when the text or the model's context is shorter than a length.
void run_bench(const std::shared_ptr<const Model>& model, const BenchPlan& plan,
               std::span<const int32_t> text, const std::atomic<bool>* cancel,
               const std::function<void(const std::string& what, double share)>& progress,
               const std::function<void(const std::vector<BenchRow>& rows)>& on_rows);

}  // namespace fovea::cli
