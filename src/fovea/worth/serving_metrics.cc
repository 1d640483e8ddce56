#include "fovea/worth/serving_metrics.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

bool within(const std::optional<double>& target, double value) {
  return !target.has_value() || value <= *target;
}

}  // namespace

RequestMetrics request_metrics(const RequestRecord& record) {
  check_argument(!record.failed, "a failed request has no latency metrics");
  check_argument(!record.token_ms.empty(), "a request without tokens has no latency metrics");
  double previous_ms = record.send_ms;
  for (const double arrival_ms : record.token_ms) {
    check_argument(arrival_ms >= previous_ms, "token times run backwards: {} ms after {} ms",
                   arrival_ms, previous_ms);
    previous_ms = arrival_ms;
  }

  RequestMetrics metrics;
  metrics.ttft_ms = record.token_ms.front() - record.send_ms;
  metrics.e2e_ms = record.token_ms.back() - record.send_ms;
  for (size_t i = 1; i < record.token_ms.size(); ++i) {
    metrics.itl_ms.push_back(record.token_ms[i] - record.token_ms[i - 1]);
  }
  if (!metrics.itl_ms.empty()) {
    metrics.tpot_ms = (record.token_ms.back() - record.token_ms.front()) /
                      static_cast<double>(metrics.itl_ms.size());
  }
  return metrics;
}

Goodput goodput(std::span<const RequestRecord> records, const LatencyTargets& targets) {
  Goodput result;
  for (const RequestRecord& record : records) {
    ++result.num_requests;
    if (record.failed || record.token_ms.empty()) {
      ++result.num_failed;
      continue;
    }
    const RequestMetrics metrics = request_metrics(record);
    const bool one_token = metrics.itl_ms.empty();
    if (one_token) ++result.num_one_token;
    if (!within(targets.ttft_ms, metrics.ttft_ms) || !within(targets.e2e_ms, metrics.e2e_ms)) {
      continue;
    }
    const auto gap_met = [&](double gap_ms) { return within(targets.tpot_ms, gap_ms); };
    if (one_token || gap_met(*metrics.tpot_ms)) ++result.met_mean_gap;
    if (one_token || gap_met(percentile(metrics.itl_ms, 99))) ++result.met_p99_gap;
    if (one_token || gap_met(*std::max_element(metrics.itl_ms.begin(), metrics.itl_ms.end()))) {
      ++result.met_every_gap;
    }
  }
  return result;
}

TokenTimeDialects token_time_dialects(const RequestMetrics& metrics) {
  check_argument(metrics.tpot_ms.has_value(), "a one-token answer has no time between tokens");
  const auto num_tokens = static_cast<double>(metrics.itl_ms.size() + 1);
  TokenTimeDialects dialects;
  dialects.tpot_ms = *metrics.tpot_ms;
  dialects.guidellm_per_token_ms = metrics.e2e_ms / num_tokens;
  dialects.llmperf_itl_ms = metrics.e2e_ms / num_tokens;
  return dialects;
}

double percentile(std::vector<double> values, double q) {
  check_argument(!values.empty(), "no values to take a percentile of");
  check_argument(q >= 0 && q <= 100, "a percentile must be between 0 and 100, got {}", q);
  std::sort(values.begin(), values.end());
  const double position = q / 100 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double fraction = position - std::floor(position);
  return values[below] + fraction * (values[above] - values[below]);
}

}  // namespace fovea::worth
