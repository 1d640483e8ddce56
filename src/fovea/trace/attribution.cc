#include "fovea/trace/attribution.h"

#include <algorithm>

namespace fovea::trace {
namespace {

constexpr int kDeepestNesting = 64;

bool is_profiler_step(const StepRecord& step) { return step.name.starts_with("ProfilerStep#"); }

// Profilers mostly write in order, and looking is much cheaper than sorting.
template <typename Records, typename Less>
void sort_unless_sorted(Records* records, Less less) {
  if (std::is_sorted(records->begin(), records->end(), less)) return;
  std::sort(records->begin(), records->end(), less);
}

bool contains(const StepRecord& step, double ts_us) {
  return ts_us >= step.ts_us && ts_us <= step.ts_us + step.dur_us;
}

}  // namespace

StepIndex::StepIndex(const std::vector<StepRecord>& steps, const std::vector<TrackRecord>& tracks)
    : steps_(&steps), tracks_(&tracks) {
  for (auto& lists : of_track_) lists.resize(tracks.size());
  for (uint32_t i = 0; i < steps.size(); ++i) {
    const size_t kind = is_profiler_step(steps[i]) ? 1 : 0;
    of_track_[kind][steps[i].track].push_back(i);
    auto& wider = steps[i].on_device ? of_device_ : of_process_;
    wider[kind][tracks[steps[i].track].pid].push_back(i);
  }
  const auto by_start = [&](uint32_t a, uint32_t b) { return steps[a].ts_us < steps[b].ts_us; };
  for (auto& lists : of_track_) {
    for (StepList& list : lists) std::stable_sort(list.begin(), list.end(), by_start);
  }
  for (auto* wider : {&of_process_, &of_device_}) {
    for (auto& lists : *wider) {
      for (auto& [pid, list] : lists) std::stable_sort(list.begin(), list.end(), by_start);
    }
  }
}

uint32_t StepIndex::innermost(const StepList& list, double ts_us) const {
  auto after = std::upper_bound(list.begin(), list.end(), ts_us, [&](double ts, uint32_t step) {
    return ts < (*steps_)[step].ts_us;
  });
  for (int depth = 0; depth < kDeepestNesting && after != list.begin(); ++depth) {
    --after;
    if (contains((*steps_)[*after], ts_us)) return *after;
  }
  return kNoStep;
}

uint32_t StepIndex::find(uint16_t track, double ts_us) const {
  return search(of_process_, track, ts_us);
}

uint32_t StepIndex::find_on_device(uint16_t track, double ts_us) const {
  return search(of_device_, track, ts_us);
}

uint32_t StepIndex::search(const std::array<std::map<int64_t, StepList>, 2>& wider, uint16_t track,
                           double ts_us) const {
  for (size_t kind = 0; kind < 2; ++kind) {
    uint32_t step = innermost(of_track_[kind][track], ts_us);
    if (step != kNoStep) return step;
    const auto others = wider[kind].find((*tracks_)[track].pid);
    if (others == wider[kind].end()) continue;
    step = innermost(others->second, ts_us);
    if (step != kNoStep) return step;
  }
  return kNoStep;
}

void fold_nested_steps(std::vector<StepRecord>* steps) {
  std::stable_sort(steps->begin(), steps->end(), [](const StepRecord& a, const StepRecord& b) {
    if (a.track != b.track) return a.track < b.track;
    if (a.ts_us != b.ts_us) return a.ts_us < b.ts_us;
    return a.dur_us > b.dur_us;
  });
  std::vector<StepRecord> kept;
  std::vector<size_t> open;  // numbers in `kept` of the steps around the current one
  for (StepRecord& step : *steps) {
    while (!open.empty() && (kept[open.back()].track != step.track ||
                             !contains(kept[open.back()], step.ts_us + step.dur_us))) {
      open.pop_back();
    }
    const bool same_phase = !open.empty() && !is_profiler_step(kept[open.back()]) &&
                            kept[open.back()].label.phase == step.label.phase;
    if (same_phase) {
      StepLabel& outer = kept[open.back()].label;
      outer.context_tokens = std::max(outer.context_tokens, step.label.context_tokens);
      continue;
    }
    open.push_back(kept.size());
    kept.push_back(std::move(step));
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const StepRecord& a, const StepRecord& b) { return a.ts_us < b.ts_us; });
  *steps = std::move(kept);
}

AttributionCounts attribute_kernels(TraceRecords* records) {
  auto& kernels = records->kernels;
  auto& launches = records->launches;
  sort_unless_sorted(&launches, [](const LaunchRecord& a, const LaunchRecord& b) {
    return a.correlation != b.correlation ? a.correlation < b.correlation : a.ts_us < b.ts_us;
  });
  sort_unless_sorted(&kernels,
                     [](const KernelRecord& a, const KernelRecord& b) { return a.link < b.link; });

  AttributionCounts counts;
  const StepIndex index(records->steps, records->tracks);
  const auto note_launch = [&](const LaunchRecord& launch, int64_t num_kernels) {
    if (launch.kind == LaunchKind::kGraph) {
      ++counts.num_graph_launches;
      if (num_kernels == 0) ++counts.num_graph_launches_without_kernel;
    } else if (launch.kind == LaunchKind::kKernel) {
      ++counts.num_launches;
      if (num_kernels == 0) ++counts.num_launches_without_kernel;
    }
    if (num_kernels > 1) {
      ++counts.num_shared_launches;
      counts.most_kernels_per_launch = std::max(counts.most_kernels_per_launch, num_kernels);
    }
  };

  auto launch = launches.begin();
  // A runtime call and the driver call inside it share a correlation: the first, outer one counts.
  const auto skip_same = [&](uint32_t correlation) {
    const auto first = launch;
    bool of_one_process = true;
    for (; launch != launches.end() && launch->correlation == correlation; ++launch) {
      of_one_process &= records->tracks[launch->track].pid == records->tracks[first->track].pid;
    }
    if (!of_one_process) ++counts.num_ambiguous;
  };
  for (auto first = kernels.begin(); first != kernels.end();) {
    const uint32_t correlation = first->link;
    auto last = first;
    while (last != kernels.end() && last->link == correlation) ++last;
    while (launch != launches.end() && launch->correlation < correlation) {
      note_launch(*launch, 0);
      skip_same(launch->correlation);
    }
    const bool found = correlation != kNoCorrelation && launch != launches.end() &&
                       launch->correlation == correlation;
    const int64_t num_kernels = last - first;
    const uint32_t step = found ? index.find(launch->track, launch->ts_us) : kNoStep;
    for (auto kernel = first; kernel != last; ++kernel) {
      if (found) {
        kernel->link = step;
        kernel->delay_us = std::max(0.0F, static_cast<float>(kernel->ts_us - launch->ts_us));
        kernel->in_graph = num_kernels > 1 || launch->kind == LaunchKind::kGraph;
      } else {
        if (correlation != kNoCorrelation) ++counts.num_without_launch;
        if (!records->names[kernel->name].is_memory) {
          counts.us_without_launch += static_cast<double>(kernel->dur_us);
        }
        kernel->link = index.find_on_device(kernel->track, kernel->ts_us);
      }
    }
    if (found) {
      note_launch(*launch, num_kernels);
      skip_same(correlation);
    }
    first = last;
  }
  while (launch != launches.end()) {
    note_launch(*launch, 0);
    skip_same(launch->correlation);
  }
  sort_unless_sorted(
      &kernels, [](const KernelRecord& a, const KernelRecord& b) { return a.ts_us < b.ts_us; });
  return counts;
}

}  // namespace fovea::trace
