// Asking a model the questions of a task.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/engine/session.h"
#include "fovea/quality/task.h"

namespace fovea::quality {

struct TaskOutcome {
  std::vector<double> scores;  // one a question, 0 ... 1
  std::string text;            // what the model wrote; empty unless the answer is generated
  PrefillReport report;
};

/// Reads the whole task in one prefill and scores its answers as Task::scoring says; a generated
/// answer is the model's first choices, up to its end token or Task::max_new_tokens. Resets
/// `session` first. Throws as Session::prefill does, Cancelled also while an answer is written.
TaskOutcome answer_task(Session& session, const Task& task, const PrefillOptions& options = {});

/// Score of a generated text: kAllFound or kAnyFound, see Scoring. ASCII letters match in either
/// case.
double score_text(Scoring scoring, std::string_view text, std::span<const std::string> answers);

}  // namespace fovea::quality
