// One self-contained HTML page: charts as inline SVG with their tables beside them, in dark and in
// light.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fovea/worth/conditions.h"

namespace fovea::worth {

/// One line of a chart, or its points.
struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending x
  bool dots = false;                              // measured values; else a line
  int colour = -1;                                // of the palette; -1: by the series' place
  bool dashed = false;                            // a limit, a prediction, or a variant of a line
  /// Low and high of each point: the line then has a dot and an interval bar at each of them.
  std::vector<std::pair<double, double>> intervals = {};
};

/// Lines and points over x. On a logarithmic x axis, ticks are powers of two: tokens. A logarithmic
/// y axis begins at 1: speed-ups.
struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;
  bool percent_y = false;  // y is a share of 0 to 1
  std::vector<ChartSeries> series;
  bool log_y = false;
};

/// Parts of a whole, one bar a row: families of kernels by phase, a request's time.
struct StackedBar {
  std::string name;
  std::vector<std::pair<std::string, double>> parts;  // label, value
};
struct StackedChart {
  std::string title;
  std::string unit;
  std::vector<StackedBar> bars;
};

/// Shares of 0 to 1 as a grid of shaded cells with their figures: density by layer and head.
struct GridChart {
  std::string title;
  std::string row_label;     // "layer": rows are numbered from 0, like columns
  std::string column_label;  // "head"
  std::vector<std::vector<double>> rows;
};

struct ReportTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

/// A page that grows section by section. All text is escaped; values that are not finite are left
/// out of charts.
class ReportPage {
 public:
  explicit ReportPage(std::string title) : title_(std::move(title)) {}

  void add_heading(const std::string& text);
  void add_text(const std::string& text);
  void add_chart(const LineChart& chart);
  void add_chart(const StackedChart& chart);
  void add_chart(const GridChart& chart);
  void add_table(const ReportTable& table);
  /// The foot of the page: who wrote it, and the ten conditions of its figures as a list.
  void set_footer(const std::string& text, const std::vector<ConditionEntry>& conditions);

  std::string html() const;

 private:
  std::string title_;
  std::string body_;
  std::string footer_;  // HTML
};

/// A picture of its own, charts and their titles below each other, with the page's colours.
std::string standalone_svg(const std::vector<LineChart>& charts);

/// The chart alone, as an <svg> element that takes its colours from the page around it.
std::string svg(const LineChart& chart);
std::string svg(const StackedChart& chart);
std::string svg(const GridChart& chart);

}  // namespace fovea::worth
