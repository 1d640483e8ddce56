#include "fovea/quality/layer_losses.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"

namespace fovea::quality {
namespace {

struct Point {
  double density = 0, loss = 0;
};

// Part of a layer's way from little to much: what it costs and what it saves.
struct Step {
  size_t layer = 0;
  double from = 0, to = 0;  // density
  double gain = 0;          // loss saved per density
};

// The losses from the lowest density measured to 1, in equal steps of the logarithm.
std::vector<Point> interpolate(const std::vector<double>& densities,
                               const std::vector<double>& loss) {
  std::vector<Point> known;
  for (size_t i = 0; i < densities.size(); ++i) known.push_back({std::log(densities[i]), loss[i]});
  known.push_back({0, 0});
  for (size_t i = known.size() - 1; i > 0; --i) {  // reading more loses no more
    known[i - 1].loss = std::max(known[i - 1].loss, known[i].loss);
  }
  constexpr int kSteps = 64;
  std::vector<Point> points;
  for (int step = 0; step <= kSteps; ++step) {
    const double at = std::log(densities.front()) * (1 - static_cast<double>(step) / kSteps);
    size_t next = 1;
    while (next + 1 < known.size() && known[next].density < at) ++next;
    const Point& a = known[next - 1];
    const Point& b = known[next];
    const double slope = (b.loss - a.loss) / (b.density - a.density);
    points.push_back({std::exp(at), a.loss + slope * (at - a.density)});
  }
  return points;
}

// The way from the first point to the last. Steps save less and less per density: the lower convex
// hull, of which one edge may be several steps.
std::vector<Step> hull_steps(size_t layer, const std::vector<Point>& points) {
  const auto gain = [&](size_t a, size_t b) {
    return (points[a].loss - points[b].loss) / (points[b].density - points[a].density);
  };
  std::vector<size_t> hull;
  for (size_t i = 0; i < points.size(); ++i) {
    while (hull.size() > 1 && gain(hull[hull.size() - 2], hull.back()) <= gain(hull.back(), i)) {
      hull.pop_back();
    }
    hull.push_back(i);
  }
  std::vector<Step> steps;
  for (size_t edge = 1; edge < hull.size(); ++edge) {
    const double edge_gain = gain(hull[edge - 1], hull[edge]);
    for (size_t i = hull[edge - 1]; i < hull[edge]; ++i) {
      steps.push_back({layer, points[i].density, points[i + 1].density, edge_gain});
    }
  }
  return steps;
}

}  // namespace

LayerLosses measure_layers(const LossMeter& meter, const ModelConfig& config,
                           AttentionSettings settings, std::span<const double> densities,
                           const PrefillOptions& options) {
  check_argument(settings.selector.has_value() && settings.layer_budgets.empty(),
                 "layers are measured with a selector and without budgets of their own");
  LayerLosses losses;
  losses.densities.assign(densities.begin(), densities.end());
  losses.loss.resize(static_cast<size_t>(config.num_layers));
  const auto num_readings =
      static_cast<double>(config.num_layers) * static_cast<double>(densities.size());
  double readings_done = 0;
  PrefillOptions with_progress = options;
  if (options.progress) {
    with_progress.progress = [&](double share) {
      options.progress((readings_done + share) / num_readings);
    };
  }
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const double density : densities) {
      if (!config.is_local(layer)) {
        const auto everything = static_cast<float>(2 / density);
        settings.selector->density = static_cast<float>(density);
        settings.layer_budgets.assign(static_cast<size_t>(config.num_layers), everything);
        settings.layer_budgets[static_cast<size_t>(layer)] = 1;
        losses.loss[static_cast<size_t>(layer)].push_back(
            meter.measure(settings, with_progress).squared_change());
      }
      ++readings_done;
    }
  }
  return losses;
}

std::vector<float> spread_density(const LayerLosses& losses, double density) {
  check_argument(!losses.densities.empty(), "densities are spread by losses at some of them");
  const double least = losses.densities.front();
  check_argument(least <= density && density <= 1,
                 "a density to spread over layers must be in [{:.4g}, 1], is {}", least, density);
  std::vector<Step> steps;
  std::vector<double> layer_density(losses.loss.size(), 0);
  double room = 0;  // density to give beyond the least
  for (size_t layer = 0; layer < losses.loss.size(); ++layer) {
    if (losses.loss[layer].empty()) continue;
    layer_density[layer] = least;
    room += density - least;
    const auto more = hull_steps(layer, interpolate(losses.densities, losses.loss[layer]));
    steps.insert(steps.end(), more.begin(), more.end());
  }
  check_argument(!steps.empty(), "no layer selects, so that there is nothing to spread");
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return a.gain != b.gain ? a.gain > b.gain : a.from < b.from;  // layers alike take turns
  });
  for (const Step& step : steps) {
    const double width = std::min(room, step.to - step.from);
    layer_density[step.layer] += width;
    room -= width;
  }
  std::vector<float> budgets;
  for (const double value : layer_density) {
    budgets.push_back(value > 0 ? static_cast<float>(value / density) : 1);
  }
  return budgets;
}

}  // namespace fovea::quality
