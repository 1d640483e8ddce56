#include "apps/cli/eval_subject.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"
#include "fovea/quality/agreement.h"
#include "fovea/quality/answer.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

// Tails begin at multiples of this, and so of every usual block size: what comes before is a
// prefill of its own, and a block that two share would be read densely.
constexpr int64_t kTailUnit = 1024;

double attention_ms(const PrefillReport& report) {
  return report.times.attention_ms + report.times.selection_ms;
}

// Dense's choices, as they were kept.
std::vector<TokenScore> scores_from(const PromptRecord& record) {
  std::vector<TokenScore> scores(record.best_tokens.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i].best_token = record.best_tokens[i];
    scores[i].target_logprob = record.logprobs.at(i);
  }
  return scores;
}

PromptRecord answer(const quality::Task& task, Session& session, const PrefillOptions& options) {
  const quality::TaskOutcome outcome = quality::answer_task(session, task, options);
  PromptRecord record;
  record.scores = outcome.scores;
  record.density = outcome.report.density();
  record.prefill_ms = outcome.report.times.total_ms;
  record.attention_ms = attention_ms(outcome.report);
  return record;
}

}  // namespace

TaskSubject::TaskSubject(std::shared_ptr<const quality::TaskMaker> maker, std::string kind,
                         const quality::TaskSettings& settings, int64_t num_questions)
    : maker_(std::move(maker)),
      kind_(std::move(kind)),
      settings_(settings),
      num_prompts_(
          ceil_div(num_questions, quality::questions_per_task(kind_, settings.generated))) {}

std::string TaskSubject::key() const {
  return fmt::format("task {} {}{}", kind_, settings_.length,
                     settings_.generated ? " generated" : "");
}

std::vector<int32_t> TaskSubject::tokens(int64_t prompt) const {
  return maker_->make(kind_, settings_, prompt, num_prompts_).tokens;
}

PromptRecord TaskSubject::ask(Session& session, int64_t prompt, const PrefillOptions& options,
                              const PromptRecord* /*dense*/) const {
  return answer(maker_->make(kind_, settings_, prompt, num_prompts_), session, options);
}

std::string FileSubject::key() const {
  return fmt::format("file {} {} {}", hash_, length_, tasks_.size());
}

std::vector<int32_t> FileSubject::tokens(int64_t prompt) const {
  return tasks_.at(static_cast<size_t>(prompt)).tokens;
}

PromptRecord FileSubject::ask(Session& session, int64_t prompt, const PrefillOptions& options,
                              const PromptRecord* /*dense*/) const {
  return answer(tasks_.at(static_cast<size_t>(prompt)), session, options);
}

TextSubject::TextSubject(std::string name, std::string_view text, const Model& model,
                         int64_t length, int64_t tail, int64_t num_prompts)
    : name_(std::move(name)), hash_(text_hash(text)), length_(length) {
  check_argument(tail >= 2, "--tail must be 2 tokens or more, is {}", tail);
  tail_begin_ = std::max<int64_t>(length - tail, 0) / kTailUnit * kTailUnit;
  const std::vector<int32_t> tokens = model.tokenizer().encode(text, {.add_bos = false});
  const int64_t spare = static_cast<int64_t>(tokens.size()) - length;
  const int64_t most = 1 + std::max<int64_t>(spare, 0) / (length - tail_begin_);
  stretches_ =
      quality::text_windows(tokens, length, std::min(num_prompts, most), model.config().bos_id);
}

std::string TextSubject::key() const {
  return fmt::format("text {} {} {} {}", hash_, length_, tail_begin_, stretches_.size());
}

std::vector<int32_t> TextSubject::tokens(int64_t prompt) const {
  return stretches_.at(static_cast<size_t>(prompt));
}

PromptRecord TextSubject::ask(Session& session, int64_t prompt, const PrefillOptions& options,
                              const PromptRecord* dense) const {
  const std::span<const int32_t> tokens = stretches_.at(static_cast<size_t>(prompt));
  PrefillOptions without_progress = options;  // of the tail
  without_progress.progress = nullptr;
  session.reset();
  PromptRecord record;
  record.attention_ms = 0;
  int64_t kept = 0, causal = 0;
  const auto count = [&] {
    kept += session.report().kept_pairs;
    causal += session.report().causal_pairs;
    record.prefill_ms += session.report().times.total_ms;
    *record.attention_ms += attention_ms(session.report());
  };
  if (tail_begin_ > 0) {
    session.prefill(tokens.first(static_cast<size_t>(tail_begin_)), options);
    count();
  }
  const std::vector<TokenScore> scores =
      session.score(tokens.subspan(static_cast<size_t>(tail_begin_)), without_progress);
  count();
  record.density = kept_share(kept, causal);
  if (dense == nullptr) {
    for (const TokenScore& score : scores) {
      record.best_tokens.push_back(score.best_token);
      record.logprobs.push_back(score.target_logprob);
    }
  }
  const std::vector<TokenScore> reference = dense != nullptr ? scores_from(*dense) : scores;
  for (const quality::AgreementBlock& block : quality::compare_scores(reference, scores).blocks) {
    record.scores.push_back(block.agreement);
    record.nll_difference.push_back(block.nll_increase);
  }
  return record;
}

}  // namespace fovea::cli
