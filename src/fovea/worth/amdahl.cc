#include "fovea/worth/amdahl.h"

#include <cmath>
#include <limits>

#include "fovea/base/error.h"

namespace fovea::worth {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_share(double p, const char* name) {
  check_argument(p >= 0 && p <= 1, "{} must be a share between 0 and 1, got {}", name, p);
}

void check_speedup(double s, const char* name) {
  check_argument(s > 0, "{} must be above 0, got {}", name, s);
}

void check_ms(double ms, const char* name) {
  check_argument(ms >= 0 && std::isfinite(ms), "{} must be at least 0 ms, got {}", name, ms);
}

}  // namespace

double step_speedup(double p, double s) {
  check_share(p, "p");
  check_speedup(s, "the kernel's speed-up");
  const double time_left = (1 - p) + p / s;
  return time_left > 0 ? 1 / time_left : kInfinity;
}

double step_ceiling(double p) { return step_speedup(p, kInfinity); }

double needed_kernel_speedup(double p, double target) {
  check_share(p, "p");
  check_argument(target >= 1 && std::isfinite(target), "the target must be at least 1x, got {}",
                 target);
  // 1 / target = (1 - p) + p / s, solved for p / s: what is left of the kernel's own time.
  const double kernel_time_left = 1 / target - (1 - p);
  if (target == 1) return 1;
  return kernel_time_left > 0 ? p / kernel_time_left : kInfinity;
}

double needed_share(double s, double target) {
  check_argument(s > 1, "the kernel's speed-up must be above 1, got {}", s);
  check_argument(target >= 1 && std::isfinite(target), "the target must be at least 1x, got {}",
                 target);
  return (1 - 1 / target) / (1 - 1 / s);
}

RequestWorth request_worth(const RequestShape& request, const AttentionWin& win) {
  check_ms(request.ttft_ms, "ttft");
  check_ms(request.tpot_ms, "tpot");
  check_ms(request.queue_ms, "the queueing time");
  check_ms(request.other_ms, "the other time");
  check_argument(request.output_tokens >= 1 && std::isfinite(request.output_tokens),
                 "a request must return at least 1 token, got {}", request.output_tokens);
  check_share(win.prefill_share, "the prefill share");
  check_share(win.decode_share, "the decode share");
  check_speedup(win.prefill_speedup, "the prefill speed-up");
  check_speedup(win.decode_speedup, "the decode speed-up");

  RequestWorth worth;
  worth.prefill_ms = request.ttft_ms;
  worth.decode_ms = (request.output_tokens - 1) * request.tpot_ms;
  worth.total_ms = request.queue_ms + worth.prefill_ms + worth.decode_ms + request.other_ms;
  check_argument(worth.total_ms > 0, "the request takes no time: give --ttft or --tpot above 0");

  const double prefill_gain = (1 - 1 / win.prefill_speedup) * win.prefill_share;
  const double decode_gain = (1 - 1 / win.decode_speedup) * win.decode_share;
  worth.saved_prefill_ms = prefill_gain * worth.prefill_ms;
  worth.saved_decode_ms = decode_gain * worth.decode_ms;
  const double saved_ms = worth.saved_prefill_ms + worth.saved_decode_ms;
  worth.saved_fraction = saved_ms / worth.total_ms;
  worth.speedup =
      saved_ms < worth.total_ms ? worth.total_ms / (worth.total_ms - saved_ms) : kInfinity;
  worth.ttft_after_ms = (1 - prefill_gain) * request.ttft_ms;
  worth.tpot_after_ms = (1 - decode_gain) * request.tpot_ms;
  return worth;
}

std::vector<ImpliedShare> audit_claim(std::span<const ClaimLevel> levels) {
  check_argument(levels.size() >= 2, "a claim needs two levels or more, got {}", levels.size());
  for (const ClaimLevel& level : levels) {
    check_argument(level.speedup > 0 && std::isfinite(level.speedup),
                   "the speed-up of '{}' must be above 0, got {}", level.name, level.speedup);
  }
  std::vector<ImpliedShare> implied;
  for (size_t inner = 0; inner + 1 < levels.size(); ++inner) {
    check_argument(levels[inner].speedup != 1,
                   "'{}' is 1x: a level that won nothing says nothing of its share",
                   levels[inner].name);
    for (size_t outer = inner + 1; outer < levels.size(); ++outer) {
      ImpliedShare pair;
      pair.inner = levels[inner].name;
      pair.outer = levels[outer].name;
      pair.share = (1 - 1 / levels[outer].speedup) / (1 - 1 / levels[inner].speedup);
      pair.possible = pair.share >= 0 && pair.share <= 1;
      implied.push_back(pair);
    }
  }
  return implied;
}

}  // namespace fovea::worth
