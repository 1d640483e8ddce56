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
  double worst;  // |actual - expected| of any element, over |expected| + root mean square of all
};

/// Of an attention output. A bf16 has 8 significant bits: with u = 2^-8, rounding the weights and
/// then the output moves an element by at most u (sum of weight |value| + |output|); the inputs are
/// rounded for the reference too. The norm averages that to about u. The worst element is a row
/// that sees a few keys whose values cancel, measured against the rms of rows that average many:
/// 1.3e-2 over the table on AMX, AVX512-BF16 and f32 arithmetic, and the bound leaves twice that
/// for other orders of summation. f32 rounds logits of up to 200 (the case with a large scale) by
/// 2^-24.
inline Tolerance output_tolerance(DType dtype) {
  if (dtype == DType::kBF16) return {4e-3, 3e-2};
  return {2e-6, 4e-5};
}

/// What rounding q, K and V to f8e4m3 costs against the unrounded numbers. An E4M3 has 4
/// significant bits: a number moves by 2^-4 at most and by 2.6 % on average. Logits of size 1 move
/// by 3.7 % of that, weights with them, and values by another 2.6 %. Single elements that cancel
/// move by all of themselves.
inline constexpr Tolerance kFloat8Rounding{0.08, INFINITY};

/// Of an f8e4m3 kernel's output against the double-precision reference on the same codes: weights
/// become E4M3 too, which moves each by 2.6 % on average and 2^-4 at most.
inline constexpr double kFloat8Norm = 3.2e-2;
/// Of an element, over the sum of weight |value| that it is made of: 2^-4 of it if every weight
/// errs the same way, and 2^-8 for rounding the output and for tensor cores, which add 8-bit
/// products with 14 bits. Values that cancel, as saturated infinities of both signs do, leave an
/// element much smaller than that sum, so no bound relative to the element holds.
inline constexpr double kFloat8Element = 0x1p-4 + 0x1p-8;
/// Of its lse, relative above 1: tensor cores add 8-bit products with 14 bits.
inline constexpr double kFloat8LseTolerance = 4e-3;

/// Of an lse, absolute: q.k is accumulated in f32 whatever the type of q and k.
inline constexpr double kLseTolerance = 2e-5;

/// Empty when `actual` is close to `expected`: NaN and Inf positions first, then the norm of the
/// error, then the worst element with its index.
inline std::string difference(const std::vector<float>& actual, const std::vector<float>& expected,
                              Tolerance tolerance) {
  if (actual.size() != expected.size()) {
    return fmt::format("{} elements, expected {}", actual.size(), expected.size());
  }
  double error_squared = 0, norm_squared = 0;
  size_t num_finite = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i]) || !std::isfinite(actual[i])) {
      const bool is_same =
          std::isnan(expected[i]) ? std::isnan(actual[i]) : actual[i] == expected[i];
      if (!is_same) return fmt::format("element {}: {}, expected {}", i, actual[i], expected[i]);
      continue;
    }
    const double error = static_cast<double>(actual[i]) - expected[i];
    error_squared += error * error;
    norm_squared += static_cast<double>(expected[i]) * expected[i];
    ++num_finite;
  }
  if (num_finite == 0) return "";
  if (std::sqrt(error_squared) > tolerance.norm * std::sqrt(norm_squared)) {
    return fmt::format("relative error {} above {}", std::sqrt(error_squared / norm_squared),
                       tolerance.norm);
  }
  const double rms = std::sqrt(norm_squared / static_cast<double>(num_finite));
  double worst = 0;
  size_t worst_idx = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i])) continue;
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]) /
                         (std::abs(static_cast<double>(expected[i])) + rms);
    if (error > worst) {
      worst = error;
      worst_idx = i;
    }
  }
  if (worst > tolerance.worst) {
    return fmt::format("element {}: {}, expected {}: error {} above {}", worst_idx,
                       actual[worst_idx], expected[worst_idx], worst, tolerance.worst);
  }
  return "";
}

}  // namespace fovea::cases
