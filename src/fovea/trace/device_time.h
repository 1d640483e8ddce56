// What the devices did over time: busy, idle, waiting. One pass over the kernels in order of start.
#pragma once

#include <map>
#include <optional>

#include "fovea/trace/trace_records.h"
#include "fovea/trace/trace_report.h"

namespace fovea::trace {

/// A gap so long that it is not part of the work: before it there is little or nothing.
struct Hole {
  double ts_us = 0;
  double dur_us = 0;
  double span_us = 0;  // of its device
  double busy_before_us = 0;
  double busy_us = 0;  // of its device, in all
};

struct DeviceTime {
  int64_t num_devices = 0;
  double span_us = 0;
  double busy_us = 0;
  double summed_us = 0;  // durations added up: above busy_us when streams overlap
  GapReport gaps;
  ShortLaunchReport short_launches;
  StreamWaitReport stream_waits;
  /// Gaps that waited for the host to launch one kernel (not a graph).
  double eager_wait_us = 0;
  std::optional<Hole> hole;  // the longest, if any gap is one
};

/// Kernels must be attributed and sorted by start.
DeviceTime measure_devices(const TraceRecords& records);

}  // namespace fovea::trace
