// A published sweep: one A10G, Qwen2.5-7B in bf16, one stream, two attention backends.
#pragma once

#include <vector>

#include "fovea/worth/fit.h"

namespace fovea::worth {

inline std::vector<double> published_lengths() {
  return {257, 1025, 2050, 4097, 8193, 16385, 24577, 30720};
}
inline Sweep flash_ttft() {
  return {"FLASH", published_lengths(), {.116, .280, .502, .992, 2.067, 4.591, 7.620, 10.181}};
}
inline Sweep flex_ttft() {
  return {"FLEX", published_lengths(), {.119, .292, .544, 1.127, 2.540, 6.393, 11.704, 16.410}};
}
inline Sweep flash_itl() {
  return {"FLASH", published_lengths(), {33.76, 33.68, 33.86, 34.20, 34.96, 35.81, 36.81, 37.33}};
}
inline Sweep flex_itl() {
  return {"FLEX", published_lengths(), {35.43, 36.74, 38.72, 42.73, 49.94, 65.06, 80.68, 91.83}};
}

}  // namespace fovea::worth
