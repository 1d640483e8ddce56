#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/cli/report_pages.h"
#include "apps/cli/report_request.h"
#include "apps/cli/table.h"

namespace fovea::cli {
namespace {

constexpr int kCurvePoints = 60;
constexpr double kFastestKernel = 64;

using worth::ChartSeries;
using worth::LineChart;
using worth::ReportPage;
using worth::ReportTable;
using worth::StackedChart;

/// Values at points spread evenly over the logarithm of x.
template <typename Value>
ChartSeries log_curve(const std::string& name, double first, double last, const Value& value) {
  ChartSeries series{name, {}, false};
  for (int i = 0; i <= kCurvePoints; ++i) {
    const double x = first * std::pow(last / first, static_cast<double>(i) / kCurvePoints);
    series.points.emplace_back(x, value(x));
  }
  return series;
}

LineChart chart_of(const std::string& title, const std::string& x_label,
                   const std::string& y_label) {
  LineChart chart;
  chart.title = title;
  chart.x_label = x_label;
  chart.y_label = y_label;
  chart.log_x = true;
  return chart;
}

LineChart share_chart(const std::string& title, const std::string& x_label) {
  LineChart chart = chart_of(title, x_label, "share of the step, p");
  chart.percent_y = true;
  return chart;
}

LineChart speedup_chart(const std::string& title, const std::string& x_label) {
  LineChart chart = chart_of(title, x_label, "speed-up of the step");
  chart.log_y = true;
  return chart;
}

/// For each share a solid line of what the kernel returns, and a dashed one of its ceiling.
LineChart returns_of(const LineChart& shares, const std::string& what, double speedup) {
  LineChart chart =
      speedup_chart(fmt::format("What a {:g}x kernel returns for the {}, and the ceiling (dashed)",
                                speedup, what),
                    shares.x_label);
  for (size_t i = 0; i < shares.series.size(); ++i) {
    ChartSeries returned = shares.series[i];
    ChartSeries ceiling = shares.series[i];
    for (size_t at = 0; at < returned.points.size(); ++at) {
      const double p = shares.series[i].points[at].second;
      returned.points[at].second = worth::step_speedup(p, speedup);
      ceiling.points[at].second = worth::step_ceiling(p);
    }
    ceiling.name = fmt::format("{}, at most", ceiling.name);
    ceiling.dashed = true;
    returned.dots = ceiling.dots = false;
    returned.colour = ceiling.colour = static_cast<int>(i);
    chart.series.push_back(returned);
    chart.series.push_back(ceiling);
  }
  return chart;
}

double share_of(const ModelQuestion& question, const worth::ModelShape& shape, bool is_decode,
                int64_t tokens) {
  const worth::StepCost cost =
      is_decode ? worth::decode_cost(shape, question.device, tokens, question.batch_size)
                : worth::prefill_cost(shape, question.device, tokens, question.cached_tokens,
                                      question.batch_size);
  return cost.attention_share();
}

LineChart model_shares(const ModelQuestion& question, bool is_decode) {
  LineChart chart =
      share_chart(is_decode ? "Decode: attention's share of a step" : "Prefill: attention's share",
                  is_decode ? "context, tokens" : "prompt, tokens");
  const auto [shortest, longest] =
      std::minmax_element(question.contexts.begin(), question.contexts.end());
  for (const worth::ModelShape& shape : question.models) {
    chart.series.push_back(log_curve(
        shape.name, static_cast<double>(*shortest), static_cast<double>(*longest),
        [&](double n) { return share_of(question, shape, is_decode, static_cast<int64_t>(n)); }));
  }
  return chart;
}

ReportTable model_table(const ModelQuestion& question, bool is_decode) {
  ReportTable table{{"tokens"}, {}};
  for (const worth::ModelShape& shape : question.models) table.header.push_back(shape.name);
  for (const int64_t tokens : question.contexts) {
    std::vector<std::string> row = {fmt::format("{}", tokens)};
    for (const worth::ModelShape& shape : question.models) {
      const double p = share_of(question, shape, is_decode, tokens);
      row.push_back(
          fmt::format("{}, at most {}", format_percent(p), format_speedup(worth::step_ceiling(p))));
    }
    table.rows.push_back(row);
  }
  return table;
}

std::vector<worth::ConditionEntry> model_conditions(const ModelQuestion& question) {
  std::string models, precisions, contexts;
  for (const worth::ModelShape& shape : question.models) {
    const char* comma = models.empty() ? "" : ", ";
    models += fmt::format("{}{}", comma, shape.name);
    precisions += fmt::format("{}{}: weights {:g}, experts {:g}, KV {:g}", comma, shape.name,
                              shape.precision.weight_bytes, shape.precision.expert_bytes,
                              shape.precision.kv_bytes);
  }
  for (const int64_t tokens : question.contexts) {
    contexts += fmt::format("{}{}", contexts.empty() ? "" : ", ", tokens);
  }
  return worth::ten_conditions(
      {{"model", models},
       {"hardware", fmt::format("1 {}, {}", question.device.name, question.device.source)},
       {"precision", fmt::format("{} bytes an element", precisions)},
       {"lengths", fmt::format("prompt or context {} tokens", contexts)},
       {"load", fmt::format("one step of {} sequences", question.batch_size)},
       {"engine", "none: a roofline, each operation at its own limit"},
       {"prefix_caching",
        fmt::format("{} tokens before each prompt in the cache", question.cached_tokens)},
       {"tokens_counted", "none: shares of time"}});
}

}  // namespace

std::string model_picture(const ModelQuestion& question) {
  return worth::standalone_svg({model_shares(question, false), model_shares(question, true)});
}

std::string model_page(const ModelQuestion& question, double speedup,
                       const std::optional<RequestWin>& request) {
  ReportPage page("Attention's share by length");
  const worth::DeviceRates& device = question.device;
  page.add_text(
      fmt::format("{}: {:g} TFLOP/s, {:g} GB/s ({}), batch {}. A roofline: every operation at its "
                  "own limit, no launches, no communication.",
                  device.description.empty() ? device.name : device.description, device.gemm_tflops,
                  device.copy_gbps, device.source, question.batch_size));
  for (const bool is_decode : {false, true}) {
    const LineChart shares = model_shares(question, is_decode);
    page.add_heading(is_decode ? "Decode" : "Prefill");
    page.add_chart(shares);
    page.add_chart(returns_of(shares, is_decode ? "decode step" : "prefill", speedup));
    page.add_table(model_table(question, is_decode));
  }
  if (request) add_request(&page, *request, speedup);
  page.set_footer(written_by() + " A model's figures, not measurements.",
                  model_conditions(question));
  return page.html();
}

std::string shares_page(const Shares& shares, double prefill_speedup, double decode_speedup,
                        const std::optional<RequestWin>& request) {
  ReportPage page("What a faster attention kernel returns");
  page.add_text(fmt::format("Shares from {}.", shares.source));
  LineChart chart =
      speedup_chart("Speed-up of the step by that of the kernel, and the ceiling (dashed)",
                    "times faster the kernel becomes");
  const auto add = [&](const char* phase, const std::optional<double>& share, int colour) {
    if (!share) return;
    chart.series.push_back(log_curve(phase, 1, kFastestKernel,
                                     [&](double s) { return worth::step_speedup(*share, s); }));
    chart.series.back().colour = colour;
    chart.series.push_back(log_curve(fmt::format("{}, at most", phase), 1, kFastestKernel,
                                     [&](double) { return worth::step_ceiling(*share); }));
    chart.series.back().colour = colour;
    chart.series.back().dashed = true;
  };
  add("prefill", shares.prefill, 0);
  add("decode", shares.decode, 1);
  page.add_chart(chart);
  page.add_table(shares_table(shares, prefill_speedup, decode_speedup));
  if (request) add_request(&page, *request, std::max(prefill_speedup, decode_speedup));
  page.set_footer(written_by(), worth::ten_conditions());
  return page.html();
}

std::string points_page(const std::vector<worth::SharePoint>& points, const worth::TwoPointLaw& law,
                        const std::vector<int64_t>& contexts, double speedup) {
  ReportPage page("Attention's share by length, from two published points");
  page.add_text(fmt::format(
      "p(n) = c n / (b + c n): one free number, fixed by the shorter length. It says {} at {:.0f} "
      "tokens, where {} was published. Use it only when nothing better is known.",
      format_percent(law.predicted_share), points[1].tokens, format_percent(law.published_share)));
  LineChart shares = share_chart("Attention's share", "tokens");
  const auto [shortest, longest] = std::minmax_element(contexts.begin(), contexts.end());
  shares.series.push_back(log_curve("the law", static_cast<double>(*shortest),
                                    static_cast<double>(*longest),
                                    [&](double n) { return law.share(n); }));
  const LineChart returns = returns_of(shares, "step", speedup);
  ChartSeries published{"published", {}, true};
  for (const worth::SharePoint& point : points)
    published.points.emplace_back(point.tokens, point.share);
  shares.series.push_back(published);
  page.add_chart(shares);
  page.add_chart(returns);
  page.add_table(points_table(law, contexts, speedup));
  page.set_footer(written_by(), worth::ten_conditions());
  return page.html();
}

std::string claim_page(const std::vector<worth::ImpliedShare>& implied, const ReportTable& table) {
  ReportPage page("What a claim needs");
  StackedChart chart{"Share of the outer level that the inner one must have taken", "%", {}};
  for (const worth::ImpliedShare& pair : implied) {
    const double share = 100 * pair.share;
    chart.bars.push_back({fmt::format("{} in {}", pair.inner, pair.outer),
                          {{"needed", std::min(share, 100.0)},
                           {"rest", 100 - share},
                           {"more than there is", share - 100}}});
  }
  page.add_chart(chart);
  page.add_table(table);
  page.set_footer(written_by(), worth::ten_conditions());
  return page.html();
}

}  // namespace fovea::cli
