#include "fovea/quality/answer.h"

#include <span>

#include "fovea/base/error.h"
#include "fovea/ops/sampling.h"

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
      right = right &&
              argmax(logits.subspan(row * vocab_size, vocab_size)) == question.answer_tokens[i];
    }
    outcome.scores.push_back(right ? 1 : 0);
  }
  return outcome;
}

}  // namespace

TaskOutcome answer_task(Session& session, const Task& task, const PrefillOptions& options) {
  check_argument(!task.questions.empty(), "a task without questions has no answers");
  session.reset();
  return answer_forced(session, task, options);
}

}  // namespace fovea::quality
