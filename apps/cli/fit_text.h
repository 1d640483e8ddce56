// Fits of a sweep in words and in JSON, as `fovea fit` and `fovea sweep` give them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fovea/worth/sweep_table.h"

namespace CLI {
class App;
}

namespace fovea::cli {

/// What the fits are asked for.
struct FitQuestion {
  std::string lengths = "2K,8K,32K,128K";  // to give shares for
  std::optional<double> kv_bytes;          // of one token, all layers that see the whole context
  std::optional<double> copy_gbps;         // the device's measured copy rate
  bool residuals = false;
};

/// Adds `lengths_option`, --kv-bytes, --copy-gbps and --residuals.
void add_fit_options(CLI::App& command, FitQuestion& question, const char* lengths_option);

/// Throws kInvalidArgument naming the option that is wrong.
void check_fit_question(const FitQuestion& question, const char* lengths_option);

/// The fits of one table: each backend alone and all with b in common, under both weightings.
struct Fits {
  std::vector<worth::PrefillFit> prefill;
  std::vector<worth::DecodeFit> decode;
};

/// Throws kInvalidArgument naming a sweep that has too few lengths.
Fits fit_all(const worth::SweepTable& table);

/// Coefficients with their standard errors, shares, and bandwidths, as tables.
std::string fit_tables(const worth::SweepTable& table, const Fits& fits,
                       const FitQuestion& question);

/// "216.80 +- 0.31"; says so where there is no standard error.
std::string value_with_error(double value, double error, int digits);

/// "absolute", or "relative, b shared".
std::string kind_of(const worth::PrefillFit& fit);

nlohmann::json fits_json(const Fits& fits, const FitQuestion& question);

}  // namespace fovea::cli
