// What a faster kernel is worth: to a step (Amdahl), to a request, and what a published claim
// implies.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace fovea::worth {

/// Speed-up of a step when its share `p` in [0, 1] runs `s` > 0 times faster: 1 / ((1 - p) + p /
/// s). An infinite `s` gives the ceiling. Throws kInvalidArgument outside those ranges.
double step_speedup(double p, double s);

/// Speed-up of a step whose share `p` costs nothing at all: 1 / (1 - p), infinite at p = 1.
double step_ceiling(double p);

/// Kernel speed-up that makes a step `target` >= 1 times faster: the inverse of step_speedup in s.
/// Infinite when `target` is the ceiling or beyond, which is to say that no kernel does it.
double needed_kernel_speedup(double p, double target);

/// Share that makes a kernel `s` > 1 times faster return a step `target` >= 1 times faster: the
/// break-even share. Above 1 when no share does it (`target` > `s`).
double needed_share(double s, double target);

/// One request as its user sees it. Times in milliseconds.
struct RequestShape {
  double ttft_ms = 0;        // first token, queueing left out
  double tpot_ms = 0;        // each later token
  double output_tokens = 1;  // at least 1
  double queue_ms = 0;       // waiting before prefill starts
  double other_ms = 0;       // network, tokenising: what no kernel touches
};

/// A change to attention: its share of prefill and of decode, and how much faster it becomes in
/// each.
struct AttentionWin {
  double prefill_share = 0;    // p_P
  double decode_share = 0;     // p_D
  double prefill_speedup = 1;  // s_P
  double decode_speedup =
      1;  // s_D: 1 when decode waits for memory and the kernel only computes faster
};

/// What the win returns to the request. Print saved_fraction (of time) and speedup side by side:
/// 0.657 % of the time is a speed-up of 1.0066x, and mixing the two is how claims grow.
struct RequestWorth {
  double total_ms = 0;    // queue + prefill + decode + other, before
  double prefill_ms = 0;  // of total_ms
  double decode_ms = 0;   // (output_tokens - 1) * tpot
  double saved_prefill_ms = 0;
  double saved_decode_ms = 0;
  double saved_fraction = 0;  // of total_ms
  double speedup = 1;         // total / (total - saved)
  double ttft_after_ms = 0;
  double tpot_after_ms = 0;
};

/// Throws kInvalidArgument for negative times, fewer than one output token, or an empty request.
RequestWorth request_worth(const RequestShape& request, const AttentionWin& win);

/// A speed-up that somebody published, of one level of the stack.
struct ClaimLevel {
  std::string name;    // "kernel", "stack", "e2e" ...
  double speedup = 1;  // > 0
};

/// What two levels of a claim say together: the inner one must take `share` of the outer one's
/// time.
struct ImpliedShare {
  std::string inner;
  std::string outer;
  double share = 0;  // (1 - 1 / S_outer) / (1 - 1 / S_inner)
  bool possible =
      false;  // share in [0, 1]: an outer level cannot win more than the inner one it holds
};

/// Shares implied by every pair of levels, given from the innermost (kernel) outwards (end to end).
/// Throws kInvalidArgument for fewer than two levels, or an inner speed-up of exactly 1.
std::vector<ImpliedShare> audit_claim(std::span<const ClaimLevel> levels);

}  // namespace fovea::worth
