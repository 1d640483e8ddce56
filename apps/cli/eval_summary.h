// What an evaluation's records say: scores with intervals, and who beats whom.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/eval_runner.h"
#include "fovea/quality/statistics.h"
#include "fovea/worth/report_page.h"

namespace fovea::cli {

/// One attention on one subject, or on the average of several.
struct EvalRow {
  size_t variant = 0;
  quality::MeanScore score;
  std::vector<double> density;       // measured, one a prompt
  std::vector<double> prefill_ms;    // one a prompt
  std::vector<double> attention_ms;  // with selection; empty where a journal does not say
  bool matched = true;               // the density is what was asked for, or none was
  std::optional<double>
      density_setting;  // the budget that was given, where a density was asked for
  std::optional<quality::Difference> against_dense;
  std::optional<quality::Difference> against_reference;  // at the same density, blocks, periphery
  std::optional<quality::Difference> nll;                // texts: nats a token above dense
  std::string worst_subject;  // averages: where it loses most against dense
  double worst_score = 0;

  double mean_density() const;
};

/// The rows that belong in one table, dense first.
struct EvalGroup {
  std::string name;  // a task, a text, or "average of 3 tasks"
  int64_t length = 0;
  bool is_text = false;
  bool is_average = false;
  std::vector<size_t> subjects;  // of the evaluation's
  std::vector<EvalRow> rows;

  /// "lookalike, 32768 tokens".
  std::string title() const;
};

/// Averages come before their subjects, and only where there are several of one length. A cell that
/// was interrupted counts with the prompts it has; pairs are of prompts that both sides have.
/// `reference` names the attention that the others are compared with besides dense; may be empty.
std::vector<EvalGroup> summarize(const Evaluation& evaluation, const std::string& reference,
                                 uint64_t seed);

/// "-0.120 (-0.180 to -0.060) yes", the last being whether it is significant; "-" for none.
std::string difference_text(const std::optional<quality::Difference>& difference);
nlohmann::json difference_json(const std::optional<quality::Difference>& difference);

/// One object a row, with all of the above by name.
nlohmann::json rows_json(const Evaluation& evaluation, const std::vector<EvalGroup>& groups,
                         const std::string& reference);

/// The group as people read it.
worth::ReportTable group_table(const Evaluation& evaluation, const EvalGroup& group,
                               const std::string& reference);

/// What a reader of the tables must know: densities that were missed, and that leave no choice.
std::vector<std::string> summary_notes(const Evaluation& evaluation,
                                       const std::vector<EvalGroup>& groups);

}  // namespace fovea::cli
