// Asking a model the questions of a task, and what the answers say about an attention.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/engine/session.h"
#include "fovea/quality/needle_task.h"

namespace fovea::quality {

/// A family of needle tasks, as in docs/selection.md's table.
enum class NeedleTaskKind {
  kSingle,     // one fact, one question
  kLookalike,  // one question among facts of the same form, one in every 256 tokens
  kEight,      // eight questions among the same
};

/// "single", "lookalike", "eight".
std::string_view task_kind_name(NeedleTaskKind kind);
/// Throws kInvalidArgument listing the known names.
NeedleTaskKind parse_task_kind(std::string_view name);

/// Settings of `kind` for prompts of `length` tokens.
NeedleSettings needle_settings(NeedleTaskKind kind, int64_t length, uint64_t seed,
                               std::optional<int32_t> bos_id);

struct TaskOutcome {
  std::vector<bool> right;  // one a question
  PrefillReport report;
};

/// Reads the whole task in one prefill and looks whether each answer token was the model's first
/// choice where it stands (teacher forcing: an answer counts when all of its tokens were). Resets
/// `session` first. Throws as Session::prefill does.
TaskOutcome answer_task(Session& session, const NeedleTask& task,
                        const PrefillOptions& options = {});

/// Right answers out of some, with the interval that holds the true rate with 95 % confidence
/// (Wilson's, which stays honest near 0 and 1 and for small counts).
struct Rate {
  int64_t right = 0;
  int64_t total = 0;

  double value() const;  // NaN when total is 0, like the bounds
  double low() const;
  double high() const;
};

}  // namespace fovea::quality
