#include "fovea/worth/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fovea::worth {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 340;
constexpr double kLeft = 64;
constexpr double kRight = 16;
constexpr double kTop = 16;
constexpr double kBottom = 46;
constexpr int kNumColours = 12;
constexpr double kLegendRow = 18;

// The palette (after Okabe and Ito) is told apart by colour-blind readers, and has a light and a
// dark variant.
constexpr char kColours[] = R"(
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1d2530; --faint: #5b6675; --grid: #dfe4ea; --zebra: #f5f7f9;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #a8518a; --c4: #b8860b; --c5: #56a5d8; --c6: #7a5c3e; --c7: #8a8f98;
  --c8: #c23b4b; --c9: #4f4fc4; --c10: #6b8e23; --c11: #00808a; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14181e; --ink: #e4e9ef; --faint: #9aa6b4; --grid: #303843; --zebra: #1b2129;
  --c0: #5db3ea; --c1: #ff9552; --c2: #3fcf9f; --c3: #e59ac6; --c4: #e6c04a; --c5: #a9d8f5; --c6: #c7a27c; --c7: #aab0b9;
  --c8: #f08a94; --c9: #9d9df2; --c10: #b5d167; --c11: #58cdd6; } }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg text.faint { fill: var(--faint); }
svg text.title { font-weight: 600; }
)";
constexpr char kStyle[] = R"(
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 880px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; margin-bottom: .3rem; }
svg { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 1rem; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; } tr:nth-child(even) td { background: var(--zebra); }
footer { color: var(--faint); border-top: 1px solid var(--grid); margin-top: 2.5rem; padding-top: .6rem; font-size: .85rem; }
footer ul { columns: 2; column-gap: 2rem; padding-left: 1.1rem; } footer li { break-inside: avoid; }
@media (max-width: 600px) { footer ul { columns: 1; } }
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
    }
  }
  return out;
}

std::string colour(size_t index) { return fmt::format("var(--c{})", index % kNumColours); }

std::string tokens_text(double tokens) {
  if (tokens >= 1 << 20) return fmt::format("{:g}M", tokens / (1 << 20));
  if (tokens >= 1 << 10) return fmt::format("{:g}K", tokens / (1 << 10));
  return fmt::format("{:g}", tokens);
}

