// Which step launched a kernel: by correlation, never by the clock.
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/trace/trace_records.h"

namespace fovea::trace {

/// Finds the annotation that was open on a thread at a moment.
class StepIndex {
 public:
  StepIndex(const std::vector<StepRecord>& steps, const std::vector<TrackRecord>& tracks);

  /// Number of the innermost step open on `track` at `ts_us`; an engine's step before a profiler's,
  /// and the thread itself before the rest of its process. kNoStep when none was.
  uint32_t find(uint16_t track, double ts_us) const;
  /// The same for work whose launch is not known: a step on its own track (an engine that computes
  /// where it is asked, or the device's copy of the annotation), else the device's copy on any of
  /// its tracks. What the host was doing meanwhile says nothing.
  uint32_t find_on_device(uint16_t track, double ts_us) const;

 private:
  using StepList = std::vector<uint32_t>;  // ascending start

  uint32_t innermost(const StepList& list, double ts_us) const;
  uint32_t search(const std::array<std::map<int64_t, StepList>, 2>& wider, uint16_t track,
                  double ts_us) const;

  const std::vector<StepRecord>* steps_;
  const std::vector<TrackRecord>* tracks_;
  // [0] engines' steps, [1] ProfilerStep#n.
  std::array<std::vector<StepList>, 2> of_track_;
  std::array<std::map<int64_t, StepList>, 2> of_process_;  // the host's
  std::array<std::map<int64_t, StepList>, 2> of_device_;
};

/// What joining kernels to launches showed.
struct AttributionCounts {
  int64_t num_without_launch = 0;   // kernels with a correlation that no launch has
  double us_without_launch = 0;     // their time, and that of kernels without correlation
  int64_t num_ambiguous = 0;        // correlations that launches of several processes have
  int64_t num_shared_launches = 0;  // launches of more than one kernel
  int64_t most_kernels_per_launch = 0;
  int64_t num_launches = 0;  // of kernels, one by one
  int64_t num_launches_without_kernel = 0;
  int64_t num_graph_launches = 0;
  int64_t num_graph_launches_without_kernel = 0;
};

/// Removes a step nested in another of the same phase on its thread (vLLM's around SGLang's): they
/// are one step.
void fold_nested_steps(std::vector<StepRecord>* steps);

/// Writes each kernel's step number (or kNoStep) to `link` and its delay since the launch. Leaves
/// the launches sorted by correlation and the kernels sorted by start.
AttributionCounts attribute_kernels(TraceRecords* records);

}  // namespace fovea::trace
