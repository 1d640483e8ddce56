#include "fovea/quality/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/ops/sampling.h"

namespace fovea::quality {
namespace {

struct KindName {
  NeedleTaskKind kind;
  std::string_view name;
};
constexpr std::array<KindName, 3> kKindNames = {{{NeedleTaskKind::kSingle, "single"},
                                                 {NeedleTaskKind::kLookalike, "lookalike"},
                                                 {NeedleTaskKind::kEight, "eight"}}};

// Wilson's score interval: centre and half width, for 95 %.
struct Interval {
  double centre = std::numeric_limits<double>::quiet_NaN();
  double half = std::numeric_limits<double>::quiet_NaN();
};
Interval wilson(int64_t right, int64_t total) {
  if (total == 0) return {};
  constexpr double kZ = 1.959963984540054;
  const auto n = static_cast<double>(total);
  const double p = static_cast<double>(right) / n;
  const double shrink = 1 + kZ * kZ / n;
  return {(p + kZ * kZ / (2 * n)) / shrink,
          kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / shrink};
}

}  // namespace

std::string_view task_kind_name(NeedleTaskKind kind) {
  for (const KindName& entry : kKindNames) {
    if (entry.kind == kind) return entry.name;
  }
  return "unknown";
}

NeedleTaskKind parse_task_kind(std::string_view name) {
  for (const KindName& entry : kKindNames) {
    if (entry.name == name) return entry.kind;
  }
  fail(ErrorCode::kInvalidArgument, "unknown task '{}', use single, lookalike or eight", name);
}

NeedleSettings needle_settings(NeedleTaskKind kind, int64_t length, uint64_t seed,
                               std::optional<int32_t> bos_id) {
  constexpr int64_t kTokensPerFact = 256;
  NeedleSettings settings;
  settings.length = length;
  settings.seed = seed;
  settings.bos_id = bos_id;
  settings.num_questions = kind == NeedleTaskKind::kEight ? 8 : 1;
  if (kind != NeedleTaskKind::kSingle) {
    const int64_t num_facts = std::max<int64_t>(8, length / kTokensPerFact);
    settings.num_distractors = num_facts - settings.num_questions;
  }
  return settings;
}

TaskOutcome answer_task(Session& session, const NeedleTask& task, const PrefillOptions& options) {
  check_argument(!task.questions.empty(), "a task without questions has no answers");
  // The row of logits at position p rates token p + 1, so the last token is never read.
  const auto num_read = static_cast<int64_t>(task.tokens.size()) - 1;
  const int64_t first_row = task.questions.front().answer_begin - 1;
  PrefillOptions with_rows = options;
  with_rows.num_logit_rows = num_read - first_row;
  session.reset();
  const std::span<const float> logits =
      session.prefill(std::span(task.tokens).first(static_cast<size_t>(num_read)), with_rows);
  const size_t vocab_size = logits.size() / static_cast<size_t>(with_rows.num_logit_rows);

  TaskOutcome outcome;
  outcome.report = session.report();
  for (const NeedleQuestion& question : task.questions) {
    bool right = true;
    for (size_t i = 0; i < question.answer_tokens.size(); ++i) {
      const auto row = static_cast<size_t>(question.answer_begin - 1 - first_row) + i;
      right = right &&
              argmax(logits.subspan(row * vocab_size, vocab_size)) == question.answer_tokens[i];
    }
    outcome.right.push_back(right);
  }
  return outcome;
}

double Rate::value() const {
  return total > 0 ? static_cast<double>(right) / static_cast<double>(total)
                   : std::numeric_limits<double>::quiet_NaN();
}
double Rate::low() const {
  const Interval interval = wilson(right, total);
  return interval.centre - interval.half;
}
double Rate::high() const {
  const Interval interval = wilson(right, total);
  return interval.centre + interval.half;
}

}  // namespace fovea::quality
