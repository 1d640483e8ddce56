#include "fovea/attention/cpu/value_skips.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fovea::cpu {

std::vector<uint8_t> units_to_read(std::span<const float> shares, int64_t num_rows,
                                   float value_share) {
  const auto rows = static_cast<size_t>(num_rows);
  const size_t num_units = shares.size() / rows;
  std::vector<uint8_t> is_read(num_units, 1);
  const float most_left_out = 1 - value_share;
  std::vector<std::pair<float, size_t>> candidates;  // largest share, unit
  for (size_t i = 0; i < num_units; ++i) {
    float most = 0;
    for (const float share : shares.subspan(i * rows, rows)) {
      if (std::isnan(share)) return is_read;
      most = std::max(most, share);
    }
    if (most <= most_left_out) candidates.emplace_back(most, i);
  }
  std::sort(candidates.begin(), candidates.end());
  std::vector<float> left_out(rows, 0.0f);
  for (const auto& [most, i] : candidates) {
    for (size_t r = 0; r < rows; ++r) {
      left_out[r] += shares[i * rows + r];
      if (left_out[r] > most_left_out) return is_read;
    }
    is_read[i] = 0;
  }
  return is_read;
}

}  // namespace fovea::cpu
