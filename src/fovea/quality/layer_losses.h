// What each layer loses by reading little, and how to spread a density over layers by that.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "fovea/quality/calibrate.h"

namespace fovea::quality {

/// Losses of layers that read sparsely, each on its own while all others read everything.
struct LayerLosses {
  std::vector<double> densities;  // asked for, rising, each in (0, 1)
  std::vector<std::vector<double>>
      loss;  // AttentionLoss::squared_change of each layer that selects,
             // at each density; empty where a layer attends locally
};

/// Reads the meter's texts once for each layer that selects and each density. `settings` needs a
/// selector and no layer budgets. `progress` is told of the readings as one piece of work. Throws
/// as LossMeter::measure.
LayerLosses measure_layers(const LossMeter& meter, const ModelConfig& config,
                           AttentionSettings settings, std::span<const double> densities,
                           const PrefillOptions& options = {});

/// Each layer's density over their mean, `density`, for AttentionSettings::layer_budgets: those
/// whose losses add up to least. Losses are taken to fall in straight lines over the logarithm of
/// the density, from the lowest one measured, which is also the least that a layer gets, to nothing
/// at
/// 1. 1 for layers without losses.
///
/// Throws kInvalidArgument unless `density` is between the lowest one measured and 1 and some layer
/// has losses.
std::vector<float> spread_density(const LayerLosses& losses, double density);

}  // namespace fovea::quality
