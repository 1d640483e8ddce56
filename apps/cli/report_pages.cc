#include "apps/cli/report_pages.h"

#include <fmt/format.h>

#include "apps/cli/conditions.h"
#include "apps/cli/report_request.h"
#include "apps/cli/table.h"

namespace fovea::cli {
namespace {

constexpr size_t kMostFamilies = 7;  // the rest is one part: "smaller families"

using worth::ReportPage;
using worth::ReportTable;
using worth::StackedBar;
using worth::StackedChart;

// Families that a chart shows by name, the same in all its bars: attention first, so that bars can
// be compared, then the largest.
std::vector<std::string> shown_families(const trace::PhaseReport& total) {
  std::vector<std::string> names = {std::string(trace::FamilyTable::kAttention)};
  for (const trace::TimeShare& family : total.families) {
    if (names.size() < kMostFamilies && family.name != names.front()) names.push_back(family.name);
  }
  return names;
}

StackedBar bar_of(const trace::PhaseReport& phase, const std::vector<std::string>& families) {
  StackedBar bar;
  bar.name = trace::phase_name(phase.phase);
  double rest = 100;
  for (const std::string& name : families) {
    for (const trace::TimeShare& family : phase.families) {
      if (family.name != name) continue;
      bar.parts.emplace_back(name, 100 * family.share);
      rest -= 100 * family.share;
    }
  }
  constexpr double kRounding = 1e-9;
  if (rest > kRounding) bar.parts.emplace_back("smaller families", rest);
  return bar;
}

RequestWin request_of(const trace::TraceReport& report, const WinOptions& win) {
  const trace::PhaseReport* prefill = report.phase(trace::Phase::kPrefill);
  const trace::PhaseReport* decode = report.phase(trace::Phase::kDecode);
  RequestWin request{win.request(),
                     {.prefill_share = prefill ? prefill->attention.low : 0,
                      .decode_share = decode ? decode->attention.low : 0,
                      .prefill_speedup = win.speedup,
                      .decode_speedup = win.speedup},
                     {}};
  if (prefill == nullptr)
    request.notes.push_back("The trace has no prefill: its share counted as 0.");
  if (decode == nullptr)
    request.notes.push_back("The trace has no decode: its share counted as 0.");
  return request;
}

}  // namespace

std::string written_by() { return "Written by fovea " + version_text() + "."; }

std::string trace_page(const std::vector<trace::TraceReport>& reports, const WinOptions& win) {
  ReportPage page("Where the time went");
  std::string devices;
  for (const trace::TraceReport& report : reports) {
    page.add_heading(report.file.path);
    for (const trace::Finding& finding : report.findings) {
      page.add_text(fmt::format("{}: {}", trace::severity_name(finding.severity), finding.message));
    }
    if (report.total.num_kernels == 0) continue;
    StackedChart families{"Kernel time by family, percent of each phase", "%", {}};
    ReportTable table{{"phase", "steps", "kernel time", "attention", "ceiling",
                       fmt::format("with a {:g}x kernel", win.speedup)},
                      {}};
    const std::vector<std::string> names = shown_families(report.total);
    for (const trace::PhaseReport& phase : report.phases) {
      const std::string name(trace::phase_name(phase.phase));
      families.bars.push_back(bar_of(phase, names));
      const bool interval = phase.unknown_share > trace::kUnknownLimit;
      const double high = interval ? phase.attention.high : phase.attention.low;
      table.rows.push_back(
          {name, fmt::format("{}", phase.num_steps), format_seconds(phase.kernel_us / 1e6),
           format_share(phase.attention.low, high), format_speedup(worth::step_ceiling(high)),
           format_speedup(worth::step_speedup(phase.attention.low, win.speedup))});
    }
    page.add_chart(families);
    page.add_table(table);
    ReportTable by_family{{"family", "kernels", "time", "share"}, {}};
    for (const trace::TimeShare& family : report.total.families) {
      by_family.rows.push_back({family.name, fmt::format("{}", family.num_kernels),
                                format_seconds(family.time_us / 1e6),
                                format_percent(family.share)});
    }
    page.add_table(by_family);
    for (const trace::PhaseReport& phase : report.phases) {
      const bool interval = phase.unknown_share > trace::kUnknownLimit;
      page.add_text(fmt::format(
          "{}: {}", trace::phase_name(phase.phase),
          verdict_text(phase.attention.low, interval ? phase.attention.high : phase.attention.low,
                       win.speedup)));
    }
    if (win.has_request() &&
        (report.phase(trace::Phase::kPrefill) || report.phase(trace::Phase::kDecode))) {
      add_request(&page, request_of(report, win), win.speedup);
    }
    if (devices.find(report.file.devices) == std::string::npos) {
      devices += (devices.empty() ? "" : ", ") + report.file.devices;
    }
  }
  page.set_footer(written_by() + " A trace states no more than its devices.",
                  worth::ten_conditions({{"hardware", devices}}));
  return page.html();
}

std::string conditions_page(const std::string& file, const worth::ConditionsAudit& audit) {
  ReportPage page("What the report states");
  page.add_text(fmt::format("{}: a report of {}, {} of 10 conditions missing.", file, audit.format,
                            audit.num_missing()));
  ReportTable table{{"condition", "stated", "where"}, {}};
  for (const bool missing : {true, false}) {
    for (const worth::ConditionEntry& entry : audit.entries) {
      if (entry.missing() != missing) continue;
      table.rows.push_back({entry.name, missing ? "MISSING: " + entry.meaning : entry.value,
                            missing ? "" : entry.found_at});
    }
  }
  page.add_table(table);
  for (const std::string& remark : audit.remarks) page.add_text(remark);
  page.set_footer(written_by(), audit.entries);
  return page.html();
}

}  // namespace fovea::cli
