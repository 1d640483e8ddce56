#include "apps/cli/trace_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "apps/cli/report_pages.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "apps/cli/worth_text.h"
#include "fovea/base/error.h"
#include "fovea/trace/trace_report.h"
#include "fovea/trace/trace_writer.h"

namespace fovea::cli {
namespace {

using trace::Phase;
using trace::PhaseReport;
using trace::TraceReport;

constexpr size_t kListedSteps = 20;
constexpr size_t kListedGaps = 5;
constexpr size_t kLongestKernelName = 72;

struct TraceOptions {
  std::vector<std::string> files;
  std::string families;
  std::string perfetto;
  std::string report;
  std::optional<double> from_ms;
  std::optional<double> to_ms;
  bool unknown = false;
  bool kernels = false;
  bool steps = false;
  bool json = false;
  WinOptions win;
};

std::string short_name(const std::string& name) {
  return name.size() <= kLongestKernelName ? name : name.substr(0, kLongestKernelName - 3) + "...";
}

std::string format_us(double us) { return format_seconds(us / 1e6); }

void print_head(const TraceReport& report) {
  const trace::ReadSummary& file = report.file;
  fmt::print("{}: {} of JSON, {} events{}{}\n", file.path,
             format_bytes(static_cast<double>(file.json_bytes)), file.num_events,
             file.devices.empty() ? "" : ", " + file.devices,
             file.rank >= 0 ? fmt::format(", rank {}", file.rank) : "");
  for (const trace::Finding& finding : report.findings) {
    fmt::print("  {}: {}\n", trace::severity_name(finding.severity), finding.message);
  }
  fmt::print("\n");
}

void print_phases(const TraceReport& report, double speedup) {
  Table table({"phase", "steps", "kernel time", "attention", "ceiling",
               fmt::format("with a {:g}x kernel", speedup)});
  const auto add = [&](const std::string& name, const PhaseReport& phase) {
    const double low = phase.attention.low;
    const double high =
        phase.unknown_share > trace::kUnknownLimit ? phase.attention.high : phase.attention.low;
    std::string returns = format_speedup(worth::step_speedup(low, speedup));
    if (high > low) returns += " to " + format_speedup(worth::step_speedup(high, speedup));
    table.add_row({name, fmt::format("{}", phase.num_steps), format_us(phase.kernel_us),
                   format_share(low, high), format_speedup(worth::step_ceiling(high)), returns});
  };
  for (const PhaseReport& phase : report.phases) {
    add(std::string(trace::phase_name(phase.phase)), phase);
  }
  if (report.phases.size() > 1) add("total", report.total);
  fmt::print("{}\n", table.to_string());
}

void print_families(const TraceReport& report) {
  std::vector<std::string> header = {"family", "kernels", "time", "share"};
  if (report.phases.size() > 1) {
    for (const PhaseReport& phase : report.phases) {
      header.push_back("of " + std::string(trace::phase_name(phase.phase)));
    }
  }
  Table table(header);
  for (const trace::TimeShare& family : report.total.families) {
    std::vector<std::string> row = {family.name, fmt::format("{}", family.num_kernels),
                                    format_us(family.time_us), format_percent(family.share)};
    for (size_t i = 0; row.size() < header.size(); ++i) {
      double share = 0;
      for (const trace::TimeShare& one : report.phases[i].families) {
        if (one.name == family.name) share = one.share;
      }
      row.push_back(format_percent(share));
    }
    table.add_row(row);
  }
  fmt::print("{}\n", table.to_string());
}

void print_device_time(const TraceReport& report) {
  const trace::GapReport& gaps = report.gaps;
  const auto cause_us = [&](trace::GapCause cause) {
    return format_us(gaps.time_us[static_cast<size_t>(cause)]);
  };
  fmt::print("device: busy {} of {}{}; ", format_us(report.busy_us), format_us(report.span_us),
             report.num_devices > 1 ? fmt::format(" over {} devices", report.num_devices) : "");
  if (report.idle_share) {
    fmt::print("idle {}\n", format_percent(*report.idle_share));
  } else {
    fmt::print("idle share withheld: {}\n", report.idle_withheld_because);
  }
  fmt::print(
      "gaps: {}; waiting for the host {}, for something on the device {}, launch unknown {}\n",
      gaps.num_gaps, cause_us(trace::GapCause::kHost), cause_us(trace::GapCause::kDevice),
      cause_us(trace::GapCause::kUnknown));
  for (size_t i = 0; i < std::min(kListedGaps, gaps.longest.size()); ++i) {
    const trace::Gap& gap = gaps.longest[i];
    fmt::print("  {} at {:.3f} ms ({}) before {}\n", format_us(gap.dur_us),
               (gap.ts_us - report.first_us) / 1e3, trace::gap_cause_name(gap.cause),
               short_name(gap.after));
  }
  const trace::ShortLaunchReport& runs = report.short_launches;
  if (runs.num_runs > 0) {
    fmt::print(
        "short launches: {} runs of kernels shorter than their launch ({}): {} kernels in {}, busy "
        "{}\n",
        runs.num_runs, format_us(runs.launch_cost_us), runs.num_kernels, format_us(runs.span_us),
        format_us(runs.busy_us));
  }
  if (report.stream_waits.num_waits > 0) {
    fmt::print("streams: {} waits of one stream on another, {} in all\n",
               report.stream_waits.num_waits, format_us(report.stream_waits.time_us));
  }
  fmt::print("\n");
}

void print_kernels(const TraceReport& report, bool only_unknown) {
  Table table({"family", "kernels", "time", "share", "name"});
  for (const trace::TimeShare& kernel : report.kernels) {
    if (only_unknown && kernel.family != trace::FamilyTable::kUnknown) continue;
    table.add_row({kernel.family, fmt::format("{}", kernel.num_kernels), format_us(kernel.time_us),
                   format_percent(kernel.share), short_name(kernel.name)});
  }
  fmt::print("{}\n", table.to_string());
}

void print_steps(const TraceReport& report) {
  Table table({"step at", "phase", "kernels", "kernel time", "attention", "name"});
  for (size_t i = 0; i < std::min(kListedSteps, report.steps.size()); ++i) {
    const trace::StepReport& step = report.steps[i];
    table.add_row({fmt::format("{:.3f} ms", (step.host_ts_us - report.first_us) / 1e3),
                   std::string(trace::phase_name(step.label.phase)),
                   fmt::format("{}", step.num_kernels), format_us(step.kernel_us),
                   step.kernel_us > 0 ? format_percent(step.attention_us / step.kernel_us) : "-",
                   short_name(step.name)});
  }
  fmt::print("{}", table.to_string());
  if (report.steps.size() > kListedSteps) {
    fmt::print("... and {} steps more (--json lists them all)\n",
               report.steps.size() - kListedSteps);
  }
  fmt::print("\n");
}

// One phase's share as far as it is known.
trace::ShareInterval interval_of(const PhaseReport& phase) {
  if (phase.unknown_share > trace::kUnknownLimit) return phase.attention;
  return {phase.attention.low, phase.attention.low};
}

std::string largest_other_family(const PhaseReport& phase) {
  for (const trace::TimeShare& family : phase.families) {
    if (family.name != trace::FamilyTable::kAttention) {
      return fmt::format("; the largest other family is {} with {}", family.name,
                         format_percent(family.share));
    }
  }
  return "";
}

void print_verdict(const TraceReport& report, const WinOptions& win) {
  for (const trace::Finding& finding : report.findings) {
    if (finding.severity == trace::Severity::kProblem) {
      fmt::print("verdict: none for the whole file, because of the problem above\n");
      break;
    }
  }
  for (const PhaseReport& phase : report.phases) {
    const trace::ShareInterval share = interval_of(phase);
    fmt::print("{}: {}{}\n", trace::phase_name(phase.phase),
               verdict_text(share.low, share.high, win.speedup), largest_other_family(phase));
  }
  if (!win.has_request()) return;
  const PhaseReport* prefill = report.phase(Phase::kPrefill);
  const PhaseReport* decode = report.phase(Phase::kDecode);
  if (prefill == nullptr && decode == nullptr) {
    fmt::print("request: the trace has no labelled prefill or decode step to take shares from\n");
    return;
  }
  const worth::AttentionWin attention{.prefill_share = prefill ? prefill->attention.low : 0,
                                      .decode_share = decode ? decode->attention.low : 0,
                                      .prefill_speedup = win.speedup,
                                      .decode_speedup = win.speedup};
  fmt::print("request: {}{}\n", request_text(win.request(), attention),
             prefill == nullptr  ? " (the trace has no prefill: its share counted as 0)"
             : decode == nullptr ? " (the trace has no decode: its share counted as 0)"
                                 : "");
}

// Several ranks side by side: they should look alike, and the slowest holds the others up.
void print_files(const std::vector<TraceReport>& reports) {
  Table table({"file", "rank", "kernel time", "attention", "communication"});
  for (const TraceReport& report : reports) {
    double communication = 0;
    for (const trace::TimeShare& family : report.total.families) {
      if (family.name == "communication") communication = family.share;
    }
    const trace::ShareInterval share = interval_of(report.total);
    table.add_row({report.file.path,
                   report.file.rank >= 0 ? fmt::format("{}", report.file.rank) : "-",
                   format_us(report.total.kernel_us), format_share(share.low, share.high),
                   format_percent(communication)});
  }
  fmt::print("\n{}", table.to_string());
}

void write_perfetto(const TraceOptions& options, const TraceReport& report,
                    const trace::FamilyTable& families) {
  trace::CutOptions cut;
  if (options.from_ms) cut.from_us = report.first_us + *options.from_ms * 1e3;
  if (options.to_ms) cut.to_us = report.first_us + *options.to_ms * 1e3;
  const trace::CutSummary summary =
      trace::write_cut(options.files.front(), options.perfetto, families, cut);
  if (options.json) return;
  fmt::print("wrote {} events to {}{}: open it in https://ui.perfetto.dev\n", summary.num_written,
             options.perfetto,
             summary.num_written == 0 ? ", for nothing lies between --from and --to"
             : summary.num_left_out > 0
                 ? fmt::format(" ({} more did not fit; narrow it with --from and --to)",
                               summary.num_left_out)
                 : "");
}

void run(const TraceOptions& options) {
  check_argument(options.perfetto.empty() || options.files.size() == 1,
                 "--perfetto cuts one trace, got {}", options.files.size());
  check_argument(!options.perfetto.empty() || (!options.from_ms && !options.to_ms),
                 "--from and --to choose what --perfetto writes");
  worth::step_speedup(0, options.win.speedup);  // refuses a bad --speedup before the work
  options.win.has_request();
  trace::FamilyTable families;
  if (!options.families.empty()) {
    naming_file(options.families, [&] { families.extend(read_text(options.families)); });
  }

  std::optional<OutputFile> page;
  if (!options.report.empty()) page.emplace(options.report);

  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::vector<TraceReport> reports;
  for (const std::string& path : options.files) {
    reports.push_back(naming_file(path, [&] { return trace::analyse_trace(path, families); }));
    const TraceReport& report = reports.back();
    if (!options.perfetto.empty()) write_perfetto(options, report, families);
    if (options.json) {
      json.push_back(nlohmann::ordered_json::parse(trace::trace_report_json(report)));
      continue;
    }
    print_head(report);
    if (report.total.num_kernels == 0) continue;
    print_phases(report, options.win.speedup);
    print_families(report);
    if (options.steps) print_steps(report);
    if (options.kernels || options.unknown) print_kernels(report, !options.kernels);
    print_device_time(report);
    print_verdict(report, options.win);
    if (&path != &options.files.back()) fmt::print("\n");
  }
  if (!options.json && reports.size() > 1) print_files(reports);
  if (page) page->write(trace_page(reports, options.win));
  if (!options.json) return;
  fmt::print("{}\n", json_text(json.size() == 1 ? json.front() : json));
}

}  // namespace

void add_trace_command(CLI::App& app) {
  const auto options = std::make_shared<TraceOptions>();
  CLI::App* command = app.add_subcommand(
      "trace", "Say where a profiler's trace spent its time, and what attention is worth");
  command
      ->add_option("files", options->files,
                   "Chrome traces, .json or .json.gz: PyTorch's profiler, vLLM, SGLang, ours")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--families", options->families,
                   "Rules to try before the built-in ones: a family and patterns on each line")
      ->type_name("FILE");
  command->add_flag("--unknown", options->unknown, "List the kernels that no rule names");
  command->add_flag("--kernels", options->kernels, "List all kernels by time");
  command->add_flag("--steps", options->steps, "List the steps");
  command
      ->add_option("--perfetto", options->perfetto,
                   "Write kernels, launches and steps for Perfetto")
      ->type_name("OUT");
  command->add_option("--from", options->from_ms, "Begin that cut here, ms after the first kernel")
      ->type_name("MS");
  command->add_option("--to", options->to_ms, "End it here")->type_name("MS");
  command->add_option("--report", options->report, "Write an HTML page with charts")
      ->type_name("OUT");
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  add_win_options(*command, options->win);
  command->footer(
      "Examples:\n"
      "  fovea trace trace.json.gz\n"
      "  fovea trace trace.json.gz --unknown --families mine.txt   # attention my_kernel_*\n"
      "  fovea trace trace.json.gz --speedup 3 --ttft 500 --tpot 50 --output 128\n"
      "  fovea trace rank0.json.gz rank1.json.gz --json\n"
      "  fovea trace trace.json.gz --perfetto cut.json --from 100 --to 200");
  command->callback([options] { run(*options); });
}

}  // namespace fovea::cli
