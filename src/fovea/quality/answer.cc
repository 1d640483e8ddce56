#include "fovea/quality/answer.h"

#include <algorithm>
#include <span>

#include "fovea/base/error.h"
#include "fovea/engine/generate.h"
#include "fovea/ops/sampling.h"
#include "fovea/quality/score_text.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::quality {
namespace {

TaskOutcome answer_forced(Session& session, const Task& task, const PrefillOptions& options) {
  // The row of logits at position p rates token p + 1, so the last token is never read.
  const auto num_read = static_cast<int64_t>(task.tokens.size()) - 1;
  const int64_t first_row = task.questions.front().answer_begin - 1;
  PrefillOptions with_rows = options;
  with_rows.num_logit_rows = num_read - first_row;
  const std::span<const float> logits =
      session.prefill(std::span(task.tokens).first(static_cast<size_t>(num_read)), with_rows);
  const size_t vocab_size = logits.size() / static_cast<size_t>(with_rows.num_logit_rows);

  TaskOutcome outcome;
  outcome.report = session.report();
  for (const Question& question : task.questions) {
    bool right = true;
    for (size_t i = 0; i < question.answer_tokens.size(); ++i) {
      const auto row = static_cast<size_t>(question.answer_begin - 1 - first_row) + i;
      const int32_t choice = argmax(logits.subspan(row * vocab_size, vocab_size));
      // The rest of another answer stands nowhere, so its first token decides.
      if (i == 0 && std::ranges::count(question.other_first_tokens, choice) > 0) break;
      right = right && choice == question.answer_tokens[i];
    }
    outcome.scores.push_back(right ? 1 : 0);
  }
  return outcome;
}

TaskOutcome answer_generated(Session& session, const Task& task, const PrefillOptions& options) {
  GenerateOptions settings;
  settings.max_new_tokens = task.max_new_tokens;
  settings.prefill = options;
  const GenerateResult result = generate(session, task.tokens, settings);
  if (result.stop == StopReason::kCancelled) throw Cancelled();
  TaskOutcome outcome;
  outcome.report = result.prefill;
  outcome.text = result.text;
  for (const Question& question : task.questions) {
    outcome.scores.push_back(score_text(task.scoring, result.text, question.answers));
  }
  return outcome;
}

TaskOutcome answer_choice(Session& session, const Task& task, const PrefillOptions& options) {
  PrefillOptions last_row = options;
  last_row.num_logit_rows = 1;
  const std::span<const float> logits = session.prefill(task.tokens, last_row);
  std::string best;
  float best_logit = 0;
  for (const std::string letter : {"A", "B", "C", "D"}) {
    const std::vector<int32_t> ids = session.model().tokenizer().encode(letter, {.add_bos = false});
    check_argument(!ids.empty(), "the model's tokenizer has no token for the choice {}", letter);
    const float logit = logits[static_cast<size_t>(ids.back())];
    if (best.empty() || logit > best_logit) {
      best = letter;
      best_logit = logit;
    }
  }
  TaskOutcome outcome;
  outcome.report = session.report();
  outcome.text = best;
  for (const Question& question : task.questions) {
    outcome.scores.push_back(question.answers.at(0) == best ? 1 : 0);
  }
  return outcome;
}

}  // namespace

TaskOutcome answer_task(Session& session, const Task& task, const PrefillOptions& options) {
  check_argument(!task.questions.empty(), "a task without questions has no answers");
  session.reset();
  switch (task.scoring) {
    case Scoring::kForced:
      return answer_forced(session, task, options);
    case Scoring::kChoice:
      return answer_choice(session, task, options);
    default:
      return answer_generated(session, task, options);
  }
}

}  // namespace fovea::quality
