// Words and options that `fovea trace` and `fovea worth` share.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/worth/amdahl.h"
#include "fovea/worth/fit.h"
#include "fovea/worth/report_page.h"

namespace CLI {
class App;
}

namespace fovea::cli {

/// A request and a win as the command line describes them.
struct WinOptions {
  double speedup = 2;
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> output_tokens;
  double queue_ms = 0;

  /// Whether a request was described. Throws kInvalidArgument when it was described in part.
  bool has_request() const;
  worth::RequestShape request() const;
};

/// A request, what a win does to it, and what a reader must know of the two.
struct RequestWin {
  worth::RequestShape shape;
  worth::AttentionWin win;
  std::vector<std::string> notes;
};

/// Attention's shares of a step and where they came from; a phase may be unknown.
struct Shares {
  std::optional<double> prefill;
  std::optional<double> decode;
  std::string source;
};

/// Adds --speedup, --ttft, --tpot, --output and --queue.
void add_win_options(CLI::App& command, WinOptions& options);

/// "1.10x", "3.33x", "no limit".
std::string format_speedup(double speedup);

/// "18.0 %", or "between 12.0 and 20.0 %".
std::string format_share(double low, double high);

/// What a kernel `speedup` times faster returns to a step whose attention share is between `low`
/// and `high`, and whether to write it: "rewrite the kernel", "work elsewhere", or why it depends.
std::string verdict_text(double low, double high, double speedup);

/// A row a phase: share, ceiling, what the kernel returns, what 1.1x would need, verdict.
worth::ReportTable shares_table(const Shares& shares, double prefill_speedup,
                                double decode_speedup);

/// A row a length: share, ceiling, what the kernel returns.
worth::ReportTable points_table(const worth::TwoPointLaw& law, const std::vector<int64_t>& contexts,
                                double speedup);

/// The table as aligned text.
std::string to_text(const worth::ReportTable& table);

/// The request before and after, saved time beside speed-up.
std::string request_text(const worth::RequestShape& request, const worth::AttentionWin& win);

nlohmann::json request_json(const worth::RequestShape& request, const worth::AttentionWin& win);

}  // namespace fovea::cli
