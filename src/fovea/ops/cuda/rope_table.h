// The kernel behind RopeTable on a GPU.
#pragma once

#include <cstdint>
#include <span>

#include "fovea/base/context.h"

namespace fovea::cuda {

/// Pairs of a head at most.
constexpr int64_t kMaxRopePairs = 128;

/// cos, sin [num_rows, frequencies.size()] of (*first_position + row) * frequency, computed in
/// double; pointers but `frequencies` are GPU memory.
void fill_rope_table(std::span<const double> frequencies, const int64_t* first_position,
                     int64_t num_rows, float* cos, float* sin, const Context& context);

}  // namespace fovea::cuda
