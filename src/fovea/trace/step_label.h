// What a serving engine says about a step in the name of its annotation.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fovea::trace {

enum class Phase { kPrefill, kDecode, kMixed, kUnlabelled };
inline constexpr int kNumPhases = 4;

/// "prefill", "decode", "mixed" or "unlabelled".
std::string_view phase_name(Phase phase);

/// One step's label. Counts are -1 when the name does not say.
struct StepLabel {
  Phase phase = Phase::kUnlabelled;
  int64_t context_requests = -1;     // requests in prefill
  int64_t context_tokens = -1;       // prompt tokens computed in this step
  int64_t generation_requests = -1;  // requests in decode
};

/// Reads the annotations of vLLM (`execute_context_2(512)_generation_8(8)`, with or without counts
/// and sums), SGLang and Fovea (`step[EXTEND bs=15 toks=15360]`, `step[decode bs=8]`), TensorRT-LLM
/// (`... 1 ctx reqs, 2 gen reqs`) and PyTorch's `ProfilerStep#3`, which is a step of no known
/// phase. Empty for any other name.
std::optional<StepLabel> parse_step_label(std::string_view name);

}  // namespace fovea::trace
