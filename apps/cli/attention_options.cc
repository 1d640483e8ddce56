#include "apps/cli/attention_options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "apps/cli/parse_values.h"
#include "apps/cli/settings_file.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

template <typename T>
using Words = std::vector<std::pair<std::string, T>>;

// What the words of an option stand for, by the name that each value has everywhere.
template <typename T>
Words<T> words_of(std::initializer_list<T> values, std::string_view (*name_of)(T)) {
  Words<T> words;
  for (const T value : values) words.emplace_back(name_of(value), value);
  return words;
}
const auto kWitnessChoices = words_of(
    {WitnessChoice::kSpread, WitnessChoice::kFar, WitnessChoice::kNorm}, witness_choice_name);
const auto kAggregations =
    words_of({Aggregation::kSum, Aggregation::kMax, Aggregation::kMaxOverMeans}, aggregation_name);

// Sets `value` to what `asked` stands for; false when it is none of the words.
template <typename T>
bool apply_choice(const std::string& asked, const Words<T>& words, T& value) {
  for (const auto& [word, meaning] : words) {
    if (word != asked) continue;
    value = meaning;
    return true;
  }
  return false;
}

template <typename T>
void add_knob(CLI::App& command, const std::string& name, T& value,
              const std::string& description) {
  command.add_option(name, value, description)->capture_default_str()->group(kSelectionGroup);
}

// An option that takes one of some words and sets `value` to what the word stands for.
template <typename T>
void add_choice(CLI::App& command, const std::string& name, T& value, const Words<T>& choices,
                const std::string& description) {
  std::vector<std::string> words;
  std::string given;
  for (const auto& [word, meaning] : choices) {
    words.push_back(word);
    if (meaning == value) given = word;
  }
  command
      .add_option_function<std::string>(
          name,
          [=, &value](const std::string& asked) {
            check_argument(apply_choice(asked, choices, value), "{} must be {}, not \"{}\"", name,
                           fmt::join(words, " or "), asked);
          },
          description)
      ->default_str(given)
      ->type_name(fmt::format("{}", fmt::join(words, "|")))
      ->group(kSelectionGroup);
}

// Changes what one word after "witness:" stands for; false when it is none.
bool apply_word(const std::string& word, SelectorSettings& selector) {
  constexpr std::string_view kCalm = "calm=";
  if (word.size() == 1 && word[0] >= '1' && word[0] <= '8') {
    selector.num_witnesses = word[0] - '0';
    return true;
  }
  if (word.starts_with(kCalm)) {
    char* end = nullptr;
    selector.calm_quantile = std::strtof(word.c_str() + kCalm.size(), &end);
    return word.size() > kCalm.size() && *end == '\0';
  }
  if (apply_choice(word, kWitnessChoices, selector.witness_choice) ||
      apply_choice(word, kAggregations, selector.aggregation)) {
    return true;
  }
  if (word == "f8") selector.f8_witnesses = true;
  if (word == "skip") selector.skip_by_bound = true;
  if (word == "kv_head") selector.lists_per_kv_head = true;
  return word == "f8" || word == "skip" || word == "kv_head";
}

