// Options that choose how the layers attend: the method by name and every knob of selection.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fovea/engine/session.h"

namespace CLI {
class App;
}

namespace fovea::cli {

/// The knobs as given; methods come by name, so that one set of knobs serves several methods.
struct AttentionOptions {
  SelectorSettings selector;
  std::optional<float> density;      // none: the method's own
  std::vector<float> layer_budgets;  // as AttentionSettings has them
  bool periphery = false;
  bool sparse_decode = false;
  std::optional<DType> kv_codes;
  float value_share = 1;
  int64_t min_sparse_len = -1;  // as AttentionSettings has it
};

/// Adds the knobs to `command`, grouped in its help, and --settings, which sets them from a file.
/// `options` must outlive the parse.
void add_attention_options(CLI::App& command, AttentionOptions& options);

/// "dense", or a selector by its name; "witness:2:f8" is witness with two witnesses, in f8e4m3,
/// whatever the knobs say. Throws kInvalidArgument naming the method or the knob that is wrong.
AttentionSettings attention_settings(const std::string& name, const AttentionOptions& options);

/// "dense,rescue" -> {"dense", "rescue"}. Throws kInvalidArgument on an unknown name, one given
/// twice, or none.
std::vector<std::string> parse_attention_list(const std::string& text);

/// Throws kInvalidArgument naming an option of `command` that add_attention_options() added and the
/// user gave, when all `attentions` are dense: it would change nothing.
void check_selection_options(const CLI::App& command, const std::vector<std::string>& attentions);

/// Every name that --attention takes, for help texts.
std::string attention_names();

}  // namespace fovea::cli
