#include "fovea/quality/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fovea/base/error.h"
#include "fovea/tensor/random_value.h"

namespace fovea::quality {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// How many times more the means of prompts vary than they would if every question stood alone; 1
// where that cannot be told. At most the number of questions a prompt.
double design_effect(std::span<const PromptScores> prompts, double mean, double num_questions) {
  const auto num_prompts = static_cast<double>(prompts.size());
  double within = 0;   // variance of a question's score
  double between = 0;  // weighted squared distance of the prompts' means
  for (const PromptScores& scores : prompts) {
    for (const double score : scores) within += (score - mean) * (score - mean);
    if (scores.empty()) continue;
    const double distance = mean_of(scores) - mean;
    between += static_cast<double>(scores.size()) * distance * distance;
  }
  if (prompts.size() < 2 || within == 0) return 1;
  const double ratio = (between / (num_prompts - 1)) / (within / num_questions);
  return std::clamp(ratio, 1.0, num_questions / num_prompts);
}

// The value below which a share `quantile` of sorted `values` lies, interpolated between ranks.
double quantile_of(std::span<const double> sorted, double quantile) {
  const double rank = quantile * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - static_cast<double>(below));
}

// Mean of as many draws from `values` as there are values; draws are numbered from `*drawn` on.
double resampled_mean(std::span<const double> values, uint64_t seed, uint64_t* drawn) {
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double unit = 0.5 + 0.5 * static_cast<double>(random_value(seed, (*drawn)++));
    sum += values[static_cast<size_t>(unit * count)];
  }
  return sum / count;
}

}  // namespace

Interval wilson_interval(double rate, double count) {
  if (!(count > 0)) return {kNaN, kNaN};
  constexpr double kZ = 1.959963984540054;
  const double shrink = 1 + kZ * kZ / count;
  const double centre = (rate + kZ * kZ / (2 * count)) / shrink;
  const double half =
      kZ * std::sqrt(rate * (1 - rate) / count + kZ * kZ / (4 * count * count)) / shrink;
  return {std::max(centre - half, 0.0), std::min(centre + half, 1.0)};
}

MeanScore mean_score(std::span<const PromptScores> prompts) {
  MeanScore score;
  double sum = 0;
  for (const PromptScores& scores : prompts) {
    sum += std::accumulate(scores.begin(), scores.end(), 0.0);
    score.num_questions += static_cast<int64_t>(scores.size());
  }
  score.num_prompts = static_cast<int64_t>(prompts.size());
  if (score.num_questions == 0) {
    score.value = kNaN;
    score.interval = {kNaN, kNaN};
    return score;
  }
  const auto count = static_cast<double>(score.num_questions);
  score.value = std::clamp(sum / count, 0.0, 1.0);
  score.interval = wilson_interval(score.value, count / design_effect(prompts, score.value, count));
  return score;
}

Difference paired_difference(std::span<const PairedValues> groups,
                             const BootstrapSettings& settings) {
  check_argument(settings.num_resamples > 0, "num_resamples must be positive, is {}",
                 settings.num_resamples);
  Difference difference;
  std::vector<std::vector<double>> distances;  // a - b, one list a group that has prompts
  double sum_of_means = 0;
  for (const PairedValues& group : groups) {
    check_argument(group.a.size() == group.b.size(),
                   "paired values must be as many on both sides, are {} and {}", group.a.size(),
                   group.b.size());
    if (group.a.empty()) continue;
    std::vector<double>& distance = distances.emplace_back();
    for (size_t i = 0; i < group.a.size(); ++i) {
      distance.push_back(group.a[i] - group.b[i]);
      difference.num_differing += group.a[i] != group.b[i] ? 1 : 0;
    }
    difference.num_prompts += static_cast<int64_t>(distance.size());
    sum_of_means += mean_of(distance);
  }
  if (distances.empty()) return {kNaN, {kNaN, kNaN}, 0, 0, false};
  const auto num_groups = static_cast<double>(distances.size());
  difference.mean = sum_of_means / num_groups;
  difference.interval = {kNaN, kNaN};
  const bool single = std::any_of(distances.begin(), distances.end(),
                                  [](const auto& group) { return group.size() == 1; });
  if (single) return difference;  // one prompt says nothing of how much prompts vary

  std::vector<double> means(static_cast<size_t>(settings.num_resamples));
  uint64_t drawn = 0;
  for (double& mean : means) {
    double sum = 0;
    for (const std::vector<double>& distance : distances) {
      sum += resampled_mean(distance, settings.seed, &drawn);
    }
    mean = sum / num_groups;
  }
  std::sort(means.begin(), means.end());
  difference.interval = {quantile_of(means, 0.025), quantile_of(means, 0.975)};
  const bool excludes_zero = difference.interval.low > 0 || difference.interval.high < 0;
  difference.significant = excludes_zero && difference.num_differing >= kLeastDiffering;
  return difference;
}

}  // namespace fovea::quality
