// What the analysis keeps of each event, packed: a trace of 2 GB holds millions of them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fovea/trace/families.h"
#include "fovea/trace/step_label.h"
#include "fovea/trace/trace_reader.h"

namespace fovea::trace {

inline constexpr uint32_t kNoCorrelation = UINT32_MAX;
inline constexpr uint32_t kNoStep = UINT32_MAX;
inline constexpr float kNoLaunch = -1;

struct KernelRecord {
  double ts_us = 0;
  float dur_us = 0;
  float delay_us = kNoLaunch;  // start - launch, known after attribution
  uint32_t link = 0;           // correlation while reading, step number after attribution
  uint16_t name = 0;
  uint16_t track : 15 = 0;
  uint16_t in_graph : 1 = 0;  // launched with others by one call
};
static_assert(sizeof(KernelRecord) == 24);

enum class LaunchKind : uint16_t { kKernel, kGraph, kMemory };

struct LaunchRecord {
  double ts_us = 0;
  uint32_t correlation = 0;
  uint16_t track = 0;
  LaunchKind kind = LaunchKind::kKernel;
};
static_assert(sizeof(LaunchRecord) == 16);

/// An annotation that labels a step.
struct StepRecord {
  std::string name;
  StepLabel label;
  double ts_us = 0;
  double dur_us = 0;
  uint16_t track = 0;
  bool on_device = false;  // a gpu_user_annotation: its track is the kernels' own
};

/// A range whose name promises a phase ("decode window"), but which is no step of an engine.
struct WindowRecord {
  std::string name;
  double ts_us = 0;
  double dur_us = 0;
};

struct NameRecord {
  std::string name;
  std::string family;
  bool is_memory = false;
  bool is_attention = false;
  bool is_unknown = false;
};

/// A process and thread of the host, or a device and stream.
struct TrackRecord {
  int64_t pid = 0;
  int64_t tid = 0;
};

/// Median of many durations in little memory: bins of 1/8 us up to 256 us.
class LaunchCostHistogram {
 public:
  void add(double dur_us);
  double median_us() const;  // 0 when empty

 private:
  std::array<int64_t, 2048> bins_{};
  int64_t count_ = 0;
};

/// Lets a map of strings be searched without making one.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using NumberOfName = std::unordered_map<std::string, uint16_t, StringHash, std::equal_to<>>;

/// Takes a trace's events and keeps what the analysis needs.
class TraceRecords {
 public:
  explicit TraceRecords(const FamilyTable* families) : families_(families) {}

  void add(const TraceEvent& event);

  std::deque<KernelRecord> kernels;
  std::deque<LaunchRecord> launches;
  std::vector<StepRecord> steps;
  std::vector<WindowRecord> windows;
  std::vector<NameRecord> names;
  std::vector<TrackRecord> tracks;
  LaunchCostHistogram launch_costs;
  int64_t num_without_correlation = 0;
  int64_t num_python_frames = 0;
  int64_t num_cpu_ops = 0;
  int64_t num_runtime_calls = 0;
  bool too_many_names = false;

 private:
  void add_kernel(const TraceEvent& event);
  void add_launch(const TraceEvent& event);
  void add_annotation(const TraceEvent& event);
  uint16_t track_of(const TraceEvent& event);
  void add_operator(const TraceEvent& event);
  uint16_t name_of(const TraceEvent& event);
  uint16_t add_name(const TraceEvent& event, std::string_view name,
                    std::string_view launching_operator);

  const FamilyTable* families_;
  NumberOfName name_numbers_;
  std::map<std::pair<int64_t, int64_t>, uint16_t> track_numbers_;
  std::unordered_map<int64_t, uint16_t> operator_of_;  // external id -> operators_
  NumberOfName operator_numbers_;
  std::vector<std::string> operators_;
  std::pair<int64_t, int64_t> last_track_key_{};
  int last_track_ = -1;
};

}  // namespace fovea::trace
