#include "apps/cli/attention_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <string_view>

#include "apps/cli/parse_values.h"
#include "apps/cli/settings_file.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

template <typename T>
void add_knob(CLI::App& command, const std::string& name, T& value,
              const std::string& description) {
  command.add_option(name, value, description)->capture_default_str()->group(kSelectionGroup);
}

// An option that takes one of two words and sets `value` to what the word stands for.
template <typename T>
void add_choice(CLI::App& command, const std::string& name, T& value, const std::string& word_a,
                T a, const std::string& word_b, T b, const std::string& description) {
  command
      .add_option_function<std::string>(
          name,
          [=, &value](const std::string& word) {
            check_argument(word == word_a || word == word_b, "{} must be {} or {}, not \"{}\"",
                           name, word_a, word_b, word);
            value = word == word_a ? a : b;
          },
          description)
      ->default_str(value == a ? word_a : word_b)
      ->type_name(word_a + "|" + word_b)
      ->group(kSelectionGroup);
}

struct MethodName {
  std::string method;
  std::optional<int64_t> num_witnesses;
};

// "witness:2" -> method "witness" with two witnesses; any other name is a method as it stands.
MethodName parse_method_name(const std::string& name) {
  constexpr std::string_view kWitnessColon = "witness:";
  if (!name.starts_with(kWitnessColon)) return {name, std::nullopt};
  const std::string digits = name.substr(kWitnessColon.size());
  check_argument(digits.size() == 1 && digits[0] >= '1' && digits[0] <= '8',
                 "\"{}\" must name 1 ... 8 witnesses, as in witness:4", name);
  return {"witness", digits[0] - '0'};
}

}  // namespace

void add_attention_options(CLI::App& command, AttentionOptions& options) {
  SelectorSettings& selector = options.selector;
  add_settings_option(command);
  command
      .add_option(
          "--density", options.density,
          "Keep this share of the causal pairs, 0 ... 1; 0 keeps by threshold, which all but "
          "witness do unless told")
      ->capture_default_str()
      ->group(kSelectionGroup);
  add_knob(command, "--alpha-base", selector.alpha_base,
           "Keep a block that scores this share of the best one");
  add_knob(command, "--alpha-rescue", selector.alpha_rescue, "The same for rescue's second branch");
  add_knob(command, "--rescue-share", selector.rescue_share,
           "With --density: rescue's share of the blocks that are not forced");
  add_knob(command, "--witnesses", selector.num_witnesses,
           "witness, nearest, mass, peak: keys kept per page, 1 ... 8");
  add_knob(
      command, "--coverage", selector.coverage,
      "antidiagonal, query_aware, self_similar, mass: share of the attention to keep; 0 for the "
      "method's own");
  add_knob(command, "--stride", selector.antidiagonal_stride, "antidiagonal: tokens of a group");
  add_knob(command, "--vertical-tokens", selector.vertical_tokens,
           "vertical_slash: keys that every query block reads");
  add_knob(command, "--slash-tokens", selector.slash_tokens,
           "vertical_slash: distances at which every query block reads");
  add_knob(command, "--most-divergence", selector.most_divergence,
           "query_aware: heads whose means stray further from the truth keep lines");
  add_knob(command, "--least-similarity", selector.least_similarity,
           "self_similar: blocks whose keys agree less are kept");
  add_knob(command, "--nearest-gap", selector.nearest_gap,
           "nearest: nats that a block may stay below a query's best");
  add_knob(command, "--least-peak", selector.least_peak,
           "peak: probability that some query must give a block");
  add_choice(command, "--aggregation", selector.aggregation, "sum", Aggregation::kSum, "max",
             Aggregation::kMax, "How a query block's rows make one score");
  add_choice(command, "--quantiles", selector.quantiles, "causal", QuantileMode::kCausal, "prompt",
             QuantileMode::kPrompt,
             "rescue: radii are ranked over earlier blocks, or over all so far");
  add_knob(command, "--quantile-low", selector.quantile_low,
           "rescue: radius where the uplift starts");
  add_knob(command, "--quantile-high", selector.quantile_high, "rescue: radius where it is full");
  add_knob(command, "--uplift-clamp", selector.uplift_clamp,
           "rescue: radii above this quantile count as the quantile; 0 for none");
  command
      .add_flag("--forced-in-maximum", selector.forced_in_maximum,
                "Let forced blocks take part in the best score")
      ->group(kSelectionGroup);
  add_knob(command, "--block-size", selector.block_size, "Tokens per block, which is a KV page");
  add_knob(command, "--sink-blocks", selector.sink_blocks, "First blocks, always kept");
  add_knob(command, "--local-blocks", selector.local_blocks,
           "Last blocks with the query's own, always kept");
  add_knob(command, "--dense-tail", selector.dense_tail_blocks,
           "Query blocks at the prompt's end that read everything");
  add_knob(command, "--min-sparse-len", options.min_sparse_len,
           "Prompts under this length are dense; 0 is never, -1 where sparse would not be faster");
  add_knob(command, "--sink-tokens", selector.streaming_sink_tokens,
           "streaming: first tokens kept");
  add_knob(command, "--local-tokens", selector.streaming_local_tokens,
           "streaming: last tokens kept");
  add_choice(command, "--periphery", options.periphery, "none", false, "mean", true,
             "Whether blocks that are not read are seen through their means");
  add_choice(command, "--decode", options.sparse_decode, "dense", false, "sparse", true,
             "Whether the answer's tokens read everything, or the selector's blocks too");
  command
      .add_option_function<std::string>(
          "--kv-cache-dtype",
          [&options](const std::string& word) {
            check_argument(word == "auto" || word == "f8",
                           "--kv-cache-dtype must be auto or f8, not \"{}\"", word);
            options.f8_kv = word == "f8";
          },
          "Type of keys and values in memory: the model's, or E4M3 with a scale for each page and "
          "head")
      ->default_str("auto")
      ->type_name("auto|f8");
}

