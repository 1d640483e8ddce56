// Budgets that keep what was asked for, forced blocks included: comparisons need one density.
#pragma once

#include <functional>

namespace fovea::quality {

/// Densities nearer than this, a tenth of a percent of the causal pairs, count as equal.
constexpr double kDensityTolerance = 0.001;

struct MatchedBudget {
  double setting = 0;    // what to ask the selector for
  double measured = 0;   // what that keeps
  bool matched = false;  // within kDensityTolerance of the target
};

/// Finds the budget under which `measure` gives `target`, both shares of the causal pairs in
/// (0, 1]: the target itself, and where that misses, secant steps, at most seven measurements in
/// all.
///
/// Where no budget will do (forced blocks alone keep more; a method that does not follow its
/// budget) the nearest one found is returned, not matched.
MatchedBudget match_density(double target, const std::function<double(double setting)>& measure);

}  // namespace fovea::quality
