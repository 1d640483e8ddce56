// Events of a Chrome trace, one after another, whoever wrote it: PyTorch's profiler (Kineto), vLLM,
// SGLang, ours.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

namespace fovea::trace {

/// What an event is, from its phase letter and category.
enum class EventKind {
  kKernel,          // work on a device
  kMemory,          // a device's memcpy or memset
  kLaunch,          // runtime or driver call on the host
  kAnnotation,      // range that somebody named on the host
  kGpuAnnotation,   // the same range as the device saw it
  kCpuOp,           // operator of the framework
  kPythonFunction,  // frame of a with_stack capture
  kOther,           // flows, counters, metadata, instants
};

/// One event. Views last until the sink returns. Times are in microseconds of the trace's own
/// clock.
struct TraceEvent {
  EventKind kind = EventKind::kOther;
  std::string_view name;
  std::string_view category;
  double ts_us = 0;
  double dur_us = 0;
  int64_t pid = 0;  // a name instead of a number is hashed to a negative one
  int64_t tid = 0;
  int64_t correlation = -1;  // joins a kernel to its launch; -1 when absent
  int64_t external_id = -1;  // joins a kernel to its operator; -1 when absent
};

/// What reading a file told beside its events.
struct ReadSummary {
  std::string path;
  bool compressed = false;
  int64_t file_bytes = 0;
  int64_t json_bytes = 0;
  int64_t num_events = 0;
  int64_t num_malformed = 0;     // events that are not valid JSON or lack what their kind needs
  int64_t num_not_a_number = 0;  // events whose ts or dur is NaN, absurd or negative; left out
  int64_t num_control_characters = 0;  // inside strings, read as spaces
  int64_t num_invalid_utf8 = 0;        // events with bytes that are not UTF-8, read as '?'
  bool truncated = false;              // the file ends before its JSON does
  bool with_stack = false;             // as the file's header says
  bool profile_memory = false;
  std::string devices;  // names of the devices in the header, joined by ", "
  int64_t rank = -1;    // of a distributed run; -1 when the header does not say
};

/// Calls `sink` for every event with a duration (phase X) and returns what was found. Memory does
/// not grow with the file. Throws kInvalidFile for a file that is no Chrome trace, corrupt gzip or
/// a zip bomb.
ReadSummary read_trace(const std::string& path, const std::function<void(const TraceEvent&)>& sink);

}  // namespace fovea::trace