// Sets the method that `name` begins with, and for "witness:2:f8" what its words stand for.
void apply_method_name(const std::string& name, SelectorSettings& selector) {
  constexpr std::string_view kWitnessColon = "witness:";
  if (!name.starts_with(kWitnessColon)) {
    selector.method = parse_selector_method(name);
    return;
  }
  selector.method = SelectorMethod::kWitness;
  for (size_t begin = kWitnessColon.size(), end = 0; end != std::string::npos; begin = end + 1) {
    end = name.find(':', begin);
    check_argument(apply_word(name.substr(begin, end - begin), selector),
                   "\"{}\" must name witnesses 1 ... 8, far, norm, f8, calm=0.5, max, "
                   "max_over_means, kv_head or skip, as in witness:4:f8",
                   name);
  }
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
  command
      .add_option_function<std::string>(
          "--layer-budgets",
          [&options](const std::string& text) {
            options.layer_budgets = parse_positive_numbers(text, "--layer-budgets");
          },
          "What each layer's density is over --density, one number a layer; fovea calibrate "
          "--per-layer finds them")
      ->type_name("X,X,...")
      ->group(kSelectionGroup);
  add_knob(command, "--alpha-base", selector.alpha_base,
           "Keep a block that scores this share of the best one");
  add_knob(command, "--alpha-rescue", selector.alpha_rescue, "The same for rescue's second branch");
  add_knob(command, "--rescue-share", selector.rescue_share,
           "With --density: rescue's share of the blocks that are not forced");
  add_knob(command, "--witnesses", selector.num_witnesses,
           "witness, nearest, mass, peak: keys kept per page, 1 ... 8");
  add_choice<WitnessChoice>(command, "--witness-choice", selector.witness_choice, kWitnessChoices,
                            "Which keys: farthest from the mean and each other, from the mean "
                            "alone, or by what their own "
                            "query would miss");
  add_choice<bool>(command, "--witness-type", selector.f8_witnesses,
                   {{"auto", false}, {"f8", true}},
                   "Type of the keys kept: the cache's, or E4M3 with a scale for each page");
  add_knob(
      command, "--calm-quantile", selector.calm_quantile,
      "Pages whose radius is under this quantile of the pages before keep no keys; 0 for none");
  command
      .add_flag("--skip-by-bound", selector.skip_by_bound,
                "witness: do not look at pages that their radius rules out")
      ->group(kSelectionGroup);
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
  add_knob(command, "--mass-power", selector.mass_power,
           "mass: power of a row's probabilities before rows are added up; more than 1 gives rows "
           "that look at little more say");
  add_knob(command, "--least-peak", selector.least_peak,
           "peak: probability that some query must give a block");
  add_choice<Aggregation>(command, "--aggregation", selector.aggregation, kAggregations,
                          "How a query block's rows make one score");
  add_choice<bool>(command, "--lists", selector.lists_per_kv_head,
                   {{"q_head", false}, {"kv_head", true}},
                   "One list for every q head, or for all that share a KV head");
  add_choice<QuantileMode>(command, "--quantiles", selector.quantiles,
                           {{"causal", QuantileMode::kCausal}, {"prompt", QuantileMode::kPrompt}},
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
  add_choice<bool>(command, "--periphery", options.periphery, {{"none", false}, {"mean", true}},
                   "Whether blocks that are not read are seen through their means");
  add_choice<bool>(command, "--decode", options.sparse_decode, {{"dense", false}, {"sparse", true}},
                   "Whether the answer's tokens read everything, or the selector's blocks too");
  command
      .add_option_function<std::string>(
          "--kv-cache-dtype",
          [&options](const std::string& word) {
            check_argument(word == "auto" || word == "f8" || word == "i8",
                           "--kv-cache-dtype must be auto, f8 or i8, not \"{}\"", word);
            options.kv_codes.reset();
            if (word == "f8") options.kv_codes = DType::kF8E4M3;
            if (word == "i8") options.kv_codes = DType::kI8;
          },
          "Type of keys and values in memory: the model's, E4M3 or, on the CPU, 8-bit integers, "
          "with a scale for each page and head")
      ->default_str("auto")
      ->type_name("auto|f8|i8");
  command
      .add_option("--value-share", options.value_share,
                  "Share of a head's attention whose values an answer's tokens read: under 1 the "
                  "CPU leaves out what hardly any weight goes to")
      ->capture_default_str();
}

AttentionSettings attention_settings(const std::string& name, const AttentionOptions& options) {
  AttentionSettings settings;
  settings.kv_codes = options.kv_codes;
  settings.value_share = options.value_share;
  check_argument(options.value_share > 0 && options.value_share <= 1,
                 "--value-share must be more than 0 and at most 1, is {}", options.value_share);
  if (name == "dense") return settings;
  settings.selector = options.selector;
  apply_method_name(name, *settings.selector);
  settings.selector->density = options.density.value_or(default_density(settings.selector->method));
  settings.layer_budgets = options.layer_budgets;
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
    SelectorSettings any;
    if (name != "dense") apply_method_name(name, any);
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