// 1, 2 or 5 times a power of ten, so that about `count` of them cover `range`.
double nice_step(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

/// Maps data to the page.
class Axes {
 public:
  explicit Axes(const LineChart& chart) : chart_(chart) {
    for (const ChartSeries& series : chart.series) {
      for (const auto& [x, y] : series.points) {
        if (!usable(x, y)) continue;
        x_low_ = std::min(x_low_, x);
        x_high_ = std::max(x_high_, x);
        y_high_ = std::max(y_high_, y);
      }
      for (const auto& [low, high] : series.intervals) {
        if (std::isfinite(high)) y_high_ = std::max(y_high_, high);
      }
    }
    if (!(x_low_ < x_high_)) {  // nothing, or a single point
      x_low_ = std::isfinite(x_low_) ? x_low_ / 2 : 1;
      x_high_ = 4 * x_low_;
    }
    if (!chart.log_x) x_low_ = 0;
    if (chart.log_y) {
      y_high_ = std::exp2(std::max(1.0, std::ceil(std::log2(std::max(y_high_, 1.0)) - 1e-9)));
      return;
    }
    y_step_ = nice_step(y_high_ > 0 ? y_high_ : 1, 5);
    y_high_ = y_step_ * std::ceil((y_high_ > 0 ? y_high_ : 1) / y_step_ - 1e-9);
    if (chart.percent_y && y_high_ > 1) y_high_ = 1;
  }

  bool usable(double x, double y) const {
    return std::isfinite(x) && std::isfinite(y) && (!chart_.log_x || x > 0) &&
           (!chart_.log_y || y >= 1);
  }
  double x(double value) const {
    const double share = chart_.log_x ? std::log(value / x_low_) / std::log(x_high_ / x_low_)
                                      : (value - x_low_) / (x_high_ - x_low_);
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    const double share = chart_.log_y ? std::log(value) / std::log(y_high_) : value / y_high_;
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  }

  std::string grid() const {
    std::string out;
    for (const double tick : y_ticks()) {
      out += fmt::format(
          R"svg(<line x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}" stroke="var(--grid)"/>)svg",
          kLeft, kWidth - kRight, y(tick), y(tick));
      out += fmt::format(
          R"svg(<text class="faint" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)svg",
          kLeft - 8, y(tick) + 4,
          chart_.percent_y ? fmt::format("{:g} %", 100 * tick) : fmt::format("{:g}", tick));
    }
    for (const double tick : x_ticks()) {
      out += fmt::format(
          R"svg(<text class="faint" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)svg",
          x(tick), kHeight - kBottom + 18,
          chart_.log_x ? tokens_text(tick) : fmt::format("{:g}", tick));
    }
    out += fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)svg",
                       (kLeft + kWidth - kRight) / 2, kHeight - 8, escaped(chart_.x_label));
    out += fmt::format(
        R"svg(<text x="14" y="{0:.1f}" text-anchor="middle" transform="rotate(-90 14 {0:.1f})">{1}</text>)svg",
        (kTop + kHeight - kBottom) / 2, escaped(chart_.y_label));
    return out;
  }

 private:
  std::vector<double> y_ticks() const {
    std::vector<double> ticks;
    if (chart_.log_y) {
      const double factor = y_high_ > 1024 ? 8 : 2;
      for (double tick = 1; tick <= y_high_ * (1 + 1e-9); tick *= factor) ticks.push_back(tick);
    } else {
      for (double tick = 0; tick <= y_high_ * (1 + 1e-9); tick += y_step_) ticks.push_back(tick);
    }
    return ticks;
  }
  std::vector<double> x_ticks() const {
    std::vector<double> ticks;
    if (chart_.log_x) {
      const double first = std::exp2(std::ceil(std::log2(x_low_) - 1e-9));
      const double octaves = std::log2(x_high_ / first);
      const double step = octaves > 24 ? 16 : octaves > 10 ? 4 : 2;
      for (double tick = first; tick <= x_high_ * (1 + 1e-9); tick *= step) ticks.push_back(tick);
    } else {
      const double step = nice_step(x_high_, 6);
      for (double tick = 0; tick <= x_high_ * (1 + 1e-9); tick += step) ticks.push_back(tick);
    }
    return ticks;
  }

  const LineChart& chart_;
  double x_low_ = std::numeric_limits<double>::infinity();
  double x_high_ = -std::numeric_limits<double>::infinity();
  double y_high_ = 0;
  double y_step_ = 1;
};

// Names beside their colours, wrapped to the chart's width.
struct LegendEntry {
  std::string name;
  std::string colour;
  bool dashed = false;
};

std::string legend(const std::vector<LegendEntry>& entries, double top, double* bottom) {
  std::string out;
  double x = kLeft;
  double y = top;
  for (const LegendEntry& entry : entries) {
    const double width = 28 + 7.0 * static_cast<double>(entry.name.size());
    if (x + width > kWidth && x > kLeft) {
      x = kLeft;
      y += kLegendRow;
    }
    out +=
        entry.dashed
            ? fmt::format(
                  R"svg(<path d="M{:.1f},{:.1f}h14" stroke="{}" stroke-width="3" stroke-dasharray="4 2"/>)svg",
                  x, y + 6, entry.colour)
            : fmt::format(
                  R"svg(<rect x="{:.1f}" y="{:.1f}" width="12" height="12" rx="2" fill="{}"/>)svg",
                  x, y, entry.colour);
    out += fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}">{}</text>)svg", x + 17, y + 10.5,
                       escaped(entry.name));
    x += width;
  }
  *bottom = y + kLegendRow;
  return out;
}

std::string svg_element(double height, const std::string& title, const std::string& content) {
  return fmt::format(
      R"svg(<svg viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}" height="{:.0f}" role="img" aria-label="{}">{}</svg>)svg",
      kWidth, height, kWidth, height, escaped(title), content);
}

