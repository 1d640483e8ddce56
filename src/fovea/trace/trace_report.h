// What a trace says about where the time went, and how far to believe it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/trace/families.h"
#include "fovea/trace/step_label.h"
#include "fovea/trace/trace_reader.h"

namespace fovea::trace {

/// Time in one family of kernels, or under one kernel name.
struct TimeShare {
  std::string name;
  std::string family;  // of a kernel; equal to `name` for a family
  double time_us = 0;  // kernels' durations added up
  double share = 0;    // of the kernel time of the phase
  int64_t num_kernels = 0;
};

/// p, attention's share of kernel time. `high` counts unknown kernels as attention, `low` does not.
struct ShareInterval {
  double low = 0;
  double high = 0;
};

/// Kernel time of one phase, or of the whole trace.
struct PhaseReport {
  Phase phase = Phase::kUnlabelled;
  double kernel_us = 0;
  int64_t num_kernels = 0;
  int64_t num_steps = 0;
  ShareInterval attention;
  double unknown_share = 0;
  std::vector<TimeShare> families;  // longest first
};

/// One labelled step. Kernels belong to the step that launched them, whenever they ran.
struct StepReport {
  std::string name;
  StepLabel label;
  double host_ts_us = 0;  // the annotation's start and length on the host
  double host_dur_us = 0;
  double first_us = 0;  // first kernel's start, last kernel's end
  double last_us = 0;
  double kernel_us = 0;
  double attention_us = 0;
  double unknown_us = 0;
  int64_t num_kernels = 0;
};

/// Why a device stood still before a kernel.
enum class GapCause {
  kHost,    // the kernel was launched only after the device had run dry
  kDevice,  // it had been launched before: a dependency, a wait on another stream, or graph latency
  kUnknown,  // its launch is not in the trace
};
std::string_view gap_cause_name(GapCause cause);

struct Gap {
  double ts_us = 0;
  double dur_us = 0;
  GapCause cause = GapCause::kUnknown;
  int64_t device = 0;
  std::string before;  // kernels on its two sides
  std::string after;
};

/// Idle time of all devices, split by cause, and the longest gaps.
struct GapReport {
  std::array<double, 3> time_us{};  // by GapCause
  int64_t num_gaps = 0;
  std::vector<Gap> longest;  // at most kLongestGaps, longest first
  static constexpr size_t kLongestGaps = 10;
};

/// Runs of kernels each shorter than the host call that launches one: the device must wait for the
/// host.
struct ShortLaunchReport {
  double launch_cost_us = 0;  // median launch call; 0 when no launch was recorded
  int64_t num_runs = 0;       // of kShortestRun kernels or more on one stream, launched one by one
  int64_t num_kernels = 0;
  double span_us = 0;  // first start to last end, added up
  double busy_us = 0;  // kernels inside
  static constexpr int64_t kShortestRun = 16;
};

/// A stream that stood still until a kernel of another stream of its device ended.
struct StreamWaitReport {
  int64_t num_waits = 0;
  double time_us = 0;
};

enum class Severity { kNote, kWarning, kProblem };
std::string_view severity_name(Severity severity);

/// One health finding. A problem means that the verdict should not be trusted as it stands.
struct Finding {
  Severity severity = Severity::kNote;
  std::string code;     // stable, for programs: "unknown_kernels"
  std::string message;  // one sentence or two, with the figures
};

/// Everything about one file.
struct TraceReport {
  ReadSummary file;
  std::vector<Finding> findings;  // problems first
  PhaseReport total;
  std::vector<PhaseReport> phases;  // those with kernels, in the order of Phase
  std::vector<StepReport> steps;    // in time; those without kernels too
  std::vector<TimeShare> kernels;   // by name, longest first
  int64_t num_devices = 0;
  double first_us = 0;                // first kernel or copy, on the trace's clock
  double span_us = 0;                 // first start to last end, added over devices
  double busy_us = 0;                 // union of kernels and copies, added over devices
  double memory_us = 0;               // memcpy and memset, not in kernel time
  std::optional<double> idle_share;   // of the span; absent when the trace cannot tell
  std::string idle_withheld_because;  // why, then
  GapReport gaps;
  ShortLaunchReport short_launches;
  StreamWaitReport stream_waits;

  /// The report of one phase, or null when it has no kernels.
  const PhaseReport* phase(Phase wanted) const;
};

/// Above this share of unclassified kernel time, p is an interval.
inline constexpr double kUnknownLimit = 0.05;

/// Reads and analyses one trace. *Memory*: 24 bytes a kernel and 16 a launch, whatever the file's
/// size. Throws as read_trace() does.
TraceReport analyse_trace(const std::string& path, const FamilyTable& families);

/// The report as one JSON object, names as in this header.
std::string trace_report_json(const TraceReport& report);

}  // namespace fovea::trace
