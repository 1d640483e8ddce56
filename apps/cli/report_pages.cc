#include "apps/cli/report_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/cli/conditions.h"
#include "apps/cli/table.h"
#include "fovea/worth/report_page.h"

namespace fovea::cli {
namespace {

constexpr int kCurvePoints = 60;
constexpr size_t kMostFamilies = 7;  // the rest is one part: "smaller families"

using worth::ChartSeries;
using worth::LineChart;
using worth::ReportPage;
using worth::ReportTable;
using worth::StackedBar;
using worth::StackedChart;

// What the page is about; conditions that no trace or model can know are said to be missing.
std::string footer_text(const std::string& known, const std::string& missing) {
  return fmt::format("Written by fovea {}. Conditions: {}. Missing: {}.", version_text(), known,
                     missing);
}

StackedBar bar_of(const trace::PhaseReport& phase, const std::string& name) {
  StackedBar bar;
  bar.name = name;
  // Attention first, so that bars can be compared.
  for (const trace::TimeShare& family : phase.families) {
    if (family.name == trace::FamilyTable::kAttention)
      bar.parts.emplace_back(family.name, 100 * family.share);
  }
  double rest = 0;
  for (const trace::TimeShare& family : phase.families) {
    if (family.name == trace::FamilyTable::kAttention) continue;
    if (bar.parts.size() < kMostFamilies) {
      bar.parts.emplace_back(family.name, 100 * family.share);
    } else {
      rest += 100 * family.share;
    }
  }
  if (rest > 0) bar.parts.emplace_back("smaller families", rest);
  return bar;
}

void add_request(ReportPage* page, const trace::TraceReport& report, const WinOptions& win) {
  const trace::PhaseReport* prefill = report.phase(trace::Phase::kPrefill);
  const trace::PhaseReport* decode = report.phase(trace::Phase::kDecode);
  const worth::AttentionWin attention{.prefill_share = prefill ? prefill->attention.low : 0,
                                      .decode_share = decode ? decode->attention.low : 0,
                                      .prefill_speedup = win.speedup,
                                      .decode_speedup = win.speedup};
  const worth::RequestWorth request = worth::request_worth(win.request(), attention);
  const double prefill_attention = attention.prefill_share * request.prefill_ms;
  const double decode_attention = attention.decode_share * request.decode_ms;
  const auto bar = [&](const char* name, double saved_prefill, double saved_decode) {
    return StackedBar{name,
                      {{"attention in prefill", prefill_attention - saved_prefill},
                       {"rest of prefill", request.prefill_ms - prefill_attention},
                       {"attention in decode", decode_attention - saved_decode},
                       {"rest of decode", request.decode_ms - decode_attention},
                       {"queue", win.queue_ms}}};
  };
  page->add_heading("What a request notices");
  page->add_chart(
      StackedChart{"A request before and after",
                   "ms",
                   {bar("now", 0, 0), bar(fmt::format("{:g}x kernel", win.speedup).c_str(),
                                          request.saved_prefill_ms, request.saved_decode_ms)}});
  page->add_text(request_text(win.request(), attention));
  if (prefill == nullptr) page->add_text("The trace has no prefill: its share counted as 0.");
  if (decode == nullptr) page->add_text("The trace has no decode: its share counted as 0.");
}

}  // namespace

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
    for (const trace::PhaseReport& phase : report.phases) {
      const std::string name(trace::phase_name(phase.phase));
      families.bars.push_back(bar_of(phase, name));
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
      add_request(&page, report, win);
    }
    if (devices.find(report.file.devices) == std::string::npos) {
      devices += (devices.empty() ? "" : ", ") + report.file.devices;
    }
  }
  page.set_footer(footer_text(
      "hardware " + (devices.empty() ? "not named by the trace" : devices),
      "model, precision, engine and its flags, prefix caching: a trace does not state them"));
  return page.html();
}