// A dot and a bar for each point that has an interval.
std::string interval_bars(const Axes& axes, const ChartSeries& series, const std::string& ink) {
  std::string out;
  for (size_t i = 0; i < std::min(series.intervals.size(), series.points.size()); ++i) {
    const auto& [x, y] = series.points[i];
    const auto& [low, high] = series.intervals[i];
    if (!axes.usable(x, y) || !axes.usable(x, low) || !axes.usable(x, high)) continue;
    out += fmt::format(
        R"svg(<path d="M{0:.1f},{1:.1f}V{2:.1f}m-3,0h6M{3:.1f},{1:.1f}h6" fill="none" stroke="{4}" stroke-opacity="0.7"/>)svg",
        axes.x(x), axes.y(low), axes.y(high), axes.x(x) - 3, ink);
    out += fmt::format(R"svg(<circle cx="{:.1f}" cy="{:.1f}" r="3.5" fill="{}"/>)svg", axes.x(x),
                       axes.y(y), ink);
  }
  return out;
}

// The chart's elements, and the height that they take.
std::string content_of(const LineChart& chart, double* height) {
  const Axes axes(chart);
  std::string content = axes.grid();
  std::vector<LegendEntry> entries;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    const std::string ink = colour(series.colour >= 0 ? static_cast<size_t>(series.colour) : i);
    entries.push_back({series.name, ink, series.dashed});
    content += interval_bars(axes, series, ink);
    std::string path;
    for (const auto& [x, y] : series.points) {
      if (!axes.usable(x, y)) continue;
      if (series.dots) {
        content += fmt::format(R"svg(<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"/>)svg",
                               axes.x(x), axes.y(y), ink);
      } else {
        path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "M" : "L", axes.x(x), axes.y(y));
      }
    }
    if (!path.empty()) {
      content += fmt::format(R"svg(<path d="{}" fill="none" stroke="{}" stroke-width="2"{}/>)svg",
                             path, ink, series.dashed ? R"( stroke-dasharray="6 4")" : "");
    }
  }
  return content + legend(entries, kHeight + 4, height);
}

}  // namespace

std::string svg(const LineChart& chart) {
  double height = 0;
  const std::string content = content_of(chart, &height);
  return svg_element(height, chart.title, content);
}

std::string standalone_svg(const std::vector<LineChart>& charts) {
  constexpr double kTitle = 28;
  std::string content;
  double top = 0;
  for (const LineChart& chart : charts) {
    double height = 0;
    const std::string drawn = content_of(chart, &height);
    content += fmt::format(
        "<text class=\"title\" x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n"
        "<g transform=\"translate(0 {:.1f})\">{}</g>\n",
        kLeft, top + 20, escaped(chart.title), top + kTitle, drawn);
    top += kTitle + height + 8;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\"><style>{3}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"var(--paper)\"/>\n{4}</svg>\n",
      kWidth, top, charts.empty() ? "" : escaped(charts.front().title), kColours, content);
}

std::string svg(const StackedChart& chart) {
  constexpr double kBar = 26;
  constexpr double kNameWidth = 110;
  std::vector<std::string> names;  // every part that some bar has, in order of appearance
  double longest = 0;
  for (const StackedBar& bar : chart.bars) {
    double sum = 0;
    for (const auto& [name, value] : bar.parts) {
      if (!(value > 0) || !std::isfinite(value)) continue;
      sum += value;
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    longest = std::max(longest, sum);
  }
  std::string content;
  double y = kTop;
  for (const StackedBar& bar : chart.bars) {
    content += fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)svg",
                           kNameWidth - 8, y + kBar / 2 + 4, escaped(bar.name));
    double x = kNameWidth;
    for (const auto& [name, value] : bar.parts) {
      if (!(value > 0) || !std::isfinite(value)) continue;
      const double width = value / longest * (kWidth - kNameWidth - kRight);
      const auto index =
          static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
      content += fmt::format(
          R"svg(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}"><title>{}: {:.4g} {}</title></rect>)svg",
          x, y, std::max(width - 1, 0.5), kBar, colour(index), escaped(name), value,
          escaped(chart.unit));
      x += width;
    }
    y += kBar + 12;
  }
  std::vector<LegendEntry> entries;
  for (size_t i = 0; i < names.size(); ++i) entries.push_back({names[i], colour(i)});
  double bottom = 0;
  content += legend(entries, y + 4, &bottom);
  return svg_element(bottom, chart.title, content);
}

