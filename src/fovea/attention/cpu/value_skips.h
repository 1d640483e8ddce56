// Which values decode need not read: those that hardly any weight goes to.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fovea::cpu {

/// Of some units of keys, those whose values are read, [units]. `shares` [units, num_rows]: what of
/// each row's weights goes to a unit. Leaves out units in the order of their largest share, equals
/// in their own order, until the next would leave a row with less than `value_share` of its
/// weights. With a NaN among the shares all are read.
std::vector<uint8_t> units_to_read(std::span<const float> shares, int64_t num_rows,
                                   float value_share);

}  // namespace fovea::cpu