AttentionSettings attention_settings(const std::string& name, const AttentionOptions& options) {
  AttentionSettings settings;
  settings.f8_kv = options.f8_kv;
  if (name == "dense") return settings;
  const MethodName parsed = parse_method_name(name);
  settings.selector = options.selector;
  settings.selector->method = parse_selector_method(parsed.method);
  settings.selector->density = options.density.value_or(default_density(settings.selector->method));
  if (parsed.num_witnesses) settings.selector->num_witnesses = *parsed.num_witnesses;
  settings.periphery = options.periphery;
  settings.min_sparse_len = options.min_sparse_len;
  settings.sparse_decode = options.sparse_decode;
  check_argument(options.min_sparse_len >= -1, "--min-sparse-len must be -1 or more, is {}",
                 options.min_sparse_len);
  check_selector_settings(*settings.selector);
  return settings;
}

std::vector<std::string> parse_attention_list(const std::string& text) {
  std::vector<std::string> names;
  for (const std::string& name : split_list(text, "--attention")) {
    if (name != "dense") parse_selector_method(parse_method_name(name).method);
    check_argument(std::find(names.begin(), names.end(), name) == names.end(),
                   "--attention names \"{}\" twice", name);
    names.push_back(name);
  }
  check_argument(!names.empty(), "--attention names no method, known are: {}", attention_names());
  return names;
}

void check_selection_options(const CLI::App& command, const std::vector<std::string>& attentions) {
  for (const std::string& name : attentions) {
    if (name != "dense") return;
  }
  for (const CLI::Option* option : command.get_options()) {
    check_argument(option->get_group() != kSelectionGroup || option->count() == 0,
                   "{} is for sparse attention, but --attention is dense", option->get_name());
  }
}

std::string attention_names() {
  std::string names = "dense";
  for (const std::string_view name : selector_method_names()) names += "|" + std::string(name);
  return names;
}

}  // namespace fovea::cli