std::string svg(const GridChart& chart) {
  constexpr double kCell = 20;
  constexpr double kFigureWidth = 34;  // of a cell that holds its figure
  size_t num_columns = 1;
  for (const std::vector<double>& row : chart.rows) num_columns = std::max(num_columns, row.size());
  const double room = (kWidth - kLeft - kRight) / static_cast<double>(num_columns);
  const double width = std::min(room, 2 * kFigureWidth);
  std::string content =
      fmt::format(R"svg(<text x="{:.1f}" y="12">{}</text>)svg", kLeft, escaped(chart.column_label));
  content += fmt::format(R"svg(<text x="{:.1f}" y="28" text-anchor="end">{}</text>)svg", kLeft - 8,
                         escaped(chart.row_label));
  const size_t every = std::max<size_t>(1, static_cast<size_t>(std::ceil(24 / width)));
  for (size_t column = 0; column < num_columns; column += every) {
    content +=
        fmt::format(R"svg(<text class="faint" x="{:.1f}" y="28" text-anchor="middle">{}</text>)svg",
                    kLeft + (static_cast<double>(column) + 0.5) * width, column);
  }
  double y = 34;
  for (size_t row = 0; row < chart.rows.size(); ++row, y += kCell) {
    content += fmt::format(
        R"svg(<text class="faint" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)svg", kLeft - 8,
        y + 14, row);
    for (size_t column = 0; column < chart.rows[row].size(); ++column) {
      const double share = chart.rows[row][column];
      if (!std::isfinite(share)) continue;
      const double x = kLeft + static_cast<double>(column) * width;
      content += fmt::format(
          R"svg(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="var(--c0)" fill-opacity="{:.3f}"><title>{} {}, {} {}: {:.2f} %</title></rect>)svg",
          x, y, std::max(width - 1, 0.5), kCell - 1, 0.04 + 0.66 * std::clamp(share, 0.0, 1.0),
          escaped(chart.row_label), row, escaped(chart.column_label), column, 100 * share);
      if (width < kFigureWidth) continue;
      content +=
          fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{:.1f}</text>)svg",
                      x + (width - 1) / 2, y + 14, 100 * share);
    }
  }
  return svg_element(y + 4, chart.title, content);
}

void ReportPage::add_heading(const std::string& text) {
  body_ += "<h2>" + escaped(text) + "</h2>\n";
}

void ReportPage::add_text(const std::string& text) { body_ += "<p>" + escaped(text) + "</p>\n"; }

void ReportPage::add_chart(const LineChart& chart) {
  body_ +=
      "<figure><figcaption>" + escaped(chart.title) + "</figcaption>" + svg(chart) + "</figure>\n";
}

void ReportPage::add_chart(const StackedChart& chart) {
  body_ +=
      "<figure><figcaption>" + escaped(chart.title) + "</figcaption>" + svg(chart) + "</figure>\n";
}

void ReportPage::add_chart(const GridChart& chart) {
  body_ +=
      "<figure><figcaption>" + escaped(chart.title) + "</figcaption>" + svg(chart) + "</figure>\n";
}

void ReportPage::add_table(const ReportTable& table) {
  const auto row = [&](const std::vector<std::string>& cells, const char* tag) {
    body_ += "<tr>";
    for (const std::string& cell : cells)
      body_ += fmt::format("<{0}>{1}</{0}>", tag, escaped(cell));
    body_ += "</tr>\n";
  };
  body_ += "<div class=\"wide\"><table>\n";
  row(table.header, "th");
  for (const auto& cells : table.rows) row(cells, "td");
  body_ += "</table></div>\n";
}

void ReportPage::set_footer(const std::string& text,
                            const std::vector<ConditionEntry>& conditions) {
  footer_ = "<p>" + escaped(text) + "</p>\n<ul>\n";
  for (const ConditionEntry& entry : conditions) {
    footer_ += fmt::format(
        "<li>{}: {}</li>\n", escaped(entry.name),
        entry.missing() ? "<b>missing</b> (" + escaped(entry.meaning) + ")" : escaped(entry.value));
  }
  footer_ += "</ul>\n";
}

std::string ReportPage::html() const {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title><style>{1}{2}</style></head>\n<body>\n<h1>{0}</h1>\n{3}<footer>{4}</"
      "footer>\n</body></html>\n",
      escaped(title_), kColours, kStyle, body_, footer_);
}

}  // namespace fovea::worth
