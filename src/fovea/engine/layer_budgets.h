// Selection with a budget for each layer: AttentionSettings::layer_budgets.
#pragma once

#include <cstdint>
#include <span>

#include "fovea/selector/block_selector.h"

namespace fovea {

/// Throws kInvalidArgument unless `layer_budgets` is empty or holds a positive, finite number for
/// each of `num_layers` layers and `settings` has a density for them to multiply.
void check_layer_budgets(std::span<const float> layer_budgets, const SelectorSettings& settings,
                         int64_t num_layers);

/// `settings` with the density of `layer`.
SelectorSettings settings_of_layer(SelectorSettings settings, std::span<const float> layer_budgets,
                                   int64_t layer);

}  // namespace fovea
