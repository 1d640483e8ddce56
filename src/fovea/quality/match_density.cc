#include "fovea/quality/match_density.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/engine/layer_budgets.h"
#include "fovea/selector/selection_rules.h"

namespace fovea::quality {
namespace {

constexpr float kLeastSetting = 1e-4f;

bool is_near(double a, double b) { return std::abs(a - b) <= kDensityTolerance; }

// Secant steps from `setting` on; ends early when `is_enough` says so of the best one yet.
MatchedBudget step_towards(double target, double setting, const DensityOf& density_of,
                           const std::function<bool(const MatchedBudget&)>& is_enough) {
  constexpr int kMostMeasurements = 7;
  MatchedBudget best;
  double previous_setting = 0, previous_measured = 0;
  for (int i = 0; i < kMostMeasurements; ++i) {
    const double measured = density_of(setting);
    if (i == 0 || std::abs(measured - target) < std::abs(best.measured - target)) {
      best = {setting, measured, is_near(measured, target)};
    }
    if (is_enough(best) || !(measured > 0)) break;
    // In logarithms, where the first step takes both to grow in proportion.
    const double power =
        i == 0 ? 1 : std::log(measured / previous_measured) / std::log(setting / previous_setting);
    if (!(power > 0)) break;  // the budget moves nothing
    const double next = setting * std::pow(target / measured, 1 / power);
    previous_setting = setting;
    previous_measured = measured;
    setting = std::clamp(next, double{kLeastSetting}, 1.0);
    if (setting == previous_setting) break;
  }
  return best;
}

}  // namespace

double planned_density(const SelectorSettings& settings, int64_t length) {
  const int64_t num_blocks = ceil_div(length, settings.block_size);
  const std::vector<int32_t> counts = budget_counts(settings, num_blocks);
  const int64_t dense_from = std::max<int64_t>(0, num_blocks - settings.dense_tail_blocks);
  int64_t kept = std::accumulate(counts.begin(), counts.begin() + dense_from, int64_t{0});
  for (int64_t block = dense_from; block < num_blocks; ++block) kept += block + 1;
  return static_cast<double>(2 * kept) / static_cast<double>(num_blocks * (num_blocks + 1));
}

double planned_density(const AttentionSettings& settings, const ModelConfig& config,
                       int64_t length) {
  if (settings.layer_budgets.empty()) return planned_density(*settings.selector, length);
  double sum = 0;
  int64_t num_layers = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.is_local(layer)) continue;
    sum += planned_density(settings_of_layer(*settings.selector, settings.layer_budgets, layer),
                           length);
    ++num_layers;
  }
  return num_layers > 0 ? sum / static_cast<double>(num_layers) : 1;
}

double forced_density(const SelectorSettings& settings, int64_t length) {
  SelectorSettings least = settings;
  least.density = kLeastSetting;
  return planned_density(least, length);
}

MatchedBudget match_density(double target, const DensityOf& plan, const DensityOf& measure) {
  check_argument(target > 0 && target <= 1, "a density must be in (0, 1], is {}", target);
  const auto is_matched = [](const MatchedBudget& best) { return best.matched; };
  const MatchedBudget planned = step_towards(target, target, plan, is_matched);
  return step_towards(target, planned.setting, measure, [&](const MatchedBudget& best) {
    // Where the plan knows of no better budget and foretold this one's density, there is none.
    return best.matched || (!planned.matched && best.setting == planned.setting &&
                            is_near(best.measured, planned.measured));
  });
}

}  // namespace fovea::quality
