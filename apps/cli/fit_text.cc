#include "apps/cli/fit_text.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "apps/cli/parse_values.h"
#include "apps/cli/table.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

using worth::DecodeFit;
using worth::PrefillFit;
using worth::Weighting;

// A fit of noisy times can have a negative b or c: then there is no share to speak of.
bool is_share(double share) { return share >= 0 && share <= 1; }

std::string prefill_tables(const Fits& fits, const std::vector<int64_t>& lengths) {
  std::string text =
      "prefill: ttft(n) = a + b n + c n^2; c n^2 is attention, b n what grows with the tokens\n\n";
  Table coefficients({"backend", "errors", "a (ms)", "b (us/token)", "c (ps/token^2)", "sigma"});
  for (const PrefillFit& fit : fits.prefill) {
    coefficients.add_row({fit.backend, kind_of(fit),
                          value_with_error(fit.a_s * 1e3, fit.a_se * 1e3, 1),
                          value_with_error(fit.b_s * 1e6, fit.b_se * 1e6, 2),
                          value_with_error(fit.c_s * 1e12, fit.c_se * 1e12, 1),
                          !std::isfinite(fit.sigma)               ? "-"
                          : fit.weighting == Weighting::kAbsolute ? format_seconds(fit.sigma)
                                                                  : format_percent(fit.sigma)});
  }
  text += coefficients.to_string() + "\n";

  std::vector<std::string> header = {"attention's share", "errors"};
  for (const int64_t length : lengths) header.push_back(fmt::format("{}", length));
  Table shares(header);
  bool extrapolated = false;
  bool without_share = false;
  for (const PrefillFit& fit : fits.prefill) {
    std::vector<std::string> row = {fit.backend, kind_of(fit)};
    for (const int64_t length : lengths) {
      const auto tokens = static_cast<double>(length);
      const bool beyond = tokens > fit.longest_tokens;
      const double share = fit.quadratic_share(tokens);
      extrapolated = extrapolated || beyond;
      without_share = without_share || !is_share(share);
      row.push_back((is_share(share) ? format_percent(share) : "-") + (beyond ? " *" : ""));
    }
    shares.add_row(row);
  }
  text += shares.to_string();
  if (extrapolated) text += "* extrapolated: beyond the longest length measured\n";
  if (without_share) text += "- b or c came out below 0: too noisy, or too short, to tell\n";
  for (size_t i = 1; i < fits.prefill.size(); ++i) {
    const PrefillFit& first = fits.prefill[i - 1];
    const PrefillFit& second = fits.prefill[i];
    if (!first.b_shared || !second.b_shared || first.weighting != second.weighting) continue;
    if (first.c_s <= 0 || second.c_s <= 0) continue;
    text += fmt::format("c of {} over c of {}: {:.2f} ({})\n", second.backend, first.backend,
                        second.c_s / first.c_s, kind_of(first));
  }
  return text;
}

std::string residual_lines(const worth::SweepTable& table, const Fits& fits) {
  std::string text;
  for (const PrefillFit& fit : fits.prefill) {
    for (const worth::Sweep& sweep : table.prefill) {
      if (sweep.backend != fit.backend) continue;
      text += fmt::format("residuals of {} ({}), ms:", fit.backend, kind_of(fit));
      for (size_t i = 0; i < sweep.tokens.size(); ++i) {
        text += fmt::format(" {:.0f}: {:+.1f}", sweep.tokens[i], fit.residuals_s[i] * 1e3);
      }
      text += "\n";
    }
  }
  return text;
}

std::string decode_table(const Fits& fits, const FitQuestion& question) {
  Table table({"backend", "a (ms)", "b (us/token)", "bandwidth", "headroom"});
  for (const DecodeFit& fit : fits.decode) {
    std::string bandwidth = "needs --kv-bytes";
    std::string headroom = "needs --kv-bytes and --copy-gbps";
    if (fit.slope_us_per_token <= 0) {
      bandwidth = headroom = "the slope is not above 0";
    } else if (question.kv_bytes) {
      bandwidth = fmt::format("{:.0f} GB/s", fit.bandwidth_gbps(*question.kv_bytes));
      if (question.copy_gbps) {
        headroom =
            fmt::format("{:.2f}x", fit.kernel_headroom(*question.kv_bytes, *question.copy_gbps));
      }
    }
    table.add_row({fit.backend, value_with_error(fit.intercept_ms, fit.intercept_se_ms, 2),
                   value_with_error(fit.slope_us_per_token, fit.slope_se_us_per_token, 3),
                   bandwidth, headroom});
  }
  return "decode: itl(n) = a + b n; b is the time to read one more token of KV cache\n\n" +
         table.to_string() +
         "headroom: the most that any decode kernel can still win, at the card's copy rate\n";
}

}  // namespace

std::string value_with_error(double value, double error, int digits) {
  if (!std::isfinite(error))
    return fmt::format("{:.{}f} (no error: too few lengths)", value, digits);
  return fmt::format("{:.{}f} +- {:.{}f}", value, digits, error, digits);
}

std::string kind_of(const PrefillFit& fit) {
  return fmt::format("{}{}", worth::weighting_name(fit.weighting),
                     fit.b_shared ? ", b shared" : "");
}

void add_fit_options(CLI::App& command, FitQuestion& question, const char* lengths_option) {
  command
      .add_option(lengths_option, question.lengths, "Prompt lengths to give attention's share for")
      ->capture_default_str()
      ->type_name("N,N,...");
  command.add_option("--kv-bytes", question.kv_bytes, "KV cache bytes of one token, all layers")
      ->type_name("BYTES");
  command.add_option("--copy-gbps", question.copy_gbps, "The device's measured copy rate")
      ->type_name("GB/S");
  command.add_flag("--residuals", question.residuals, "Print what the fits leave over");
}

void check_fit_question(const FitQuestion& question, const char* lengths_option) {
  parse_tokens_list(question.lengths, lengths_option);
  for (const auto& [option, value] :
       {std::pair("--kv-bytes", question.kv_bytes), {"--copy-gbps", question.copy_gbps}}) {
    check_argument(!value || (*value > 0 && std::isfinite(*value)),
                   "{} must be a number above 0, got {}", option, value.value_or(0));
  }
}

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

std::string fit_tables(const worth::SweepTable& table, const Fits& fits,
                       const FitQuestion& question) {
  std::string text;
  if (!fits.prefill.empty()) {
    text += prefill_tables(fits, parse_tokens_list(question.lengths, "--lengths"));
  }
  if (question.residuals) text += residual_lines(table, fits);
  if (!fits.decode.empty()) {
    if (!text.empty()) text += "\n";
    text += decode_table(fits, question);
  }
  return text;
}

nlohmann::json fits_json(const Fits& fits, const FitQuestion& question) {
  const std::vector<int64_t> lengths = parse_tokens_list(question.lengths, "--lengths");
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
    if (question.kv_bytes && fit.slope_us_per_token > 0) {
      row["bandwidth_gbps"] = fit.bandwidth_gbps(*question.kv_bytes);
      if (question.copy_gbps) {
        row["headroom"] = fit.kernel_headroom(*question.kv_bytes, *question.copy_gbps);
      }
    }
    json["decode"].push_back(row);
  }
  return json;
}

}  // namespace fovea::cli