std::string model_page(const ModelQuestion& question, double speedup) {
  ReportPage page("Attention's share by length");
  const worth::DeviceRates& device = question.device;
  page.add_text(
      fmt::format("{}: {:g} TFLOP/s, {:g} GB/s ({}), batch {}. A roofline: every operation at its "
                  "own limit, no "
                  "launches, no communication.",
                  device.description.empty() ? device.name : device.description, device.gemm_tflops,
                  device.copy_gbps, device.source, question.batch_size));
  const auto [shortest, longest] =
      std::minmax_element(question.contexts.begin(), question.contexts.end());
  for (const bool is_decode : {false, true}) {
    const auto cost = [&](const worth::ModelShape& shape, int64_t tokens) {
      return is_decode ? worth::decode_cost(shape, device, tokens, question.batch_size)
                       : worth::prefill_cost(shape, device, tokens, question.cached_tokens,
                                             question.batch_size);
    };
    LineChart shares{
        is_decode ? "Decode: attention's share of a step" : "Prefill: attention's share",
        is_decode ? "context, tokens" : "prompt, tokens",
        "p",
        true,
        true,
        {}};
    LineChart returns{fmt::format("What a {:g}x kernel returns for the {}", speedup,
                                  is_decode ? "decode step" : "prefill"),
                      shares.x_label,
                      "speed-up",
                      true,
                      false,
                      {}};
    ReportTable table{{"tokens"}, {}};
    for (const worth::ModelShape& shape : question.models) {
      ChartSeries share{shape.name, {}, false};
      ChartSeries step{shape.name, {}, false};
      const double ratio = static_cast<double>(*longest) / static_cast<double>(*shortest);
      for (int i = 0; i <= kCurvePoints; ++i) {
        const auto tokens =
            static_cast<int64_t>(static_cast<double>(*shortest) *
                                 std::pow(ratio, static_cast<double>(i) / kCurvePoints));
        const double p = cost(shape, tokens).attention_share();
        share.points.emplace_back(static_cast<double>(tokens), p);
        step.points.emplace_back(static_cast<double>(tokens), worth::step_speedup(p, speedup));
      }
      shares.series.push_back(share);
      returns.series.push_back(step);
      table.header.push_back(shape.name);
    }
    for (const int64_t tokens : question.contexts) {
      std::vector<std::string> row = {fmt::format("{}", tokens)};
      for (const worth::ModelShape& shape : question.models) {
        const double p = cost(shape, tokens).attention_share();
        row.push_back(fmt::format("{}, at most {}", format_percent(p),
                                  format_speedup(worth::step_ceiling(p))));
      }
      table.rows.push_back(row);
    }
    page.add_heading(is_decode ? "Decode" : "Prefill");
    page.add_chart(shares);
    page.add_chart(returns);
    page.add_table(table);
  }
  page.set_footer(footer_text(
      fmt::format("device {}, batch {}, {} cached tokens", device.name, question.batch_size,
                  question.cached_tokens),
      "engine, concurrency, latency target: these are a model's figures, not measurements"));
  return page.html();
}

std::string fit_page(const worth::SweepTable& table, const std::vector<worth::PrefillFit>& prefill,
                     const std::vector<worth::DecodeFit>& decode) {
  ReportPage page("Time against length");
  const auto curve = [&](const std::string& name, double longest, const auto& value) {
    ChartSeries series{name, {}, false};
    for (int i = 0; i <= kCurvePoints; ++i) {
      const double tokens = longest * i / kCurvePoints;
      series.points.emplace_back(tokens, value(tokens));
    }
    return series;
  };
  // A backend's points and its curve share a colour.
  const auto colour_of = [](const std::vector<worth::Sweep>& sweeps, const std::string& backend) {
    int colour = 0;
    for (const worth::Sweep& sweep : sweeps) {
      if (sweep.backend == backend) break;
      ++colour;
    }
    return colour;
  };
  const auto measured = [](const worth::Sweep& sweep) {
    ChartSeries series{sweep.backend + ", measured", {}, true};
    for (size_t i = 0; i < sweep.tokens.size(); ++i) {
      series.points.emplace_back(sweep.tokens[i], sweep.values[i]);
    }
    return series;
  };
  if (!prefill.empty()) {
    LineChart chart{"ttft with its fits (a + b n + c n^2, absolute errors)",
                    "prompt, tokens",
                    "ttft, s",
                    false,
                    false,
                    {}};
    ReportTable rows{{"backend", "errors", "a (ms)", "b (us/token)", "c (ps/token^2)"}, {}};
    for (const worth::Sweep& sweep : table.prefill) chart.series.push_back(measured(sweep));
    for (const worth::PrefillFit& fit : prefill) {
      if (!fit.b_shared && fit.weighting == worth::Weighting::kAbsolute) {
        chart.series.push_back(curve(fit.backend + ", fit", fit.longest_tokens,
                                     [&](double n) { return fit.ttft_s(n); }));
        chart.series.back().colour = colour_of(table.prefill, fit.backend);
      }
      rows.rows.push_back({fit.backend,
                           fmt::format("{}{}", worth::weighting_name(fit.weighting),
                                       fit.b_shared ? ", b shared" : ""),
                           fmt::format("{:.1f} +- {:.1f}", fit.a_s * 1e3, fit.a_se * 1e3),
                           fmt::format("{:.2f} +- {:.2f}", fit.b_s * 1e6, fit.b_se * 1e6),
                           fmt::format("{:.1f} +- {:.1f}", fit.c_s * 1e12, fit.c_se * 1e12)});
    }
    page.add_heading("Prefill");
    page.add_chart(chart);
    page.add_table(rows);
  }
  if (!decode.empty()) {
    LineChart chart{"itl with its fits (a + b n)", "context, tokens", "itl, ms", false, false, {}};
    ReportTable rows{{"backend", "a (ms)", "b (us/token)"}, {}};
    for (const worth::Sweep& sweep : table.decode) chart.series.push_back(measured(sweep));
    for (const worth::DecodeFit& fit : decode) {
      chart.series.push_back(curve(fit.backend + ", fit", fit.longest_tokens,
                                   [&](double n) { return fit.itl_ms(n); }));
      chart.series.back().colour = colour_of(table.decode, fit.backend);
      rows.rows.push_back(
          {fit.backend, fmt::format("{:.2f} +- {:.2f}", fit.intercept_ms, fit.intercept_se_ms),
           fmt::format("{:.3f} +- {:.3f}", fit.slope_us_per_token, fit.slope_se_us_per_token)});
    }
    page.add_heading("Decode");
    page.add_chart(chart);
    page.add_table(rows);
  }
  page.set_footer(footer_text("those of the table's author", "all ten: a CSV states none of them"));
  return page.html();
}

}  // namespace fovea::cli
