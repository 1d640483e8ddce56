#include "apps/cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "apps/cli/report_json.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"
#include "fovea/ops/sampling.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// log sum exp of a row, in double.
double log_sum_exp(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += std::exp(static_cast<double>(value) - top);
  return top + std::log(sum);
}

// One length of the plan: its sessions, its prompts, its rows.
class LengthBench {
 public:
  LengthBench(const std::shared_ptr<const Model>& model, const BenchPlan& plan, int64_t length,
              std::span<const int32_t> text, const std::atomic<bool>* cancel)
      : model_(*model), plan_(plan), length_(length), text_(text) {
    prefill_.cancel = cancel;
    const int64_t room = std::min(model->config().context_length, length + plan.decode_tokens);
    for (size_t i = 0; i < plan.attentions.size(); ++i) {
      SessionOptions options;
      options.attention = plan.attentions[i];
      options.chunk_size = plan.chunk_size;
      options.max_len = room;
      sessions_.emplace_back(model, options);
      rows_.push_back({});
      rows_.back().length = length;
      rows_.back().attention = plan.attention_names[i];
    }
  }

  size_t num_attentions() const { return rows_.size(); }
  std::vector<BenchRow>& rows() { return rows_; }

  /// The pass that warms up. A prompt as long as the context is shortened to leave room for
  /// decoding.
  void warm_up(size_t attention) {
    Session& session = sessions_[attention];
    BenchRow& row = rows_[attention];
    const int64_t length = std::max<int64_t>(
        1, std::min(length_, model_.config().context_length - plan_.decode_tokens));
    const std::vector<int32_t> tokens = prompt(0, length);
    PrefillOptions options = prefill_;
    options.num_logit_rows = std::min(plan_.agreement_rows, length);
    session.reset();
    const auto logits = session.prefill(tokens, options);
    const int64_t vocab_size = static_cast<int64_t>(logits.size()) / options.num_logit_rows;
    if (row.attention == "dense") dense_logits_.assign(logits.begin(), logits.end());
    if (!dense_logits_.empty()) {
      row.agreement = compare_logits(dense_logits_, logits, vocab_size, prefill_.cancel);
    }

    decode(session, argmax(logits.last(static_cast<size_t>(vocab_size))), row);
  }

  /// Times steps behind the prompt just read. All attentions are given the tokens that dense chose,
  /// which comes first, so that their logits can be compared.
  void decode(Session& session, int32_t token, BenchRow& row) {
    const int64_t steps = std::min(plan_.decode_tokens, session.room());
    std::vector<float> all_logits;
    std::vector<int32_t> chosen;
    Sampler greedy({});
    for (int64_t i = 0; i < steps; ++i) {
      if (prefill_.cancel != nullptr && prefill_.cancel->load()) throw Cancelled();
      if (!dense_answer_.empty()) token = dense_answer_[static_cast<size_t>(i)];
      chosen.push_back(token);
      const auto start = Clock::now();
      token = session.decode(token, greedy);
      row.itl_ms.push_back(milliseconds_since(start));
      const auto logits = session.decode_logits();
      all_logits.insert(all_logits.end(), logits.begin(), logits.end());
    }
    row.decode_density = session.decode_density();
    if (row.attention == "dense") {
      dense_answer_ = chosen;
      dense_decode_logits_ = all_logits;
    }
    if (!dense_answer_.empty()) {
      row.decode_agreement = compare_logits(dense_decode_logits_, all_logits,
                                            model_.config().vocab_size, prefill_.cancel);
    }
  }

  void measure(size_t attention, int64_t repetition) {
    Session& session = sessions_[attention];
    BenchRow& row = rows_[attention];
    const std::vector<int32_t> tokens = prompt(repetition + 1, length_);
    session.reset();
    reset_peak_memory();
    const auto start = Clock::now();
    argmax(session.prefill(tokens, prefill_));
    row.ttft_ms.push_back(milliseconds_since(start));
    row.peak_memory_bytes = std::max(row.peak_memory_bytes, memory_in_use());
    row.reports.push_back(session.report());
    row.density.push_back(session.report().density());
  }

  /// Fills in what needs dense's time of the same repetition.
  void finish() {
    const auto dense = std::find_if(rows_.begin(), rows_.end(),
                                    [](const BenchRow& row) { return row.attention == "dense"; });
    if (dense == rows_.end()) return;
    for (BenchRow& row : rows_) {
      for (size_t i = 0; i < row.ttft_ms.size(); ++i) {
        row.speedup.push_back(dense->ttft_ms[i] / row.ttft_ms[i]);
      }
    }
  }

 private:
  /// The process's peak since its last reset; of a GPU, which keeps what it was given, all in use.
  int64_t memory_in_use() const {
    const Device device = model_.context().device;
    if (device.type == DeviceType::kCpu) return peak_memory_bytes();
    const DeviceMemory memory = device_memory(device);
    return memory.total_bytes - memory.free_bytes;
  }

