// Asking a model the questions of a task.
#pragma once

#include <vector>

#include "fovea/engine/session.h"
#include "fovea/quality/task.h"

namespace fovea::quality {

struct TaskOutcome {
  std::vector<double> scores;  // one a question, 0 ... 1
  PrefillReport report;
};

/// Reads the whole task in one prefill and scores its answers as Task::scoring says. Resets
/// `session` first. Throws as Session::prefill does.
TaskOutcome answer_task(Session& session, const Task& task, const PrefillOptions& options = {});

}  // namespace fovea::quality
