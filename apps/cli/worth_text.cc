#include "apps/cli/worth_text.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "apps/cli/table.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

// A step that gains less than the first is not worth a kernel; one that gains the second is.
constexpr double kLittle = 1.05;
constexpr double kMuch = 1.10;

}  // namespace

bool WinOptions::has_request() const {
  const int given = ttft_ms.has_value() + tpot_ms.has_value() + output_tokens.has_value();
  check_argument(given == 0 || given == 3,
                 "a request needs --ttft, --tpot and --output together, got {} of them", given);
  return given == 3;
}

worth::RequestShape WinOptions::request() const {
  return {.ttft_ms = *ttft_ms,
          .tpot_ms = *tpot_ms,
          .output_tokens = *output_tokens,
          .queue_ms = queue_ms};
}

void add_win_options(CLI::App& command, WinOptions& options) {
  command
      .add_option("--speedup", options.speedup,
                  "How many times faster the attention kernel becomes")
      ->capture_default_str()
      ->type_name("S");
  command.add_option("--ttft", options.ttft_ms, "A request's time to its first token, ms")
      ->type_name("MS");
  command.add_option("--tpot", options.tpot_ms, "Its time for each later token, ms")
      ->type_name("MS");
  command.add_option("--output", options.output_tokens, "Tokens of its answer")->type_name("N");
  command.add_option("--queue", options.queue_ms, "Its wait before prefill, ms")
      ->capture_default_str()
      ->type_name("MS");
}

std::string format_speedup(double speedup) {
  if (!std::isfinite(speedup)) return "no limit";
  return fmt::format("{:.{}f}x", speedup, speedup < 1.0995 ? 4 : speedup < 9.995 ? 3 : 1);
}

std::string format_share(double low, double high) {
  if (high - low < 0.0005) return fmt::format("{:.1f} %", 100 * low);
  return fmt::format("between {:.1f} and {:.1f} %", 100 * low, 100 * high);
}

std::string verdict_text(double low, double high, double speedup) {
  const double least = worth::step_speedup(low, speedup);
  const double most = worth::step_speedup(high, speedup);
  const std::string returns =
      most - least < 5e-4 ? format_speedup(least)
                          : fmt::format("{} to {}", format_speedup(least), format_speedup(most));
  const double ceiling = worth::step_ceiling(high);
  std::string text =
      fmt::format("attention takes {}; a kernel {:g}x faster returns {} for the step, {}",
                  format_share(low, high), speedup, returns,
                  std::isfinite(ceiling) ? "no kernel more than " + format_speedup(ceiling)
                                         : "and faster kernels return more without a limit");
  if (most < kLittle) return text + ": work elsewhere";
  if (least >= kMuch) return text + ": rewrite the kernel";
  if (least < kLittle && most >= kMuch) return text + ": classify the unknown kernels first";
  return text + ": worth it only if the kernel is cheap to have";
}

worth::ReportTable shares_table(const Shares& shares, double prefill_speedup,
                                double decode_speedup) {
  worth::ReportTable table{
      {"phase", "attention", "ceiling", "kernel", "step", "kernel for 1.1x", "verdict"}, {}};
  const auto add = [&](const char* phase, const std::optional<double>& share, double speedup) {
    if (!share) {
      table.rows.push_back({phase, "unknown", "-", "-", "-", "-", "-"});
      return;
    }
    const double needed = worth::needed_kernel_speedup(*share, kMuch);
    const std::string verdict = verdict_text(*share, *share, speedup);
    table.rows.push_back(
        {phase, format_percent(*share), format_speedup(worth::step_ceiling(*share)),
         fmt::format("{:g}x", speedup), format_speedup(worth::step_speedup(*share, speedup)),
         std::isfinite(needed) ? format_speedup(needed) : "none does it",
         verdict.substr(verdict.rfind(": ") + 2)});
  };
  add("prefill", shares.prefill, prefill_speedup);
  add("decode", shares.decode, decode_speedup);
  return table;
}

worth::ReportTable points_table(const worth::TwoPointLaw& law, const std::vector<int64_t>& contexts,
                                double speedup) {
  worth::ReportTable table{{"tokens", "attention", "ceiling", fmt::format("{:g}x kernel", speedup)},
                           {}};
  for (const int64_t tokens : contexts) {
    const double share = law.share(static_cast<double>(tokens));
    table.rows.push_back({fmt::format("{}", tokens), format_percent(share),
                          format_speedup(worth::step_ceiling(share)),
                          format_speedup(worth::step_speedup(share, speedup))});
  }
  return table;
}

std::string to_text(const worth::ReportTable& table) {
  Table text(table.header);
  for (const std::vector<std::string>& row : table.rows) text.add_row(row);
  return text.to_string();
}

std::string request_text(const worth::RequestShape& request, const worth::AttentionWin& win) {
  const worth::RequestWorth result = worth::request_worth(request, win);
  return fmt::format(
      "a request of {} (prefill {}, decode {}{}) saves {} = {:.3f} % of its time, a speed-up of "
      "{:.4f}x; "
      "ttft {} -> {}, tpot {} -> {}",
      format_seconds(result.total_ms / 1e3), format_seconds(result.prefill_ms / 1e3),
      format_seconds(result.decode_ms / 1e3),
      request.queue_ms > 0 ? fmt::format(", queue {}", format_seconds(request.queue_ms / 1e3)) : "",
      format_seconds((result.saved_prefill_ms + result.saved_decode_ms) / 1e3),
      100 * result.saved_fraction, result.speedup, format_seconds(request.ttft_ms / 1e3),
      format_seconds(result.ttft_after_ms / 1e3), format_seconds(request.tpot_ms / 1e3),
      format_seconds(result.tpot_after_ms / 1e3));
}

nlohmann::json request_json(const worth::RequestShape& request, const worth::AttentionWin& win) {
  const worth::RequestWorth result = worth::request_worth(request, win);
  return {{"total_ms", result.total_ms},
          {"prefill_ms", result.prefill_ms},
          {"decode_ms", result.decode_ms},
          {"saved_prefill_ms", result.saved_prefill_ms},
          {"saved_decode_ms", result.saved_decode_ms},
          {"saved_fraction", result.saved_fraction},
          {"speedup", result.speedup},
          {"ttft_after_ms", result.ttft_after_ms},
          {"tpot_after_ms", result.tpot_after_ms}};
}

}  // namespace fovea::cli
