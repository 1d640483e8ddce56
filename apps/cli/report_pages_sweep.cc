#include <fmt/format.h>

#include <map>

#include "apps/cli/conditions.h"
#include "apps/cli/report_pages.h"
#include "apps/cli/table.h"

namespace fovea::cli {
namespace {

constexpr int kCurvePoints = 60;

using worth::ChartSeries;
using worth::LineChart;
using worth::ReportPage;
using worth::ReportTable;

// What was measured, one row a length: "dense ttft" beside "dense itl".
ReportTable measured_table(const worth::SweepTable& table) {
  std::map<double, std::vector<std::string>> rows;
  ReportTable result{{"tokens"}, {}};
  const auto add = [&](const worth::Sweep& sweep, const char* what, double to_seconds) {
    result.header.push_back(sweep.backend + " " + what);
    for (size_t i = 0; i < sweep.tokens.size(); ++i) {
      std::vector<std::string>& row = rows[sweep.tokens[i]];
      row.resize(result.header.size() - 2, "-");
      row.push_back(format_seconds(sweep.values[i] * to_seconds));
    }
  };
  for (const worth::Sweep& sweep : table.prefill) add(sweep, "ttft", 1);
  for (const worth::Sweep& sweep : table.decode) add(sweep, "itl", 1e-3);
  for (auto& [tokens, cells] : rows) {
    cells.resize(result.header.size() - 1, "-");
    cells.insert(cells.begin(), fmt::format("{:g}", tokens));
    result.rows.push_back(cells);
  }
  return result;
}

ChartSeries measured(const worth::Sweep& sweep) {
  ChartSeries series{sweep.backend + ", measured", {}, true};
  for (size_t i = 0; i < sweep.tokens.size(); ++i) {
    series.points.emplace_back(sweep.tokens[i], sweep.values[i]);
  }
  return series;
}

template <typename Value>
ChartSeries curve(const std::string& name, double longest, const Value& value) {
  ChartSeries series{name, {}, false};
  for (int i = 0; i <= kCurvePoints; ++i) {
    const double tokens = longest * i / kCurvePoints;
    series.points.emplace_back(tokens, value(tokens));
  }
  return series;
}

// A backend's points and its curve share a colour.
int colour_of(const std::vector<worth::Sweep>& sweeps, const std::string& backend) {
  int colour = 0;
  for (const worth::Sweep& sweep : sweeps) {
    if (sweep.backend == backend) break;
    ++colour;
  }
  return colour;
}

void add_prefill(ReportPage* page, const worth::SweepTable& table, const Fits& fits) {
  LineChart times;
  times.title = "ttft with its fits (a + b n + c n^2, absolute errors)";
  times.x_label = "prompt, tokens";
  times.y_label = "ttft, s";
  LineChart shares;
  shares.title = "Attention's share of what grows with the prompt: c n^2 / (b n + c n^2)";
  shares.x_label = times.x_label;
  shares.y_label = "share";
  shares.percent_y = true;
  ReportTable rows{{"backend", "errors", "a (ms)", "b (us/token)", "c (ps/token^2)"}, {}};
  for (const worth::Sweep& sweep : table.prefill) times.series.push_back(measured(sweep));
  for (const worth::PrefillFit& fit : fits.prefill) {
    rows.rows.push_back({fit.backend, kind_of(fit),
                         value_with_error(fit.a_s * 1e3, fit.a_se * 1e3, 1),
                         value_with_error(fit.b_s * 1e6, fit.b_se * 1e6, 2),
                         value_with_error(fit.c_s * 1e12, fit.c_se * 1e12, 1)});
    if (fit.b_shared || fit.weighting != worth::Weighting::kAbsolute) continue;
    times.series.push_back(
        curve(fit.backend + ", fit", fit.longest_tokens, [&](double n) { return fit.ttft_s(n); }));
    times.series.back().colour = colour_of(table.prefill, fit.backend);
    if (fit.b_s <= 0 || fit.c_s <= 0) continue;
    shares.series.push_back(
        curve(fit.backend, fit.longest_tokens, [&](double n) { return fit.quadratic_share(n); }));
  }
  page->add_heading("Prefill");
  page->add_chart(times);
  if (!rows.rows.empty()) page->add_table(rows);
  if (!shares.series.empty()) page->add_chart(shares);
}

void add_decode(ReportPage* page, const worth::SweepTable& table, const Fits& fits) {
  LineChart chart;
  chart.title = "itl with its fits (a + b n)";
  chart.x_label = "context, tokens";
  chart.y_label = "itl, ms";
  ReportTable rows{{"backend", "a (ms)", "b (us/token)"}, {}};
  for (const worth::Sweep& sweep : table.decode) chart.series.push_back(measured(sweep));
  for (const worth::DecodeFit& fit : fits.decode) {
    chart.series.push_back(
        curve(fit.backend + ", fit", fit.longest_tokens, [&](double n) { return fit.itl_ms(n); }));
    chart.series.back().colour = colour_of(table.decode, fit.backend);
    rows.rows.push_back({fit.backend, value_with_error(fit.intercept_ms, fit.intercept_se_ms, 2),
                         value_with_error(fit.slope_us_per_token, fit.slope_se_us_per_token, 3)});
  }
  page->add_heading("Decode");
  page->add_chart(chart);
  if (!rows.rows.empty()) page->add_table(rows);
}

void add_sweeps(ReportPage* page, const worth::SweepTable& table, const Fits& fits) {
  if (!table.prefill.empty()) add_prefill(page, table, fits);
  if (!table.decode.empty()) add_decode(page, table, fits);
  page->add_heading("Measured");
  page->add_table(measured_table(table));
}

}  // namespace

std::string fit_page(const worth::SweepTable& table, const Fits& fits) {
  ReportPage page("Time against length");
  add_sweeps(&page, table, fits);
  page.set_footer(written_by() + " A table of somebody's measurements: it states no conditions.",
                  worth::ten_conditions());
  return page.html();
}

std::string sweep_page(const worth::SweepTable& table, const Fits& fits,
                       const std::vector<std::string>& notes,
                       const std::vector<worth::ConditionEntry>& conditions) {
  ReportPage page("Time against length");
  for (const std::string& note : notes) page.add_text(note);
  add_sweeps(&page, table, fits);
  page.set_footer(written_by() + " Medians; one request at a time, each prompt new.", conditions);
  return page.html();
}

}  // namespace fovea::cli
