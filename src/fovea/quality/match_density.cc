#include "fovea/quality/match_density.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"

namespace fovea::quality {

MatchedBudget match_density(double target, const std::function<double(double)>& measure) {
  check_argument(target > 0 && target <= 1, "a density must be in (0, 1], is {}", target);
  constexpr int kMostMeasurements = 7;
  constexpr double kLeastSetting = 1e-4;
  MatchedBudget best;
  double previous_setting = 0, previous_measured = 0;
  double setting = target;
  for (int i = 0; i < kMostMeasurements; ++i) {
    const double measured = measure(setting);
    if (i == 0 || std::abs(measured - target) < std::abs(best.measured - target)) {
      best = {setting, measured, std::abs(measured - target) <= kDensityTolerance};
    }
    if (best.matched || !(measured > 0)) break;
    // In logarithms, where the first step takes both to grow in proportion.
    const double power =
        i == 0 ? 1 : std::log(measured / previous_measured) / std::log(setting / previous_setting);
    if (!(power > 0)) break;  // the budget moves nothing
    const double next = setting * std::pow(target / measured, 1 / power);
    previous_setting = setting;
    previous_measured = measured;
    setting = std::clamp(next, kLeastSetting, 1.0);
    if (setting == previous_setting) break;
  }
  return best;
}

}  // namespace fovea::quality
