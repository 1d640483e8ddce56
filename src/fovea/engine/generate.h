// Prompt in, text out: the sampling loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/engine/session.h"
#include "fovea/ops/sampling.h"

namespace fovea {

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingSettings sampling;
  bool stop_at_eos = true;
  /// Receives text as it is made, whole UTF-8 characters only; returning false ends the generation.
  std::function<bool(std::string_view text)> on_text;
  /// Progress and cancel flag of the prefill; a raised flag also ends decoding.
  PrefillOptions prefill;
};

enum class StopReason { kEos, kMaxTokens, kContextFull, kCallback, kCancelled };

/// Name as in JSON, for example "max_tokens".
std::string_view stop_reason_name(StopReason reason);

struct GenerateResult {
  int64_t prompt_tokens = 0;
  std::vector<int32_t> tokens;  // without the end token
  std::string text;
  StopReason stop = StopReason::kMaxTokens;
  /// From the call to the first token being chosen.
  double ttft_ms = 0;
  /// Gaps between tokens, the end token included: one fewer than tokens chosen.
  std::vector<double> itl_ms;
  double decode_density = 1;  // kept share of the causal pairs while decoding
  PrefillReport prefill;

  /// Output tokens per second after the first; 0 with fewer than two.
  double decode_tokens_per_s() const;
};

/// Reads `prompt` and continues it.
///
/// Throws as Session::prefill does; a flag raised during the prefill throws Cancelled, one raised
/// later ends the answer with kCancelled.
GenerateResult generate(Session& session, std::span<const int32_t> prompt,
                        const GenerateOptions& options = {});

}  // namespace fovea
