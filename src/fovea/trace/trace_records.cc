#include "fovea/trace/trace_records.h"

#include <fmt/format.h>

#include <algorithm>

namespace fovea::trace {
namespace {

// Untrusted files: names, tracks and annotations are bounded, whatever the file holds.
constexpr size_t kMostNames = 65'000;
constexpr size_t kLongestName = 1024;
constexpr size_t kMostTracks = 32'000;
constexpr size_t kMostSteps = 1'000'000;
constexpr size_t kMostWindows = 1'000;
constexpr size_t kMostOperators = 60'000;
constexpr size_t kMostOperatorLinks = 2'000'000;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string_view cut_name(std::string_view name) {
  // Cut between characters: continuation bytes of UTF-8 begin with 10.
  size_t length = std::min(name.size(), kLongestName);
  while (length > 0 && length < name.size() &&
         (static_cast<unsigned char>(name[length]) & 0xc0) == 0x80) {
    --length;
  }
  return name.substr(0, length);
}

// Operators worth remembering for kernels whose family they decide.
bool may_launch_template(std::string_view name) {
  return name.starts_with("aten::") || contains(name, "attention") || contains(name, "attn");
}

}  // namespace

void LaunchCostHistogram::add(double dur_us) {
  const double bin = std::min(dur_us * 8, static_cast<double>(bins_.size() - 1));
  ++bins_[static_cast<size_t>(bin)];
  ++count_;
}

double LaunchCostHistogram::median_us() const {
  int64_t below = 0;
  for (size_t bin = 0; bin < bins_.size(); ++bin) {
    below += bins_[bin];
    if (count_ > 0 && 2 * below >= count_) return (static_cast<double>(bin) + 0.5) / 8;
  }
  return 0;
}

void TraceRecords::add(const TraceEvent& event) {
  switch (event.kind) {
    case EventKind::kKernel:
    case EventKind::kMemory:
      add_kernel(event);
      break;
    case EventKind::kLaunch:
      add_launch(event);
      break;
    case EventKind::kAnnotation:
    case EventKind::kGpuAnnotation:
      add_annotation(event);
      break;
    case EventKind::kPythonFunction:
      ++num_python_frames;
      break;
    case EventKind::kCpuOp:
      ++num_cpu_ops;
      if (event.external_id >= 0 && may_launch_template(event.name)) add_operator(event);
      break;
    case EventKind::kOther:
      break;
  }
}

void TraceRecords::add_operator(const TraceEvent& event) {
  if (operator_of_.size() >= kMostOperatorLinks) return;
  const std::string_view name = cut_name(event.name);
  auto found = operator_numbers_.find(name);
  if (found == operator_numbers_.end()) {
    if (operators_.size() >= kMostOperators) return;
    found = operator_numbers_.emplace(name, static_cast<uint16_t>(operators_.size())).first;
    operators_.emplace_back(name);
  }
  operator_of_[event.external_id] = found->second;
}

void TraceRecords::add_kernel(const TraceEvent& event) {
  KernelRecord kernel;
  kernel.ts_us = event.ts_us;
  kernel.dur_us = static_cast<float>(event.dur_us);
  kernel.name = name_of(event);
  kernel.track = static_cast<uint16_t>(track_of(event) & 0x7fff);
  kernel.link = kNoCorrelation;
  if (event.correlation >= 0 && event.correlation < kNoCorrelation) {
    kernel.link = static_cast<uint32_t>(event.correlation);
  } else if (event.kind == EventKind::kKernel) {
    ++num_without_correlation;
  }
  kernels.push_back(kernel);
}

void TraceRecords::add_launch(const TraceEvent& event) {
  ++num_runtime_calls;
  const bool is_kernel = contains(event.name, "Launch");
  const bool is_memory = contains(event.name, "Memcpy") || contains(event.name, "Memset");
  if (!is_kernel && !is_memory) return;
  if (event.correlation < 0 || event.correlation >= kNoCorrelation) return;
  LaunchRecord launch;
  launch.ts_us = event.ts_us;
  launch.correlation = static_cast<uint32_t>(event.correlation);
  launch.track = track_of(event);
  if (is_memory) launch.kind = LaunchKind::kMemory;
  if (contains(event.name, "GraphLaunch")) launch.kind = LaunchKind::kGraph;
  if (launch.kind == LaunchKind::kKernel) launch_costs.add(event.dur_us);
  launches.push_back(launch);
}

void TraceRecords::add_annotation(const TraceEvent& event) {
  if (const auto label = parse_step_label(event.name)) {
    if (steps.size() >= kMostSteps) return;
    StepRecord step;
    step.name = cut_name(event.name);
    step.label = *label;
    step.ts_us = event.ts_us;
    step.dur_us = event.dur_us;
    step.track = track_of(event);
    step.on_device = event.kind == EventKind::kGpuAnnotation;
    steps.push_back(step);
    return;
  }
  std::string lowered(cut_name(event.name));
  std::transform(lowered.begin(), lowered.end(), lowered.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (contains(lowered, "decode") && event.kind == EventKind::kAnnotation &&
      windows.size() < kMostWindows) {
    windows.push_back({std::string(cut_name(event.name)), event.ts_us, event.dur_us});
  }
}

uint16_t TraceRecords::track_of(const TraceEvent& event) {
  // Neighbours in a file are mostly of one thread.
  const std::pair<int64_t, int64_t> key{event.pid, event.tid};
  if (last_track_ >= 0 && key == last_track_key_) return static_cast<uint16_t>(last_track_);
  const auto found = track_numbers_.find(key);
  uint16_t number = 0;
  if (found != track_numbers_.end()) {
    number = found->second;
  } else if (tracks.size() < kMostTracks) {
    number = static_cast<uint16_t>(tracks.size());
    tracks.push_back({event.pid, event.tid});
    track_numbers_.emplace(key, number);
  } else {
    number = static_cast<uint16_t>(kMostTracks - 1);  // all the rest share the last one
  }
  last_track_key_ = key;
  last_track_ = number;
  return number;
}

uint16_t TraceRecords::name_of(const TraceEvent& event) {
  std::string_view name = cut_name(event.name);
  std::string_view launching_operator;
  std::string with_operator;
  if (FamilyTable::needs_operator(name) && event.external_id >= 0) {
    const auto found = operator_of_.find(event.external_id);
    if (found != operator_of_.end()) {
      launching_operator = operators_[found->second];
      with_operator = fmt::format("{} [{}]", name, launching_operator);
      name = with_operator;
    }
  }
  const auto found = name_numbers_.find(name);
  return found != name_numbers_.end() ? found->second : add_name(event, name, launching_operator);
}

uint16_t TraceRecords::add_name(const TraceEvent& event, std::string_view name,
                                std::string_view launching_operator) {
  NameRecord record;
  record.is_memory = event.kind == EventKind::kMemory;
  if (names.size() >= kMostNames) {
    too_many_names = true;
    name = "(names beyond the first 65,000)";
    const auto rest = name_numbers_.find(name);
    if (rest != name_numbers_.end()) return rest->second;
    record.family = FamilyTable::kUnknown;
  } else {
    record.family =
        record.is_memory ? "copy" : families_->family_of(event.name, launching_operator);
  }
  record.name = name;
  record.is_attention = record.family == FamilyTable::kAttention;
  record.is_unknown = record.family == FamilyTable::kUnknown;
  const auto number = static_cast<uint16_t>(names.size());
  names.push_back(record);
  name_numbers_.emplace(name, number);
  return number;
}

}  // namespace fovea::trace
