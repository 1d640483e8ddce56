// How far logits are from others.
#pragma once

#include <cmath>
#include <span>

namespace fovea::test {

/// ||got - want|| / ||want||, over as many values as `want` has.
inline double relative_error(std::span<const float> got, std::span<const float> want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i] - want[i]), 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(error / size);
}

}  // namespace fovea::test
