#include "fovea/trace/trace_report.h"

#include <algorithm>
#include <map>

#include "fovea/trace/attribution.h"
#include "fovea/trace/device_time.h"
#include "fovea/trace/health.h"
#include "fovea/trace/trace_records.h"

namespace fovea::trace {
namespace {

bool longer(const TimeShare& a, const TimeShare& b) { return a.time_us > b.time_us; }

// Sums by (phase, name), from which families, phases and the total follow.
struct NameSums {
  double time_us = 0;
  int64_t num_kernels = 0;
};
using PhaseSums = std::array<std::vector<NameSums>, kNumPhases>;

PhaseReport phase_report(Phase phase, const std::vector<NameSums>& sums,
                         const std::vector<NameRecord>& names) {
  PhaseReport report;
  report.phase = phase;
  std::map<std::string, TimeShare> families;
  double attention_us = 0;
  double unknown_us = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    const NameRecord& name = names[i];
    if (sums[i].num_kernels == 0 || name.is_memory) continue;
    report.kernel_us += sums[i].time_us;
    report.num_kernels += sums[i].num_kernels;
    if (name.is_attention) attention_us += sums[i].time_us;
    if (name.is_unknown) unknown_us += sums[i].time_us;
    TimeShare& family = families[name.family];
    family.name = family.family = name.family;
    family.time_us += sums[i].time_us;
    family.num_kernels += sums[i].num_kernels;
  }
  const double whole_us = report.kernel_us > 0 ? report.kernel_us : 1;
  report.attention = {attention_us / whole_us, (attention_us + unknown_us) / whole_us};
  report.unknown_share = unknown_us / whole_us;
  for (auto& [name, family] : families) {
    family.share = family.time_us / whole_us;
    report.families.push_back(family);
  }
  std::sort(report.families.begin(), report.families.end(), longer);
  return report;
}

std::vector<StepReport> step_reports(const TraceRecords& records) {
  std::vector<StepReport> reports(records.steps.size());
  for (size_t i = 0; i < reports.size(); ++i) {
    reports[i].name = records.steps[i].name;
    reports[i].label = records.steps[i].label;
    reports[i].host_ts_us = records.steps[i].ts_us;
    reports[i].host_dur_us = records.steps[i].dur_us;
  }
  for (const KernelRecord& kernel : records.kernels) {
    const NameRecord& name = records.names[kernel.name];
    if (kernel.link == kNoStep || name.is_memory) continue;
    StepReport& step = reports[kernel.link];
    const auto dur_us = static_cast<double>(kernel.dur_us);
    if (step.num_kernels == 0) step.first_us = kernel.ts_us;
    step.last_us = std::max(step.last_us, kernel.ts_us + dur_us);
    step.kernel_us += dur_us;
    if (name.is_attention) step.attention_us += dur_us;
    if (name.is_unknown) step.unknown_us += dur_us;
    ++step.num_kernels;
  }
  return reports;
}

// Leaves out what is not an engine's step: a device's copy of an annotation, and a profiler's step
// when the engine labels its own, unless kernels could be tied to nothing else.
std::vector<StepReport> listed_steps(const TraceRecords& records, std::vector<StepReport> reports) {
  bool engine_labels = false;
  for (const StepRecord& step : records.steps) {
    engine_labels = engine_labels || !step.name.starts_with("ProfilerStep#");
  }
  std::vector<StepReport> listed;
  for (size_t i = 0; i < reports.size(); ++i) {
    const bool secondary = records.steps[i].on_device ||
                           (engine_labels && reports[i].name.starts_with("ProfilerStep#"));
    if (!secondary || reports[i].num_kernels > 0) listed.push_back(std::move(reports[i]));
  }
  return listed;
}

}  // namespace

std::string_view gap_cause_name(GapCause cause) {
  switch (cause) {
    case GapCause::kHost:
      return "host";
    case GapCause::kDevice:
      return "device";
    case GapCause::kUnknown:
      return "unknown";
  }
  return "unknown";
}

std::string_view severity_name(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kProblem:
      return "problem";
  }
  return "note";
}

const PhaseReport* TraceReport::phase(Phase wanted) const {
  for (const PhaseReport& report : phases) {
    if (report.phase == wanted) return &report;
  }
  return nullptr;
}

TraceReport analyse_trace(const std::string& path, const FamilyTable& families) {
  TraceRecords records(&families);
  TraceReport report;
  report.file = read_trace(path, [&](const TraceEvent& event) { records.add(event); });
  fold_nested_steps(&records.steps);
  const AttributionCounts attribution = attribute_kernels(&records);
  const DeviceTime devices = measure_devices(records);

  PhaseSums sums;
  for (auto& by_name : sums) by_name.resize(records.names.size());
  std::vector<NameSums> total(records.names.size());
  for (const KernelRecord& kernel : records.kernels) {
    const Phase phase =
        kernel.link == kNoStep ? Phase::kUnlabelled : records.steps[kernel.link].label.phase;
    for (NameSums* sum : {&sums[static_cast<size_t>(phase)][kernel.name], &total[kernel.name]}) {
      sum->time_us += static_cast<double>(kernel.dur_us);
      ++sum->num_kernels;
    }
  }
  report.total = phase_report(Phase::kUnlabelled, total, records.names);
  report.steps = listed_steps(records, step_reports(records));
  for (int i = 0; i < kNumPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    PhaseReport one = phase_report(phase, sums[static_cast<size_t>(i)], records.names);
    if (one.num_kernels == 0) continue;
    for (const StepReport& step : report.steps) {
      if (step.label.phase == phase && step.num_kernels > 0) ++one.num_steps;
    }
    report.phases.push_back(one);
  }
  report.total.num_steps = static_cast<int64_t>(report.steps.size());

  for (size_t i = 0; i < total.size(); ++i) {
    if (total[i].num_kernels == 0) continue;
    if (records.names[i].is_memory) {
      report.memory_us += total[i].time_us;
      continue;
    }
    TimeShare kernel;
    kernel.name = records.names[i].name;
    kernel.family = records.names[i].family;
    kernel.time_us = total[i].time_us;
    kernel.num_kernels = total[i].num_kernels;
    kernel.share = report.total.kernel_us > 0 ? kernel.time_us / report.total.kernel_us : 0;
    report.kernels.push_back(kernel);
  }
  std::sort(report.kernels.begin(), report.kernels.end(), longer);

  report.num_devices = devices.num_devices;
  if (!records.kernels.empty()) report.first_us = records.kernels.front().ts_us;
  report.span_us = devices.span_us;
  report.busy_us = devices.busy_us;
  report.gaps = devices.gaps;
  report.short_launches = devices.short_launches;
  report.stream_waits = devices.stream_waits;
  judge_health(records, attribution, devices, &report);
  return report;
}

}  // namespace fovea::trace
