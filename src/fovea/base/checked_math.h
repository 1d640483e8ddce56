// Sizes from files and callers are multiplied here, never with a bare `*`.
#pragma once

#include <cstdint>

#include "fovea/base/error.h"

namespace fovea {

/// a * b; throws Error{code} naming `what` when the product leaves int64.
inline int64_t checked_mul(int64_t a, int64_t b, const char* what,
                           ErrorCode code = ErrorCode::kInvalidArgument) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    fail(code, "{} overflows 64 bits: {} x {}", what, a, b);
  }
  return product;
}

/// a + b; throws Error{code} naming `what` when the sum leaves int64.
inline int64_t checked_add(int64_t a, int64_t b, const char* what,
                           ErrorCode code = ErrorCode::kInvalidArgument) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    fail(code, "{} overflows 64 bits: {} + {}", what, a, b);
  }
  return sum;
}

/// Smallest integer >= a / b, for a >= 0 and b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace fovea
