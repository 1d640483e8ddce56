// Names of the methods and the rules of their settings.
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "fovea/base/error.h"
#include "fovea/selector/block_selector.h"

namespace fovea {
namespace {

constexpr std::array<std::pair<SelectorMethod, std::string_view>, 15> kNames = {{
    {SelectorMethod::kAll, "all"},
    {SelectorMethod::kStreaming, "streaming"},
    {SelectorMethod::kCentroid, "centroid"},
    {SelectorMethod::kRescue, "rescue"},
    {SelectorMethod::kWitness, "witness"},
    {SelectorMethod::kBound, "bound"},
    {SelectorMethod::kOracle, "oracle"},
    {SelectorMethod::kMinMax, "minmax"},
    {SelectorMethod::kAntidiagonal, "antidiagonal"},
    {SelectorMethod::kVerticalSlash, "vertical_slash"},
    {SelectorMethod::kQueryAware, "query_aware"},
    {SelectorMethod::kSelfSimilar, "self_similar"},
    {SelectorMethod::kNearest, "nearest"},
    {SelectorMethod::kMass, "mass"},
    {SelectorMethod::kPeak, "peak"},
}};

void check_share(float value, const char* name) {
  check_argument(value >= 0 && value <= 1, "{} must be in 0 ... 1, got {}", name, value);
}

void check_count(int64_t value, int64_t least, const char* name) {
  constexpr int64_t kMost = int64_t{1} << 40;  // far past any prompt, and safe to add and multiply
  check_argument(value >= least && value <= kMost, "{} must be in {} ... {}, got {}", name, least,
                 kMost, value);
}

}  // namespace

float default_density(SelectorMethod method) {
  return method == SelectorMethod::kWitness ? 0.15f : 0.0f;
}

float default_coverage(SelectorMethod method) {
  switch (method) {
    case SelectorMethod::kAntidiagonal:
    case SelectorMethod::kQueryAware:
      return 0.9f;
    case SelectorMethod::kMass:
      return 0.6f;
    case SelectorMethod::kSelfSimilar:
      return 0.98f;
    default:
      return 0;
  }
}

bool depends_on_chunk(const SelectorSettings& settings) {
  return settings.method == SelectorMethod::kVerticalSlash ||
         settings.method == SelectorMethod::kQueryAware ||
         settings.quantiles == QuantileMode::kPrompt;
}

bool reads_witnesses(SelectorMethod method) {
  return method == SelectorMethod::kWitness || method == SelectorMethod::kNearest ||
         method == SelectorMethod::kMass || method == SelectorMethod::kPeak;
}

bool varies_witnesses(const SelectorSettings& settings) {
  return reads_witnesses(settings.method) && (settings.witness_choice != WitnessChoice::kSpread ||
                                              settings.f8_witnesses || settings.calm_quantile > 0);
}

bool is_lab(const SelectorSettings& settings) {
  return is_lab_method(settings.method) || varies_witnesses(settings) || skips_by_bound(settings);
}

std::string_view witness_choice_name(WitnessChoice choice) {
  switch (choice) {
    case WitnessChoice::kSpread:
      return "spread";
    case WitnessChoice::kFar:
      return "far";
    case WitnessChoice::kNorm:
      return "norm";
  }
  return "unknown";
}

std::string_view aggregation_name(Aggregation aggregation) {
  switch (aggregation) {
    case Aggregation::kSum:
      return "sum";
    case Aggregation::kMax:
      return "max";
    case Aggregation::kMaxOverMeans:
      return "max_over_means";
  }
  return "unknown";
}

std::string_view selector_method_name(SelectorMethod method) {
  for (const auto& [known, name] : kNames) {
    if (known == method) return name;
  }
  return "unknown";
}

std::vector<std::string_view> selector_method_names() {
  std::vector<std::string_view> names;
  for (const auto& [method, name] : kNames) names.push_back(name);
  return names;
}

SelectorMethod parse_selector_method(std::string_view name) {
  std::string known_names;
  for (const auto& [method, known] : kNames) {
    if (known == name) return method;
    known_names += (known_names.empty() ? "" : ", ") + std::string(known);
  }
  fail(ErrorCode::kInvalidArgument, "selector must be one of {}, got '{}'", known_names, name);
}

void check_selector_settings(const SelectorSettings& settings) {
  check_argument(selector_method_name(settings.method) != "unknown",
                 "method must be a selector method, got {}", static_cast<int>(settings.method));
  check_argument(settings.block_size >= 16 && settings.block_size <= 4096,
                 "block_size must be in 16 ... 4096, got {}", settings.block_size);
  check_share(settings.alpha_base, "alpha_base");
  check_share(settings.alpha_rescue, "alpha_rescue");
  check_share(settings.quantile_low, "quantile_low");
  check_share(settings.quantile_high, "quantile_high");
  check_argument(settings.quantile_low <= settings.quantile_high,
                 "quantile_low must not exceed quantile_high, got {} and {}", settings.quantile_low,
                 settings.quantile_high);
  check_argument(
      settings.quantiles == QuantileMode::kCausal || settings.quantiles == QuantileMode::kPrompt,
      "quantiles must be causal or prompt, got {}", static_cast<int>(settings.quantiles));
  check_share(settings.uplift_clamp, "uplift_clamp");
  check_share(settings.density, "density");
  check_share(settings.rescue_share, "rescue_share");
  check_count(settings.sink_blocks, 0, "sink_blocks");
  check_count(settings.local_blocks, 1, "local_blocks");
  check_count(settings.dense_tail_blocks, 0, "dense_tail_blocks");
  check_count(settings.min_sparse_len, 0, "min_sparse_len");
  check_count(settings.streaming_sink_tokens, 0, "streaming_sink_tokens");
  check_count(settings.streaming_local_tokens, 1, "streaming_local_tokens");
  check_argument(settings.num_witnesses >= 1 && settings.num_witnesses <= kMaxWitnesses,
                 "num_witnesses must be in 1 ... {}, got {}", kMaxWitnesses,
                 settings.num_witnesses);
  check_argument(settings.witness_choice >= WitnessChoice::kSpread &&
                     settings.witness_choice <= WitnessChoice::kNorm,
                 "witness_choice must be spread, far or norm, got {}",
                 static_cast<int>(settings.witness_choice));
  check_share(settings.calm_quantile, "calm_quantile");
  check_argument(!skips_by_bound(settings) ||
                     (settings.aggregation == Aggregation::kSum && !settings.lists_per_kv_head),
                 "skip_by_bound needs aggregation sum and lists per q head");
  check_argument(settings.aggregation >= Aggregation::kSum &&
                     settings.aggregation <= Aggregation::kMaxOverMeans,
                 "aggregation must be sum, max or max_over_means, got {}",
                 static_cast<int>(settings.aggregation));
  check_argument(!settings.lists_per_kv_head || !is_lab_method(settings.method),
                 "lists_per_kv_head is not for {}, which judges q heads by themselves",
                 selector_method_name(settings.method));
  check_share(settings.coverage, "coverage");
  check_argument(settings.antidiagonal_stride >= 1 &&
                     (settings.method != SelectorMethod::kAntidiagonal ||
                      settings.block_size % settings.antidiagonal_stride == 0),
                 "antidiagonal_stride must divide block_size {}, got {}", settings.block_size,
                 settings.antidiagonal_stride);
  check_count(settings.vertical_tokens, 0, "vertical_tokens");
  check_count(settings.slash_tokens, 0, "slash_tokens");
  check_share(settings.most_divergence, "most_divergence");
  check_share(settings.least_similarity, "least_similarity");
  check_argument(std::isfinite(settings.nearest_gap) && settings.nearest_gap >= 0,
                 "nearest_gap must be finite and not negative, got {}", settings.nearest_gap);
  check_argument(settings.mass_power >= 0.1f && settings.mass_power <= 10,
                 "mass_power must be in [0.1, 10], got {}", settings.mass_power);
  check_share(settings.least_peak, "least_peak");
}

}  // namespace fovea
