// How far a trace can be believed. Health comes before any verdict.
#pragma once

#include "fovea/trace/attribution.h"
#include "fovea/trace/device_time.h"
#include "fovea/trace/trace_records.h"
#include "fovea/trace/trace_report.h"

namespace fovea::trace {

/// Fills report->findings and, when the trace is fit for it, report->idle_share; else the reason.
/// Everything else of the report must be there.
void judge_health(const TraceRecords& records, const AttributionCounts& attribution,
                  const DeviceTime& devices, TraceReport* report);

}  // namespace fovea::trace
