#include "apps/cli/eval_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/report_json.h"
#include "apps/cli/report_pages.h"

namespace fovea::cli {
namespace {

using worth::ChartSeries;
using worth::LineChart;
using worth::ReportPage;

// The line that a variant's point belongs to: all but its density.
std::string line_name(const EvalVariant& variant, bool with_block_size) {
  EvalVariant any_density = variant;
  any_density.density.reset();
  return any_density.name(with_block_size);
}

// The colour of a method: its place among the attentions.
int colour_of(const Evaluation& evaluation, const std::string& attention) {
  std::vector<std::string> names;
  for (const EvalVariant& variant : evaluation.variants) {
    if (std::find(names.begin(), names.end(), variant.attention) == names.end()) {
      names.push_back(variant.attention);
    }
  }
  const auto place = std::find(names.begin(), names.end(), attention) - names.begin();
  return static_cast<int>(place) - 1;  // dense has none
}

void sort_by_cost(ChartSeries* series) {
  std::vector<std::pair<std::pair<double, double>, std::pair<double, double>>> points;
  for (size_t i = 0; i < series->points.size(); ++i) {
    points.emplace_back(series->points[i], series->intervals[i]);
  }
  std::sort(points.begin(), points.end());
  for (size_t i = 0; i < points.size(); ++i) {
    std::tie(series->points[i], series->intervals[i]) = points[i];
  }
}

enum class Cost { kDensity, kTime };

LineChart frontier(const Evaluation& evaluation, const EvalGroup& group, Cost cost) {
  LineChart chart;
  const bool by_time = cost == Cost::kTime;
  chart.title = group.title() + (by_time ? ": score against time" : ": score against what is read");
  chart.x_label = by_time ? "ms of the prefill with selection, median over the prompts"
                          : "density, percent of the causal pairs, as measured";
  chart.y_label = group.is_text ? "agrees with dense" : "score";
  chart.percent_y = true;
  const bool with_block_size = block_sizes_differ(evaluation.variants);
  double most = 0;
  for (const EvalRow& row : group.rows) {
    const EvalVariant& variant = evaluation.variants[row.variant];
    const double x = by_time ? median(row.prefill_ms) : 100 * row.mean_density();
    if (by_time || !variant.is_dense()) most = std::max(most, x);
    if (variant.is_dense()) continue;
    const std::string name = line_name(variant, with_block_size);
    auto series = std::find_if(chart.series.begin(), chart.series.end(),
                               [&](const ChartSeries& one) { return one.name == name; });
    if (series == chart.series.end()) {
      series = chart.series.insert(series, ChartSeries{name, {}, false});
      series->colour = colour_of(evaluation, variant.attention);
      series->dashed = variant.settings.periphery;
    }
    series->points.emplace_back(x, row.score.value);
    series->intervals.emplace_back(row.score.interval.low, row.score.interval.high);
  }
  for (ChartSeries& series : chart.series) sort_by_cost(&series);
  if (!group.is_text && evaluation.variants[group.rows.front().variant].is_dense()) {
    ChartSeries dense{"dense", {}, false};
    const double score = group.rows.front().score.value;
    dense.points = {{0, score}, {most, score}};
    dense.dashed = true;
    dense.colour = 7;  // grey
    chart.series.push_back(std::move(dense));
  }
  return chart;
}

// Cells that keep to one line: the table scrolls where the page is too narrow.
worth::ReportTable unbroken(worth::ReportTable table) {
  for (std::vector<std::string>& row : table.rows) {
    for (std::string& cell : row) {
      for (size_t at = cell.find(' '); at != std::string::npos; at = cell.find(' ', at)) {
        cell.replace(at, 1, "\u00a0");
      }
    }
  }
  return table;
}

// "The largest loss: rescue, 3 % scores 0.380 on lookalike, 32768 tokens, dense 1.000."
std::string worst_case(const Evaluation& evaluation, const std::vector<EvalGroup>& groups) {
  const EvalGroup* worst_group = nullptr;
  const EvalRow* worst = nullptr;
  for (const EvalGroup& group : groups) {
    for (const EvalRow& row : group.rows) {
      if (group.is_average || !row.against_dense) continue;
      if (worst == nullptr || row.against_dense->mean < worst->against_dense->mean) {
        worst = &row;
        worst_group = &group;
      }
    }
  }
  if (worst == nullptr || !(worst->against_dense->mean < 0)) return "Nothing scored below dense.";
  const bool with_block_size = block_sizes_differ(evaluation.variants);
  return fmt::format("The largest loss: {} scores {:.3f} on {}, dense {:.3f}.",
                     evaluation.variants[worst->variant].name(with_block_size), worst->score.value,
                     worst_group->title(), worst->score.value - worst->against_dense->mean);
}

}  // namespace

std::string eval_page(const Evaluation& evaluation, const std::vector<EvalGroup>& groups,
                      const std::vector<std::vector<EqualTimeRow>>& equal_time,
                      const std::string& reference, const std::vector<std::string>& notes,
                      const std::vector<worth::ConditionEntry>& conditions) {
  ReportPage page("What sparse attention costs");
  page.add_text(worst_case(evaluation, groups));
  for (const std::string& note : notes) page.add_text("Note: " + note);
  for (size_t i = 0; i < groups.size(); ++i) {
    const EvalGroup& group = groups[i];
    page.add_heading(group.title());
    if (group.rows.size() > 1) page.add_chart(frontier(evaluation, group, Cost::kDensity));
    page.add_table(unbroken(group_table(evaluation, group, reference)));
    if (equal_time[i].empty()) continue;
    page.add_chart(frontier(evaluation, group, Cost::kTime));
    page.add_table(unbroken(equal_time_table(evaluation, equal_time[i])));
  }
  page.set_footer(
      written_by() +
          " Every attention reads the same prompts. Intervals hold the true value with 95 %: "
          "Wilson's for scores, a paired bootstrap over prompts for averages and differences; "
          "significant is an interval without zero with six prompts or more that differ, not "
          "corrected for the number of rows.",
      conditions);
  return page.html();
}

}  // namespace fovea::cli
