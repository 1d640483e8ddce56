#include "fovea/engine/layer_budgets.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"

namespace fovea {

void check_layer_budgets(std::span<const float> layer_budgets, const SelectorSettings& settings,
                         int64_t num_layers) {
  if (layer_budgets.empty()) return;
  check_argument(static_cast<int64_t>(layer_budgets.size()) == num_layers,
                 "layer budgets must be {} numbers, one for each layer, got {}", num_layers,
                 layer_budgets.size());
  check_argument(settings.density > 0,
                 "layer budgets multiply a density, but blocks are kept by threshold");
  for (const float budget : layer_budgets) {
    check_argument(std::isfinite(budget) && budget > 0,
                   "a layer's budget must be positive and finite, got {}", budget);
  }
}

SelectorSettings settings_of_layer(SelectorSettings settings, std::span<const float> layer_budgets,
                                   int64_t layer) {
  if (!layer_budgets.empty()) {
    settings.density = std::min(1.0f, settings.density * layer_budgets[static_cast<size_t>(layer)]);
  }
  return settings;
}

}  // namespace fovea
