// What a handful of prompts allows to say: intervals of a score, and of the difference between two.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fovea::quality {

/// Bounds that hold the true value with 95 % confidence; NaN when nothing was measured.
struct Interval {
  double low = 0;
  double high = 0;
};

/// Wilson's score interval of a rate in 0 ... 1 seen in `count` independent trials; `count` need
/// not be whole. It stays honest near 0 and 1 and for small counts; for scores between 0 and 1 it
/// is too wide rather than too narrow.
Interval wilson_interval(double rate, double count);

/// The scores of one prompt's questions, each 0 ... 1.
using PromptScores = std::vector<double>;

/// Mean of all questions' scores with Wilson's interval. Questions of one prompt share its text, so
/// they count as fewer independent ones the more alike they fare: the count is divided by the
/// design effect, how much more the prompts' means vary than independent questions' would.
struct MeanScore {
  double value = 0;  // NaN without questions
  Interval interval;
  int64_t num_prompts = 0;
  int64_t num_questions = 0;
};
MeanScore mean_score(std::span<const PromptScores> prompts);

/// The same prompts under two attentions, one value each.
struct PairedValues {
  std::vector<double> a, b;
};

/// A mean difference a - b with its bootstrap interval.
struct Difference {
  double mean = 0;  // NaN without prompts
  Interval interval;
  int64_t num_prompts = 0;
  int64_t num_differing = 0;  // prompts whose two values differ
  /// Whether the interval excludes zero and at least kLeastDiffering prompts differ.
  bool significant = false;
};

/// With fewer prompts that differ, all in one direction, a sign test stays above 5 %; a percentile
/// interval, which only knows what it saw, would not notice.
constexpr int64_t kLeastDiffering = 6;

struct BootstrapSettings {
  uint64_t seed = 1;
  int64_t num_resamples = 10'000;
};

/// Paired percentile bootstrap over prompts: the same settings give the same bits. With several
/// groups (tasks), prompts are drawn within each and the groups' means are averaged, each with the
/// same weight. A group of a single prompt leaves the interval NaN. Throws kInvalidArgument when a
/// and b of a group differ in size, or there are no resamples.
///
/// Source: Efron and Tibshirani, "An introduction to the bootstrap", 1993, chapter 13.
Difference paired_difference(std::span<const PairedValues> groups,
                             const BootstrapSettings& settings = {});

}  // namespace fovea::quality
