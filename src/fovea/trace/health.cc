#include "fovea/trace/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fovea::trace {
namespace {

/// Share of the span that may be gaps before kernels launched one by one.
constexpr double kEagerWaitLimit = 0.1;

class Judge {
 public:
  Judge(const TraceRecords& records, const AttributionCounts& attribution,
        const DeviceTime& devices, TraceReport* report)
      : records_(records), attribution_(attribution), devices_(devices), report_(report) {}

  void run() {
    judge_file();
    if (report_->total.num_kernels == 0) {
      judge_missing_kernels();
    } else {
      judge_capture();
      judge_classification();
      judge_steps();
      judge_windows();
      judge_devices();
      judge_idle();
    }
    std::stable_sort(report_->findings.begin(), report_->findings.end(),
                     [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  }

 private:
  template <typename... Args>
  void add(Severity severity, const char* code, fmt::format_string<Args...> format,
           Args&&... args) {
    report_->findings.push_back({severity, code, fmt::format(format, std::forward<Args>(args)...)});
  }
  void withhold_idle(const char* reason) {
    if (report_->idle_withheld_because.empty()) report_->idle_withheld_because = reason;
  }

  void judge_file();
  void judge_missing_kernels();
  void judge_capture();
  void judge_classification();
  void judge_steps();
  void judge_windows();
  void judge_devices();
  void judge_idle();

  const TraceRecords& records_;
  const AttributionCounts& attribution_;
  const DeviceTime& devices_;
  TraceReport* report_;
};

void Judge::judge_file() {
  const ReadSummary& file = report_->file;
  if (file.truncated) {
    add(Severity::kWarning, "truncated",
        "The file ends before its JSON does: what follows is about the part before the cut.");
    withhold_idle("the file is truncated");
  }
  if (file.num_malformed > 0) {
    add(Severity::kWarning, "malformed_events", "{} of {} events are not valid and were left out.",
        file.num_malformed, file.num_events);
  }
  if (file.num_not_a_number > 0) {
    add(Severity::kWarning, "not_a_number",
        "{} events have a time that is NaN, absurd, negative or missing and were left out.",
        file.num_not_a_number);
  }
  if (file.num_control_characters > 0) {
    add(Severity::kNote, "control_characters",
        "{} control characters inside strings were read as spaces (JSON forbids them).",
        file.num_control_characters);
  }
  if (file.num_invalid_utf8 > 0) {
    add(Severity::kNote, "invalid_utf8", "{} events hold bytes that are not UTF-8, read as '?'.",
        file.num_invalid_utf8);
  }
}

void Judge::judge_missing_kernels() {
  withhold_idle("there are no kernels");
  const int64_t num_host = records_.num_cpu_ops + records_.num_runtime_calls +
                           records_.num_python_frames + static_cast<int64_t>(records_.steps.size());
  if (num_host > 0) {
    add(Severity::kProblem, "front_end_only",
        "The file holds {} host events and no kernel: it is of a front end, or the device was not "
        "profiled. "
        "Capture the worker process with ProfilerActivity.CUDA.",
        num_host);
  } else {
    add(Severity::kProblem, "no_kernels", "None of the file's {} events is a kernel.",
        report_->file.num_events);
  }
}

void Judge::judge_capture() {
  if (attribution_.num_graph_launches_without_kernel > 0) {
    add(Severity::kProblem, "missing_graph_kernels",
        "{} of {} graph launches show no kernels: what ran inside those graphs is missing from "
        "every share.",
        attribution_.num_graph_launches_without_kernel, attribution_.num_graph_launches);
    withhold_idle("kernels of graph launches are missing");
  }
  // A few launches at the end of a capture always lose their kernels.
  const int64_t lost = attribution_.num_launches_without_kernel;
  if (lost > 10 && lost * 20 > attribution_.num_launches) {
    add(Severity::kWarning, "missing_kernels",
        "{} of {} launches show no kernel: the profiler dropped events, or the device was not "
        "recorded throughout.",
        lost, attribution_.num_launches);
    withhold_idle("kernels of many launches are missing");
  }
  if (report_->file.with_stack || records_.num_python_frames > 0) {
    add(Severity::kWarning, "with_stack",
        "Captured with Python stacks ({} frames): the host is slowed, so gaps and step times are "
        "inflated; "
        "kernel shares hold.",
        records_.num_python_frames);
    withhold_idle("Python stacks were captured, which slows the host");
  }
  const ShortLaunchReport& runs = report_->short_launches;
  if (attribution_.num_graph_launches == 0 && attribution_.num_launches > 0) {
    const bool bound = runs.num_kernels * 10 > 3 * report_->total.num_kernels;
    add(Severity::kNote, "eager", "No graph launches: {} kernels were launched one by one{}.",
        attribution_.num_launches, bound ? ", and many are shorter than their launch" : "");
    if (bound)
      withhold_idle(
          "an eager capture cannot tell the profiler's cost of a launch from the engine's");
  }
  if (devices_.eager_wait_us > kEagerWaitLimit * devices_.span_us) {
    withhold_idle(
        "the device waited for launches one by one, and a profiler makes each of them slower");
  }
  if (attribution_.num_shared_launches > 0) {
    add(Severity::kNote, "shared_launch",
        "Launches that started more than one kernel: {} (at most {} kernels): graph replay, "
        "matched "
        "by correlation.",
        attribution_.num_shared_launches, attribution_.most_kernels_per_launch);
  }
  if (attribution_.num_ambiguous > 0) {
    add(Severity::kWarning, "merged_ranks",
        "{} correlations are launches of several processes: the file was made of several ranks', "
        "and kernels may have been given to another rank's step. Give each rank's own file.",
        attribution_.num_ambiguous);
  }
  const double lost_us = attribution_.us_without_launch;
  if (lost_us > 0.01 * report_->total.kernel_us && !records_.launches.empty()) {
    add(Severity::kWarning, "missing_correlation",
        "{:.1f} % of kernel time has no launch in the file, so its phase is not known by launch.",
        100 * lost_us / report_->total.kernel_us);
  }
}

void Judge::judge_classification() {
  const PhaseReport& total = report_->total;
  if (total.unknown_share > kUnknownLimit) {
    add(Severity::kWarning, "unknown_kernels",
        "{:.1f} % of kernel time is of no known family, so p is an interval: see --unknown, and "
        "name them with "
        "--families.",
        100 * total.unknown_share);
  }
  if (records_.too_many_names) {
    add(Severity::kWarning, "too_many_names",
        "More than 65,000 kernel names: the rest is counted as unknown.");
  }
  if (total.attention.high == 0) {
    add(Severity::kWarning, "no_attention",
        "No attention kernel: unfused attention (batched matmuls and softmax) is counted under "
        "those families.");
  }
}

void Judge::judge_steps() {
  if (report_->steps.empty()) {
    add(Severity::kWarning, "no_steps",
        "No step annotations: prefill and decode cannot be told apart in this file.{}",
        records_.windows.empty()
            ? ""
            : fmt::format(" The range '{}' does not say what it computes; name such ranges "
                          "'step[decode bs=8]' and 'step[prefill bs=1 toks=512]'.",
                          records_.windows.front().name));
    return;
  }
  int64_t num_empty = 0;
  int64_t num_late = 0;
  double latest_us = 0;
  for (const StepReport& step : report_->steps) {
    if (step.num_kernels == 0) {
      ++num_empty;
      continue;
    }
    const double late_us = step.first_us - (step.host_ts_us + step.host_dur_us);
    if (late_us > 0) ++num_late;
    latest_us = std::max(latest_us, late_us);
  }
  if (num_empty > 0) {
    add(Severity::kWarning, "empty_steps", "{} of {} steps have no kernels.", num_empty,
        report_->steps.size());
  }
  if (num_late > 0) {
    add(Severity::kNote, "late_kernels",
        "{} of {} steps' annotations end before their first kernel starts, by up to {:.1f} ms: "
        "kernels were "
        "matched by launch, not by clock.",
        num_late, report_->steps.size(), latest_us / 1e3);
  }
  const PhaseReport* unlabelled = report_->phase(Phase::kUnlabelled);
  if (unlabelled != nullptr && report_->phases.size() > 1 &&
      unlabelled->kernel_us > 0.05 * report_->total.kernel_us) {
    add(Severity::kNote, "unlabelled_time",
        "{:.1f} % of kernel time was launched outside every labelled step.",
        100 * unlabelled->kernel_us / report_->total.kernel_us);
  }
}

// A capture called "decode" that holds a prefill is the way to a wrong decode share.
void Judge::judge_windows() {
  for (const WindowRecord& window : records_.windows) {
    int64_t num_steps = 0;
    int64_t num_tokens = 0;
    for (const StepReport& step : report_->steps) {
      const bool inside =
          step.host_ts_us >= window.ts_us && step.host_ts_us <= window.ts_us + window.dur_us;
      const Phase phase = step.label.phase;
      if (!inside || (phase != Phase::kPrefill && phase != Phase::kMixed)) continue;
      ++num_steps;
      num_tokens += std::max<int64_t>(step.label.context_tokens, 0);
    }
    if (num_steps > 0) {
      add(Severity::kProblem, "decode_window_holds_context",
          "The window '{}' is refused as decode: {} of its steps compute prompt tokens ({} by "
          "their labels). Take "
          "the decode row instead.",
          window.name, num_steps, num_tokens);
    }
  }
  const PhaseReport* decode = report_->phase(Phase::kDecode);
  const double context_us =
      (report_->phase(Phase::kPrefill) ? report_->phase(Phase::kPrefill)->kernel_us : 0) +
      (report_->phase(Phase::kMixed) ? report_->phase(Phase::kMixed)->kernel_us : 0);
  const size_t slash = report_->file.path.rfind('/');
  const std::string file_name =
      report_->file.path.substr(slash == std::string::npos ? 0 : slash + 1);
  if (context_us > 0 && file_name.find("decode") != std::string::npos) {
    add(Severity::kProblem, "decode_file_holds_context",
        "The file is called decode, but {:.1f} % of its kernel time is of steps that compute "
        "prompt tokens: its "
        "total is refused as a decode share.",
        100 * context_us / report_->total.kernel_us);
  }
  if (context_us > 0 && decode != nullptr) {
    add(Severity::kNote, "phases_mixed",
        "The total adds prefill and decode together: read the rows by phase.");
  }
}

void Judge::judge_devices() {
  if (devices_.hole) {
    const Hole& hole = *devices_.hole;
    const bool before_work = hole.busy_before_us < 0.02 * hole.busy_us;
    add(Severity::kWarning, "hole",
        "A hole of {:.1f} ms, {:.0f} % of the span, {}: whatever it is (warm-up, compilation, a "
        "stalled host), it "
        "is not the engine's idle time.",
        hole.dur_us / 1e3, 100 * hole.dur_us / hole.span_us,
        before_work ? "between the first kernels and the work" : "in the middle of the work");
    withhold_idle("a hole takes a large part of the span");
  }
  if (devices_.num_devices > 1) {
    add(Severity::kNote, "several_devices", "{} devices, added together.", devices_.num_devices);
  }
  if (devices_.summed_us > 1.05 * devices_.busy_us && devices_.busy_us > 0) {
    add(Severity::kNote, "overlap",
        "Kernels overlap: their durations add up to {:.2f} times the time the devices were busy, "
        "so a share of kernel "
        "time is not a share of the clock.",
        devices_.summed_us / devices_.busy_us);
  }
}

void Judge::judge_idle() {
  if (report_->span_us <= 0) withhold_idle("there is a single kernel");
  if (!report_->idle_withheld_because.empty()) return;
  report_->idle_share = 1 - report_->busy_us / report_->span_us;
}

}  // namespace

void judge_health(const TraceRecords& records, const AttributionCounts& attribution,
                  const DeviceTime& devices, TraceReport* report) {
  Judge(records, attribution, devices, report).run();
}

}  // namespace fovea::trace
