// The ways to attend that an evaluation compares: methods by densities, periphery and block size.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/attention_options.h"
#include "fovea/engine/session.h"

namespace fovea::cli {

/// One way to attend.
struct EvalVariant {
  std::string attention;          // as --attention names it: "dense", "witness:4"
  std::optional<double> density;  // share of the causal pairs that is asked for; empty when the
                                  // method keeps what it keeps, as dense does
  AttentionSettings settings;     // with that density as the selector's budget

  bool is_dense() const { return !settings.selector.has_value(); }
  /// "witness:4, 5.34 %, periphery": what tells it from the others of a plan whose block sizes are
  /// all the same; else with "blocks of 64" at the end.
  std::string name(bool with_block_size) const;
  /// The same settings with another budget.
  AttentionSettings with_budget(double setting) const;
};

/// The axes of a plan as they stand on the command line.
struct EvalAxes {
  std::string attention = "centroid,rescue,witness:1,witness:4,oracle";
  std::string densities;  // percent, "own" for what the method keeps by itself
  std::string periphery = "off";
  std::string block_sizes = "128";
};

/// Every combination that differs: dense first, given or not, and once; methods without scores
/// once per block size and periphery, since no budget moves them.
///
/// Throws kInvalidArgument naming the option and its value.
std::vector<EvalVariant> expand_variants(const EvalAxes& axes, const AttentionOptions& knobs);

/// Whether the variants differ in their block sizes.
bool block_sizes_differ(const std::vector<EvalVariant>& variants);

}  // namespace fovea::cli
