#include "fovea/worth/report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fovea::worth {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(LineChart, LinesDotsTicksAndLegend) {
  const LineChart chart{"Share",
                        "tokens",
                        "p",
                        true,
                        true,
                        {{"a < b", {{1024, 0.1}, {4096, 0.4}, {1048576, 0.9}}, false},
                         {"measured", {{2048, 0.2}}, true}}};
  const std::string text = svg(chart);
  EXPECT_THAT(text, AllOf(HasSubstr(">1K<"), HasSubstr(">1M<"), HasSubstr("100 %"),
                          HasSubstr("a &lt; b"), HasSubstr("aria-label=\"Share\"")));
  EXPECT_EQ(count(text, "<path"), 1);
  EXPECT_EQ(count(text, "<circle"), 1);
  EXPECT_EQ(count(text, "<svg"), count(text, "</svg>"));
  EXPECT_EQ(count(text, "<text"), count(text, "</text>"));
}

TEST(LineChart, WhatCannotBeDrawnIsLeftOut) {
  const double infinity = std::numeric_limits<double>::infinity();
  const LineChart broken{
      "t",  "x",   "y",
      true, false, {{"s", {{0, 1}, {kNan, 1}, {2, kNan}, {4, infinity}, {8, 1}, {16, 2}}, false}}};
  EXPECT_THAT(svg(broken), AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  for (const bool log_x : {false, true}) {
    EXPECT_THAT(svg(LineChart{"empty", "x", "y", log_x, false, {}}),
                AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
    EXPECT_THAT(svg(LineChart{"one", "x", "y", log_x, false, {{"s", {{5, 0}}, true}}}),
                AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  }
}

TEST(LineChart, SpeedUpsBeginAtOneOnALogarithmicAxis) {
  LineChart chart{"Ceiling", "tokens", "speed-up",
                  true,      false,    {{"most", {{1024, 1}, {2048, 9}, {4096, 0.5}}, false}}};
  chart.log_y = true;
  chart.series[0].dashed = true;
  const std::string text = svg(chart);
  EXPECT_THAT(text, AllOf(HasSubstr(">1<"), HasSubstr(">16<"), HasSubstr("stroke-dasharray")));
  EXPECT_THAT(text, Not(HasSubstr(">32<")));
  EXPECT_EQ(count(text, "L"), 1);  // two points: the one below 1 is left out
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

TEST(LineChart, IntervalsAreBarsWithDots) {
  LineChart chart{"Frontier", "density, %", "score", false, true, {{"a", {{3, 0.2}, {10, 0.6}}}}};
  chart.series[0].intervals = {{0.1, 0.3}, {0.5, 0.9}};
  chart.series.push_back(chart.series[0]);
  chart.series[1].name = "a, dashed";
  chart.series[1].dashed = true;
  chart.series[1].intervals[0] = {kNan, kNan};  // a point alone
  const std::string text = svg(chart);
  EXPECT_EQ(count(text, "<circle"), 3);
  EXPECT_EQ(count(text, "stroke-opacity"), 3);
  EXPECT_EQ(count(text, "<rect"), 1);  // the legend of what is not dashed
  EXPECT_THAT(text, AllOf(HasSubstr("100 %"), Not(HasSubstr("nan"))));  // 0.9 fits the axis
}

TEST(GridChart, ShadesCellsAndLeavesOutWhatIsMissing) {
  const GridChart chart{"Density", "layer", "head", {{0.05, 1, kNan}, {0.25}}};
  const std::string text = svg(chart);
  EXPECT_EQ(count(text, "<rect"), 3);
  EXPECT_THAT(text, AllOf(HasSubstr("layer 0, head 1: 100.00 %"), HasSubstr(">25.0<"),
                          Not(HasSubstr("nan"))));
  EXPECT_THAT(svg(GridChart{"empty", "layer", "head", {}}), Not(HasSubstr("nan")));
}

TEST(StandaloneSvg, HoldsItsChartsAndTheirColours) {
  const LineChart chart{"A & B", "x", "y", false, false, {{"s", {{1, 1}, {2, 2}}, false}}};
  const std::string text = standalone_svg({chart, chart});
  EXPECT_THAT(text, testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(text, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_EQ(count(text, "A &amp; B</text>"), 2);
  EXPECT_EQ(count(text, "<path"), 2);
  EXPECT_EQ(count(text, "<g "), count(text, "</g>"));
  EXPECT_EQ(count(text, "<svg"), 1);
}

TEST(StackedChart, PartsShareColoursAcrossBars) {
  const StackedChart chart{"Time",
                           "ms",
                           {{"now", {{"attention", 10}, {"rest", 30}, {"none", 0}}},
                            {"then", {{"attention", 5}, {"rest", 30}, {"bad", kNan}}}}};
  const std::string text = svg(chart);
  EXPECT_EQ(count(text, "<title>"), 4);
  EXPECT_EQ(count(text, "<title>attention"), 2);
  EXPECT_THAT(text, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("none"))));
  EXPECT_THAT(svg(StackedChart{"empty", "ms", {}}), Not(HasSubstr("nan")));
}

TEST(ReportPage, IsSelfContainedAndEscaped) {
  ReportPage page("A <page>");
  page.add_heading("H & M");
  page.add_text("kernel<1> \"quoted\"");
  page.add_table({{"x", "y"}, {{"<script>", "2"}}});
  page.set_footer("by <us>", ten_conditions({{"model", "m & n"}}));
  const std::string html = page.html();
  EXPECT_THAT(
      html, AllOf(HasSubstr("A &lt;page&gt;"), HasSubstr("H &amp; M"), HasSubstr("&lt;script&gt;"),
                  HasSubstr("prefers-color-scheme: dark"), HasSubstr("<footer><p>by &lt;us&gt;"),
                  HasSubstr("<li>model: m &amp; n</li>"),
                  HasSubstr("<li>hardware: <b>missing</b> (type and count)</li>")));
  EXPECT_EQ(count(html, "<li>"), 10);
  EXPECT_THAT(html, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("http://")),
                          Not(HasSubstr("https://"))));
}

}  // namespace
}  // namespace fovea::worth
