// Serving metrics from the arrival times of tokens, defined once; other tools' readings of the same
// run beside them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fovea::worth {

/// One request as its client saw it. Times in milliseconds on one clock.
struct RequestRecord {
  double send_ms = 0;            // when it should have been sent, so that client queueing shows
  std::vector<double> token_ms;  // arrival of each output token, ascending
  bool failed = false;           // refused, cut off, or no token came
};

/// Metrics of one request that succeeded.
struct RequestMetrics {
  double ttft_ms = 0;             // first token's arrival - send time
  double e2e_ms = 0;              // last token's arrival - send time
  std::optional<double> tpot_ms;  // (last - first) / (tokens - 1); none for a one-token answer
  std::vector<double> itl_ms;     // every gap between tokens
};

/// Throws kInvalidArgument when the record failed, has no token, or its times run backwards.
RequestMetrics request_metrics(const RequestRecord& record);

/// Targets that a request must meet; a target that is not set is met.
struct LatencyTargets {
  std::optional<double> ttft_ms = std::nullopt;
  std::optional<double> tpot_ms = std::nullopt;
  std::optional<double> e2e_ms = std::nullopt;
};

/// Requests that met every target, under the three readings of the tpot target. A failed request
/// meets none. A one-token answer has no gap, so it meets any tpot target.
struct Goodput {
  int64_t num_requests = 0;  // failed ones included
  int64_t num_failed = 0;
  int64_t num_one_token = 0;
  int64_t met_mean_gap = 0;   // mean gap within the target: what vLLM's `--goodput tpot:50` tests
  int64_t met_p99_gap = 0;    // 99th percentile of the request's own gaps within it
  int64_t met_every_gap = 0;  // every gap within it
};

Goodput goodput(std::span<const RequestRecord> records, const LatencyTargets& targets);

/// How tools spell the time between tokens of one request: they differ when ttft is large.
struct TokenTimeDialects {
  double tpot_ms = 0;                // ours, vLLM, SGLang, AIPerf, GenAI-Perf: first token left out
  double guidellm_per_token_ms = 0;  // GuideLLM's time per output token: whole request / tokens
  double llmperf_itl_ms = 0;         // LLMPerf's inter-token latency: the same quotient
};

/// Throws kInvalidArgument for a one-token answer.
TokenTimeDialects token_time_dialects(const RequestMetrics& metrics);

/// Linear-interpolation percentile (numpy's default) of values that need not be sorted; q in [0,
/// 100].
double percentile(std::vector<double> values, double q);

}  // namespace fovea::worth
