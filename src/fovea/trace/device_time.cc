#include "fovea/trace/device_time.h"

#include <algorithm>

namespace fovea::trace {
namespace {

constexpr double kHoleShare = 0.2;  // of the device's span
constexpr double kHoleLeastUs = 1000;
constexpr double kLeastGapUs = 0.1;   // durations are kept to single precision
constexpr double kLeastWaitUs = 5;    // shorter standstills between streams are queueing noise
constexpr size_t kMostStreams = 256;  // beyond, who waits for whom is not looked for
constexpr double kHandOverUs =
    10;  // an event's way from the kernel that ends to the one that waits

struct StreamState {
  double end_us = 0;
  bool used = false;
  // The current run of short launches.
  int64_t run_kernels = 0;
  double run_first_us = 0;
  double run_busy_us = 0;
};

struct DeviceState {
  double first_us = 0;
  double busy_end_us = 0;
  double busy_us = 0;
  uint16_t last_name = 0;
  std::map<uint16_t, StreamState> streams;
  Hole longest;
};

class Sweep {
 public:
  explicit Sweep(const TraceRecords& records) : records_(records) {
    result_.short_launches.launch_cost_us = records.launch_costs.median_us();
  }

  DeviceTime run() {
    for (const KernelRecord& kernel : records_.kernels) visit(kernel);
    for (auto& [pid, device] : devices_) {
      for (auto& [track, stream] : device.streams) end_run(&stream);
      finish(&device);
    }
    result_.num_devices = static_cast<int64_t>(devices_.size());
    auto& longest = result_.gaps.longest;
    std::sort(longest.begin(), longest.end(), longer);
    return result_;
  }

 private:
  static bool longer(const Gap& a, const Gap& b) { return a.dur_us > b.dur_us; }

  void visit(const KernelRecord& kernel);
  void note_gap(const KernelRecord& kernel, const DeviceState& device, int64_t pid);
  void note_wait(const KernelRecord& kernel, const DeviceState& device, const StreamState& stream);
  void note_run(const KernelRecord& kernel, StreamState* stream);
  void end_run(StreamState* stream);
  void finish(DeviceState* device);

  const TraceRecords& records_;
  std::map<int64_t, DeviceState> devices_;
  DeviceTime result_;
};

void Sweep::visit(const KernelRecord& kernel) {
  const int64_t pid = records_.tracks[kernel.track].pid;
  const auto [entry, is_new] = devices_.try_emplace(pid);
  DeviceState& device = entry->second;
  StreamState& stream = device.streams[kernel.track];
  const double end_us = kernel.ts_us + static_cast<double>(kernel.dur_us);
  if (is_new) {
    device.first_us = device.busy_end_us = kernel.ts_us;
  } else {
    if (kernel.ts_us > device.busy_end_us + kLeastGapUs) note_gap(kernel, device, pid);
    if (kernel.ts_us - device.busy_end_us > device.longest.dur_us) {
      device.longest.ts_us = device.busy_end_us;
      device.longest.dur_us = kernel.ts_us - device.busy_end_us;
      device.longest.busy_before_us = device.busy_us;
    }
    if (stream.used) note_wait(kernel, device, stream);
  }
  note_run(kernel, &stream);
  if (end_us > device.busy_end_us) {
    device.busy_us += end_us - std::max(device.busy_end_us, kernel.ts_us);
    device.busy_end_us = end_us;
    device.last_name = kernel.name;
  }
  result_.summed_us += static_cast<double>(kernel.dur_us);
  stream.end_us = std::max(stream.end_us, end_us);
  stream.used = true;
}

void Sweep::note_gap(const KernelRecord& kernel, const DeviceState& device, int64_t pid) {
  Gap gap;
  gap.ts_us = device.busy_end_us;
  gap.dur_us = kernel.ts_us - device.busy_end_us;
  gap.device = pid;
  if (kernel.delay_us >= 0) {
    const double launched_us = kernel.ts_us - static_cast<double>(kernel.delay_us);
    gap.cause = launched_us >= device.busy_end_us ? GapCause::kHost : GapCause::kDevice;
  }
  result_.gaps.time_us[static_cast<size_t>(gap.cause)] += gap.dur_us;
  if (gap.cause == GapCause::kHost && kernel.in_graph == 0) result_.eager_wait_us += gap.dur_us;
  ++result_.gaps.num_gaps;

  // The longest few, as a heap with the shortest of them in front.
  auto& longest = result_.gaps.longest;
  if (longest.size() == GapReport::kLongestGaps) {
    if (gap.dur_us <= longest.front().dur_us) return;
    std::pop_heap(longest.begin(), longest.end(), longer);
    longest.pop_back();
  }
  gap.before = records_.names[device.last_name].name;
  gap.after = records_.names[kernel.name].name;
  longest.push_back(std::move(gap));
  std::push_heap(longest.begin(), longest.end(), longer);
}

// The kernel had been launched, its own stream was free, and it began just when another stream's
// kernel ended.
void Sweep::note_wait(const KernelRecord& kernel, const DeviceState& device,
                      const StreamState& stream) {
  const double waited_us = kernel.ts_us - stream.end_us;
  if (waited_us < kLeastWaitUs || kernel.delay_us < 0) return;
  if (device.streams.size() > kMostStreams) return;
  const double launched_us = kernel.ts_us - static_cast<double>(kernel.delay_us);
  const double ready_us = std::max(stream.end_us, launched_us);
  if (kernel.ts_us - ready_us < kLeastWaitUs) return;
  for (const auto& [track, other] : device.streams) {
    if (!other.used || track == kernel.track) continue;
    const double since_end_us = kernel.ts_us - other.end_us;
    if (since_end_us >= 0 && since_end_us <= kHandOverUs && other.end_us > ready_us) {
      ++result_.stream_waits.num_waits;
      result_.stream_waits.time_us += kernel.ts_us - ready_us;
      return;
    }
  }
}

void Sweep::note_run(const KernelRecord& kernel, StreamState* stream) {
  const bool is_short = kernel.delay_us >= 0 && kernel.in_graph == 0 &&
                        static_cast<double>(kernel.dur_us) < result_.short_launches.launch_cost_us;
  if (!is_short) {
    end_run(stream);
    return;
  }
  if (stream->run_kernels == 0) {
    stream->run_first_us = kernel.ts_us;
    stream->run_busy_us = 0;
  }
  ++stream->run_kernels;
  stream->run_busy_us += static_cast<double>(kernel.dur_us);
}

void Sweep::end_run(StreamState* stream) {
  ShortLaunchReport& report = result_.short_launches;
  if (stream->run_kernels >= ShortLaunchReport::kShortestRun) {
    ++report.num_runs;
    report.num_kernels += stream->run_kernels;
    report.span_us += stream->end_us - stream->run_first_us;
    report.busy_us += stream->run_busy_us;
  }
  stream->run_kernels = 0;
}

void Sweep::finish(DeviceState* device) {
  const double span_us = device->busy_end_us - device->first_us;
  result_.span_us += span_us;
  result_.busy_us += device->busy_us;
  Hole& longest = device->longest;
  longest.span_us = span_us;
  longest.busy_us = device->busy_us;
  if (longest.dur_us >= kHoleLeastUs && longest.dur_us >= kHoleShare * span_us &&
      (!result_.hole || longest.dur_us > result_.hole->dur_us)) {
    result_.hole = longest;
  }
}

}  // namespace

DeviceTime measure_devices(const TraceRecords& records) { return Sweep(records).run(); }

}  // namespace fovea::trace
