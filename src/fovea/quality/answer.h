// Asking a model the questions of a task.
#pragma once

#include <string>
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

}  // namespace fovea::quality
