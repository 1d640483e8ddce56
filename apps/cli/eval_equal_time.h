// Who is better when both may take equally long: at one density, one method may cost more than the
// other.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/cli/eval_summary.h"

namespace fovea::cli {

/// What is held equal. Both are medians over the prompts, as measured, and count selection.
enum class EvalClock {
  kPrefill,    // the whole prefill, which is the time to the first token
  kAttention,  // of it attention and selection
};

/// A method at the time that a row of the reference took, between those two of its own measured
/// densities whose times enclose it: each prompt's score is theirs, weighted by nearness.
struct EqualTimeRow {
  size_t reference = 0;  // variant
  std::string attention;
  EvalClock clock = EvalClock::kPrefill;
  double time_ms = 0;
  double density = 0;              // interpolated as well
  bool is_densest = false;         // none of its densities took longer: at the largest
  quality::Difference difference;  // its score minus the reference's; times are taken as they are
};

/// Each method against each row of `reference` with its blocks and periphery, where a density was
/// asked for and the method has one that took no longer. Nothing on a clock that some row lacks.
std::vector<EqualTimeRow> compare_at_equal_time(const Evaluation& evaluation,
                                                const EvalGroup& group,
                                                const std::string& reference, uint64_t seed);

worth::ReportTable equal_time_table(const Evaluation& evaluation,
                                    const std::vector<EqualTimeRow>& rows);
nlohmann::json equal_time_json(const Evaluation& evaluation, const EvalGroup& group,
                               const std::vector<EqualTimeRow>& rows);

}  // namespace fovea::cli
