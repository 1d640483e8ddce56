// How sure a share of right answers is.
#pragma once

#include <cstdint>

namespace fovea::quality {

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
