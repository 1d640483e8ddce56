// Budgets that keep what was asked for, forced blocks included: comparisons need one density.
#pragma once

#include <cstdint>
#include <functional>

#include "fovea/engine/session.h"
#include "fovea/model_io/model_config.h"
#include "fovea/selector/block_selector.h"

namespace fovea::quality {

/// Densities nearer than this, a tenth of a percent of the causal pairs, count as equal.
constexpr double kDensityTolerance = 0.001;

struct MatchedBudget {
  double setting = 0;    // what to ask the selector for
  double measured = 0;   // what that keeps
  bool matched = false;  // within kDensityTolerance of the target
};

/// Share of the causal pairs that a prompt of `length` tokens, 1 or more, keeps under the budget of
/// `settings`, forced blocks included, if every query block keeps the count that the budget gives
/// it. No prompt is read; methods whose branches overlap, or blocks that must be kept, move it.
double planned_density(const SelectorSettings& settings, int64_t length);

/// The same over the layers of a model that select, each with its own budget.
double planned_density(const AttentionSettings& settings, const ModelConfig& config,
                       int64_t length);

/// What forced blocks alone keep: planned_density of the smallest budget.
double forced_density(const SelectorSettings& settings, int64_t length);

/// A budget's density as it is foretold or measured, both shares of the causal pairs in (0, 1].
using DensityOf = std::function<double(double setting)>;

/// Finds the budget under which `measure` gives `target`: the target itself, and where that misses,
/// secant steps, at most seven measurements in all. The steps are first gone through with `plan`,
/// which costs nothing; where it is right, one measurement is all.
///
/// Where no budget will do (forced blocks alone keep more; a method that does not follow its
/// budget) the nearest one found is returned, not matched.
MatchedBudget match_density(double target, const DensityOf& plan, const DensityOf& measure);

}  // namespace fovea::quality
