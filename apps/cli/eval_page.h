// The page that `fovea eval --report` writes.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/eval_equal_time.h"
#include "apps/cli/eval_summary.h"
#include "fovea/worth/conditions.h"

namespace fovea::cli {

/// Score against measured density, one line a selector with interval bars (periphery dashed), the
/// tables, the worst cases, and the conditions. `equal_time` has one list a group, which may be
/// empty; where it is not, the score is also shown against the time of a prefill.
std::string eval_page(const Evaluation& evaluation, const std::vector<EvalGroup>& groups,
                      const std::vector<std::vector<EqualTimeRow>>& equal_time,
                      const std::string& reference, const std::vector<std::string>& notes,
                      const std::vector<worth::ConditionEntry>& conditions);

}  // namespace fovea::cli
