// How far a result may be from the double-precision reference, per type, and how it is compared.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "fovea/base/dtype.h"
#include "fovea/base/error.h"

namespace fovea::cases {

struct Tolerance {
  double norm;   // ||actual - expected|| / ||expected||
  double worst;  // |actual - expected| of any element, over the root mean square of expected
};

/// Of an attention output. bf16 rounds the weights and the result once each: 2^-9 apiece.
inline Tolerance output_tolerance(DType dtype) {
  if (dtype == DType::kBF16) return {4e-3, 4e-2};
  return {2e-6, 4e-5};
}

/// Of an lse, absolute: q.k is accumulated in f32 whatever the type of q and k.
inline constexpr double kLseTolerance = 2e-5;

/// Empty when `actual` is close to `expected`: NaN and Inf positions first, then the norm of the
/// error, then the worst element with its index.
inline std::string difference(const std::vector<float>& actual, const std::vector<float>& expected,
                              Tolerance tolerance) {
  if (actual.size() != expected.size()) {
    return fmt::format("{} elements, expected {}", actual.size(), expected.size());
  }
  double error_squared = 0, norm_squared = 0, worst = 0;
  size_t worst_idx = 0, num_finite = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i]) || !std::isfinite(actual[i])) {
      const bool is_same =
          std::isnan(expected[i]) ? std::isnan(actual[i]) : actual[i] == expected[i];
      if (!is_same) return fmt::format("element {}: {}, expected {}", i, actual[i], expected[i]);
      continue;
    }
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]);
    error_squared += error * error;
    norm_squared += static_cast<double>(expected[i]) * expected[i];
    ++num_finite;
    if (error > worst) {
      worst = error;
      worst_idx = i;
    }
  }
  const double norm = std::sqrt(norm_squared);
  if (std::sqrt(error_squared) > tolerance.norm * norm) {
    return fmt::format("relative error {} above {}", std::sqrt(error_squared) / norm,
                       tolerance.norm);
  }
  const double rms = num_finite > 0 ? norm / std::sqrt(static_cast<double>(num_finite)) : 0;
  if (worst > tolerance.worst * rms) {
    return fmt::format("element {}: {}, expected {}: error {} x rms, above {}", worst_idx,
                       actual[worst_idx], expected[worst_idx], worst / rms, tolerance.worst);
  }
  return "";
}

}  // namespace fovea::cases
