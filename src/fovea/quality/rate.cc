#include "fovea/quality/rate.h"

#include <cmath>
#include <limits>

namespace fovea::quality {
namespace {

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
