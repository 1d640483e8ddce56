#include "fovea/worth/fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

void check_sweep(const Sweep& sweep, size_t least) {
  check_argument(sweep.tokens.size() == sweep.values.size(),
                 "sweep '{}' has {} lengths and {} values", sweep.backend, sweep.tokens.size(),
                 sweep.values.size());
  check_argument(sweep.tokens.size() >= least, "sweep '{}' needs at least {} lengths, got {}",
                 sweep.backend, least, sweep.tokens.size());
  for (size_t i = 0; i < sweep.tokens.size(); ++i) {
    check_argument(sweep.tokens[i] > 0 && std::isfinite(sweep.tokens[i]),
                   "sweep '{}' has a length of {} tokens", sweep.backend, sweep.tokens[i]);
    check_argument(sweep.values[i] > 0 && std::isfinite(sweep.values[i]),
                   "sweep '{}' has a time of {} at {} tokens", sweep.backend, sweep.values[i],
                   sweep.tokens[i]);
  }
}

std::vector<double> weights_of(const std::vector<double>& values, Weighting weighting) {
  std::vector<double> weights(values.size(), 1.0);
  if (weighting == Weighting::kRelative) {
    for (size_t i = 0; i < values.size(); ++i) weights[i] = 1 / values[i];
  }
  return weights;
}

double longest(const Sweep& sweep) {
  return *std::max_element(sweep.tokens.begin(), sweep.tokens.end());
}

}  // namespace

const char* weighting_name(Weighting weighting) {
  return weighting == Weighting::kAbsolute ? "absolute" : "relative";
}

double PrefillFit::quadratic_share(double tokens) const {
  return c_s * tokens / (b_s + c_s * tokens);
}

PrefillFit fit_prefill(const Sweep& sweep, Weighting weighting) {
  return fit_prefill_jointly({&sweep, 1}, weighting).front();
}

std::vector<PrefillFit> fit_prefill_jointly(std::span<const Sweep> sweeps, Weighting weighting) {
  check_argument(!sweeps.empty(), "there is no sweep to fit");
  // Coefficients: one a per sweep, b, one c per sweep.
  const size_t columns = 2 * sweeps.size() + 1;
  const size_t b_column = sweeps.size();
  std::vector<double> rows;
  std::vector<double> y;
  for (size_t s = 0; s < sweeps.size(); ++s) {
    check_sweep(sweeps[s], 3);
    for (size_t i = 0; i < sweeps[s].tokens.size(); ++i) {
      const double n = sweeps[s].tokens[i];
      std::vector<double> row(columns, 0.0);
      row[s] = 1;
      row[b_column] = n;
      row[b_column + 1 + s] = n * n;
      rows.insert(rows.end(), row.begin(), row.end());
      y.push_back(sweeps[s].values[i]);
    }
  }
  const LinearFit fit =
      least_squares(rows, static_cast<int64_t>(columns), y, weights_of(y, weighting));

  std::vector<PrefillFit> fits;
  auto residual = fit.residuals.begin();
  for (size_t s = 0; s < sweeps.size(); ++s) {
    PrefillFit one;
    one.backend = sweeps[s].backend;
    one.weighting = weighting;
    one.b_shared = sweeps.size() > 1;
    one.a_s = fit.coefficients[s];
    one.a_se = fit.standard_errors[s];
    one.b_s = fit.coefficients[b_column];
    one.b_se = fit.standard_errors[b_column];
    one.c_s = fit.coefficients[b_column + 1 + s];
    one.c_se = fit.standard_errors[b_column + 1 + s];
    const auto points = static_cast<std::ptrdiff_t>(sweeps[s].tokens.size());
    one.residuals_s.assign(residual, residual + points);
    residual += points;
    one.sigma = fit.sigma;
    one.degrees_of_freedom = fit.degrees_of_freedom;
    one.longest_tokens = longest(sweeps[s]);
    fits.push_back(one);
  }
  return fits;
}

std::vector<size_t> far_below_fit(const Sweep& sweep) {
  constexpr size_t kLeastLengths = 5;  // four for a fit with an error, and the one in question
  constexpr double kFarBelow = 0.5;
  std::vector<size_t> found;
  std::vector<size_t> left(sweep.tokens.size());
  std::iota(left.begin(), left.end(), size_t{0});
  // The lowest goes first, because it bends the fit that the others are judged by.
  while (left.size() >= kLeastLengths) {
    size_t lowest = 0;
    double lowest_ratio = kFarBelow;
    for (const size_t i : left) {
      Sweep others{sweep.backend, {}, {}};
      for (const size_t other : left) {
        if (other == i) continue;
        others.tokens.push_back(sweep.tokens[other]);
        others.values.push_back(sweep.values[other]);
      }
      const double predicted = fit_prefill(others, Weighting::kRelative).ttft_s(sweep.tokens[i]);
      if (predicted <= 0 || sweep.values[i] / predicted >= lowest_ratio) continue;
      lowest_ratio = sweep.values[i] / predicted;
      lowest = i;
    }
    if (lowest_ratio == kFarBelow) break;
    found.push_back(lowest);
    std::erase(left, lowest);
  }
  std::sort(found.begin(), found.end());
  return found;
}

DecodeFit fit_decode(const Sweep& sweep) {
  check_sweep(sweep, 2);
  std::vector<double> rows;
  for (const double n : sweep.tokens) {
    rows.push_back(1);
    rows.push_back(n);
  }
  const LinearFit fit =
      least_squares(rows, 2, sweep.values, weights_of(sweep.values, Weighting::kAbsolute));
  DecodeFit decode;
  decode.backend = sweep.backend;
  decode.intercept_ms = fit.coefficients[0];
  decode.intercept_se_ms = fit.standard_errors[0];
  decode.slope_us_per_token = fit.coefficients[1] * 1e3;
  decode.slope_se_us_per_token = fit.standard_errors[1] * 1e3;
  decode.residuals_ms = fit.residuals;
  decode.longest_tokens = longest(sweep);
  return decode;
}

double DecodeFit::attention_share(double tokens) const {
  return slope_us_per_token * tokens / 1e3 / itl_ms(tokens);
}

double DecodeFit::bandwidth_gbps(double kv_bytes_per_token) const {
  check_argument(kv_bytes_per_token > 0, "KV bytes per token must be above 0, got {}",
                 kv_bytes_per_token);
  return kv_bytes_per_token / slope_us_per_token / 1e3;
}

double DecodeFit::kernel_headroom(double kv_bytes_per_token, double copy_gbps) const {
  check_argument(copy_gbps > 0, "the copy rate must be above 0 GB/s, got {}", copy_gbps);
  return copy_gbps / bandwidth_gbps(kv_bytes_per_token);
}

TwoPointLaw two_point_law(const SharePoint& first, const SharePoint& second) {
  check_argument(first.tokens > 0, "the first length must be above 0, got {}", first.tokens);
  check_argument(second.tokens > first.tokens, "the second length must be above the first, got {}",
                 second.tokens);
  for (const double share : {first.share, second.share}) {
    check_argument(share > 0 && share < 1, "a share must be between 0 and 1, got {}", share);
  }
  TwoPointLaw law;
  law.ratio = first.share / (1 - first.share) / first.tokens;
  law.predicted_share = law.share(second.tokens);
  law.published_share = second.share;
  return law;
}

}  // namespace fovea::worth