  std::vector<int32_t> prompt(int64_t index, int64_t length) const {
    const bool bos = model_.tokenizer().add_bos() && model_.config().bos_id.has_value();
    const int64_t count = length - (bos ? 1 : 0);
    const auto begin = text_.begin() + window_begin(static_cast<int64_t>(text_.size()), length_,
                                                    index, plan_.repetitions + 1);
    std::vector<int32_t> tokens;
    if (bos) tokens.push_back(*model_.config().bos_id);
    tokens.insert(tokens.end(), begin, begin + count);
    return tokens;
  }

  const Model& model_;
  const BenchPlan& plan_;
  int64_t length_;
  std::span<const int32_t> text_;
  PrefillOptions prefill_;
  std::vector<Session> sessions_;
  std::vector<BenchRow> rows_;
  std::vector<float> dense_logits_, dense_decode_logits_;
  std::vector<int32_t> dense_answer_;
};

// Dense comes first in the warm-up, because the others' answers are compared with its own.
std::vector<size_t> dense_first(const std::vector<std::string>& names) {
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](size_t i) { return names[i] == "dense"; });
  return order;
}

void check_plan(const Model& model, const BenchPlan& plan, std::span<const int32_t> text) {
  for (const int64_t length : plan.lengths) {
    check_argument(length <= model.config().context_length,
                   "a prompt of {} tokens is longer than this model's context of {}", length,
                   model.config().context_length);
    check_argument(length <= static_cast<int64_t>(text.size()),
                   "the text has {} tokens, a prompt of {} needs more: give a longer file",
                   text.size(), length);
  }
}

}  // namespace

Agreement compare_logits(std::span<const float> dense, std::span<const float> other,
                         int64_t vocab_size, const std::atomic<bool>* cancel) {
  const auto width = static_cast<size_t>(vocab_size);
  check_argument(vocab_size > 0 && dense.size() == other.size() && dense.size() % width == 0,
                 "logits of {} and {} values do not make rows of {}", dense.size(), other.size(),
                 vocab_size);
  Agreement agreement;
  for (size_t at = 0; at < dense.size(); at += width) {
    if (cancel != nullptr && cancel->load()) throw Cancelled();
    const auto p = dense.subspan(at, width);
    const auto q = other.subspan(at, width);
    const double p_norm = log_sum_exp(p);
    const double q_norm = log_sum_exp(q);
    double kl = 0;
    for (size_t i = 0; i < width; ++i) {
      const double log_p = static_cast<double>(p[i]) - p_norm;
      kl += std::exp(log_p) * (log_p - (static_cast<double>(q[i]) - q_norm));
    }
    agreement.mean_kl += kl;
    agreement.top1_share += argmax(p) == argmax(q) ? 1 : 0;
    ++agreement.num_rows;
  }
  if (agreement.num_rows > 0) {
    agreement.mean_kl /= static_cast<double>(agreement.num_rows);
    agreement.top1_share /= static_cast<double>(agreement.num_rows);
  }
  return agreement;
}

int64_t window_begin(int64_t num_tokens, int64_t length, int64_t index, int64_t count) {
  const int64_t last = num_tokens - length;
  if (count * length <= num_tokens) return index * length;
  return count > 1 ? last * index / (count - 1) : 0;
}

void run_bench(const std::shared_ptr<const Model>& model, const BenchPlan& plan,
               std::span<const int32_t> text, const std::atomic<bool>* cancel,
               const std::function<void(const std::string& what, double share)>& progress,
               const std::function<void(const std::vector<BenchRow>& rows)>& on_rows) {
  check_plan(*model, plan, text);
  double total = 0;  // in tokens: long prompts take most of the time
  for (const int64_t length : plan.lengths) {
    total += static_cast<double>(length * (plan.repetitions + 1)) *
             static_cast<double>(plan.attentions.size());
  }
  double done = 0;
  for (const int64_t length : plan.lengths) {
    LengthBench bench(model, plan, length, text, cancel);
    const auto step = [&](const char* what, size_t attention) {
      progress(fmt::format("{} at {} tokens: {}", plan.attention_names[attention], length, what),
               done / total);
      done += static_cast<double>(length);
    };
    for (const size_t attention : dense_first(plan.attention_names)) {
      step("warm-up", attention);
      bench.warm_up(attention);
    }
    for (int64_t repetition = 0; repetition < plan.repetitions; ++repetition) {
      for (size_t i = 0; i < bench.num_attentions(); ++i) {
        const size_t attention = (i + static_cast<size_t>(repetition)) % bench.num_attentions();
        step("timing", attention);
        bench.measure(attention, repetition);
      }
    }
    bench.finish();
    on_rows(bench.rows());
  }
}

}  // namespace fovea::cli
