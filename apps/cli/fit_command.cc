#include "apps/cli/fit_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/parse_values.h"
#include "apps/cli/report_pages.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/worth/sweep_table.h"

namespace fovea::cli {
namespace {

using worth::DecodeFit;
using worth::PrefillFit;
using worth::Weighting;

struct FitOptions {
  std::string file;
  std::string lengths = "2K,8K,32K,128K";
  std::optional<double> kv_bytes;
  std::optional<double> copy_gbps;
  std::string report;
  bool residuals = false;
  bool json = false;
};

/// The fits of one table: each backend alone and all with b in common, under both weightings.
struct Fits {
  std::vector<PrefillFit> prefill;
  std::vector<DecodeFit> decode;
};

Fits fit_all(const worth::SweepTable& table) {
  Fits fits;
  for (const Weighting weighting : {Weighting::kAbsolute, Weighting::kRelative}) {
    for (const worth::Sweep& sweep : table.prefill) {
      fits.prefill.push_back(worth::fit_prefill(sweep, weighting));
    }
    if (table.prefill.size() < 2) continue;
    for (const PrefillFit& fit : worth::fit_prefill_jointly(table.prefill, weighting)) {
      fits.prefill.push_back(fit);
    }
  }
  for (const worth::Sweep& sweep : table.decode) fits.decode.push_back(worth::fit_decode(sweep));
  return fits;
}

std::string with_error(double value, double error, const char* format) {
  if (!std::isfinite(error))
    return fmt::format(fmt::runtime(format), value) + " (no error: too few lengths)";
  return fmt::format(fmt::runtime(format), value) + " +- " +
         fmt::format(fmt::runtime(format), error);
}

std::string kind_of(const PrefillFit& fit) {
  return fmt::format("{}{}", worth::weighting_name(fit.weighting),
                     fit.b_shared ? ", b shared" : "");
}

void print_prefill(const Fits& fits, const std::vector<int64_t>& lengths) {
  fmt::print(
      "prefill: ttft(n) = a + b n + c n^2; c n^2 is attention, b n what grows with the tokens\n\n");
  Table coefficients({"backend", "errors", "a (ms)", "b (us/token)", "c (ps/token^2)", "sigma"});
  for (const PrefillFit& fit : fits.prefill) {
    coefficients.add_row({fit.backend, kind_of(fit),
                          with_error(fit.a_s * 1e3, fit.a_se * 1e3, "{:.1f}"),
                          with_error(fit.b_s * 1e6, fit.b_se * 1e6, "{:.2f}"),
                          with_error(fit.c_s * 1e12, fit.c_se * 1e12, "{:.1f}"),
                          fit.weighting == Weighting::kAbsolute ? format_seconds(fit.sigma)
                                                                : format_percent(fit.sigma)});
  }
  fmt::print("{}\n", coefficients.to_string());

  std::vector<std::string> header = {"attention's share", "errors"};
  for (const int64_t length : lengths) header.push_back(fmt::format("{}", length));
  Table shares(header);
  bool extrapolated = false;
  for (const PrefillFit& fit : fits.prefill) {
    std::vector<std::string> row = {fit.backend, kind_of(fit)};
    for (const int64_t length : lengths) {
      const auto tokens = static_cast<double>(length);
      const bool beyond = tokens > fit.longest_tokens;
      extrapolated = extrapolated || beyond;
      row.push_back(format_percent(fit.quadratic_share(tokens)) + (beyond ? " *" : ""));
    }
    shares.add_row(row);
  }
  fmt::print("{}{}\n", shares.to_string(),
             extrapolated ? "* extrapolated: beyond the longest length measured\n" : "");
  for (size_t i = 1; i < fits.prefill.size(); ++i) {
    const PrefillFit& first = fits.prefill[i - 1];
    const PrefillFit& second = fits.prefill[i];
    if (!first.b_shared || !second.b_shared || first.weighting != second.weighting) continue;
    fmt::print("c of {} over c of {}: {:.2f} ({})\n", second.backend, first.backend,
               second.c_s / first.c_s, kind_of(first));
  }
}

void print_residuals(const worth::SweepTable& table, const Fits& fits) {
  for (const PrefillFit& fit : fits.prefill) {
    for (const worth::Sweep& sweep : table.prefill) {
      if (sweep.backend != fit.backend) continue;
      fmt::print("residuals of {} ({}), ms:", fit.backend, kind_of(fit));
      for (size_t i = 0; i < sweep.tokens.size(); ++i) {
        fmt::print(" {:.0f}: {:+.1f}", sweep.tokens[i], fit.residuals_s[i] * 1e3);
      }
      fmt::print("\n");
    }
  }
}

void print_decode(const Fits& fits, const FitOptions& options) {
  fmt::print("\ndecode: itl(n) = a + b n; b is the time to read one more token of KV cache\n\n");
  Table table({"backend", "a (ms)", "b (us/token)", "bandwidth", "headroom"});
  for (const DecodeFit& fit : fits.decode) {
    std::string bandwidth = "needs --kv-bytes";
    std::string headroom = "needs --kv-bytes and --copy-gbps";
    if (fit.slope_us_per_token <= 0) {
      bandwidth = headroom = "the slope is not above 0";
    } else if (options.kv_bytes) {
      bandwidth = fmt::format("{:.0f} GB/s", fit.bandwidth_gbps(*options.kv_bytes));
      if (options.copy_gbps) {
        headroom =
            fmt::format("{:.2f}x", fit.kernel_headroom(*options.kv_bytes, *options.copy_gbps));
      }
    }
    table.add_row({fit.backend, with_error(fit.intercept_ms, fit.intercept_se_ms, "{:.2f}"),
                   with_error(fit.slope_us_per_token, fit.slope_se_us_per_token, "{:.3f}"),
                   bandwidth, headroom});
  }
  fmt::print("{}headroom: the most that any decode kernel can still win, at the card's copy rate\n",
             table.to_string());
}

nlohmann::json to_json(const Fits& fits, const std::vector<int64_t>& lengths,
                       const FitOptions& options) {
  nlohmann::json json = {{"prefill", nlohmann::json::array()}, {"decode", nlohmann::json::array()}};
  for (const PrefillFit& fit : fits.prefill) {
    nlohmann::json row = {{"backend", fit.backend},
                          {"weighting", worth::weighting_name(fit.weighting)},
                          {"b_shared", fit.b_shared},
                          {"a_s", fit.a_s},
                          {"b_s", fit.b_s},
                          {"c_s", fit.c_s},
                          {"a_se", fit.a_se},
                          {"b_se", fit.b_se},
                          {"c_se", fit.c_se},
                          {"sigma", fit.sigma},
                          {"degrees_of_freedom", fit.degrees_of_freedom},
                          {"residuals_s", fit.residuals_s},
                          {"shares", nlohmann::json::array()}};
    for (const int64_t length : lengths) {
      const auto tokens = static_cast<double>(length);
      row["shares"].push_back({{"tokens", length},
                               {"quadratic_share", fit.quadratic_share(tokens)},
                               {"extrapolated", tokens > fit.longest_tokens}});
    }
    json["prefill"].push_back(row);
  }
  for (const DecodeFit& fit : fits.decode) {
    nlohmann::json row = {{"backend", fit.backend},
                          {"intercept_ms", fit.intercept_ms},
                          {"intercept_se_ms", fit.intercept_se_ms},
                          {"slope_us_per_token", fit.slope_us_per_token},
                          {"slope_se_us_per_token", fit.slope_se_us_per_token},
                          {"residuals_ms", fit.residuals_ms}};
    if (options.kv_bytes && fit.slope_us_per_token > 0) {
      row["bandwidth_gbps"] = fit.bandwidth_gbps(*options.kv_bytes);
      if (options.copy_gbps) {
        row["headroom"] = fit.kernel_headroom(*options.kv_bytes, *options.copy_gbps);
      }
    }
    json["decode"].push_back(row);
  }
  return json;
}

void run(const FitOptions& options) {
  check_argument(!options.kv_bytes || *options.kv_bytes > 0, "--kv-bytes must be above 0, got {}",
                 options.kv_bytes.value_or(0));
  check_argument(!options.copy_gbps || *options.copy_gbps > 0,
                 "--copy-gbps must be above 0, got {}", options.copy_gbps.value_or(0));
  const std::vector<int64_t> lengths = parse_tokens_list(options.lengths, "--lengths");
  const worth::SweepTable table =
      naming_file(options.file, [&] { return worth::read_sweep_table(read_text(options.file)); });
  const Fits fits = fit_all(table);
  if (!options.report.empty()) {
    OutputFile(options.report).write(fit_page(table, fits.prefill, fits.decode));
  }
  if (options.json) {
    fmt::print("{}\n", to_json(fits, lengths, options).dump(2));
    return;
  }
  if (!fits.prefill.empty()) print_prefill(fits, lengths);
  if (options.residuals) print_residuals(table, fits);
  if (!fits.decode.empty()) print_decode(fits, options);
}

}  // namespace

void add_fit_command(CLI::App& app) {
  const auto options = std::make_shared<FitOptions>();
  CLI::App* command =
      app.add_subcommand("fit", "Fit ttft and itl against length, from a table of measurements");
  command
      ->add_option(
          "file", options->file,
          "CSV: a length in tokens, then columns such as FLASH_ttft_s and FLASH_itl_ms; - is "
          "standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--lengths", options->lengths, "Prompt lengths to give shares for")
      ->capture_default_str()
      ->type_name("N,N,...");
  command->add_option("--kv-bytes", options->kv_bytes, "KV cache bytes of one token, all layers")
      ->type_name("BYTES");
  command->add_option("--copy-gbps", options->copy_gbps, "The card's measured copy rate")
      ->type_name("GB/S");
  command->add_flag("--residuals", options->residuals, "Print what the fits leave over");
  command->add_option("--report", options->report, "Write an HTML page with charts")
      ->type_name("OUT");
  command->add_flag("--json", options->json, "Print JSON instead of tables");
  command->footer(
      "Examples:\n"
      "  fovea fit sweep.csv\n"
      "  fovea fit sweep.csv --kv-bytes 57344 --copy-gbps 483 --residuals\n"
      "  printf 'n,ttft_s\\n1024,.28\\n4096,.99\\n8192,2.07\\n16384,4.59\\n' | fovea fit -");
  command->callback([options] { run(*options); });
}

}  // namespace fovea::cli
