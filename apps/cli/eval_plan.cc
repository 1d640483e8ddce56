#include "apps/cli/eval_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "apps/cli/parse_values.h"
#include "apps/cli/table.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

// Reads a list in which every entry is different.
template <typename Value, typename Parse>
std::vector<Value> parse_axis(const std::string& text, const char* option, const Parse& parse) {
  std::vector<Value> values;
  for (const std::string& part : split_list(text, option)) {
    const Value value = parse(part);
    check_argument(std::find(values.begin(), values.end(), value) == values.end(),
                   "{} names \"{}\" twice", option, part);
    values.push_back(value);
  }
  check_argument(!values.empty(), "{} is empty", option);
  return values;
}

// "5.34" percent -> 0.0534; "own" -> none.
std::optional<double> parse_density(const std::string& part) {
  if (part == "own") return std::nullopt;
  double percent = 0;
  const char* end = part.data() + part.size();
  const auto [stop, error] = std::from_chars(part.data(), end, percent);
  check_argument(error == std::errc() && stop == end && percent >= 0.1 && percent <= 100,
                 "--densities are percents in 0.1 ... 100, or own, not \"{}\"", part);
  return percent / 100;
}

bool parse_periphery(const std::string& part) {
  const bool on = part == "on" || part == "mean";
  check_argument(on || part == "off" || part == "none", "--periphery must be off or on, not \"{}\"",
                 part);
  return on;
}

bool has_budget(SelectorMethod method) {
  return method != SelectorMethod::kAll && method != SelectorMethod::kStreaming;
}

}  // namespace

std::string EvalVariant::name(bool with_block_size) const {
  std::string name = attention;
  if (density) name += fmt::format(", {:g} %", *density * 100);
  if (settings.periphery) name += ", periphery";
  if (with_block_size && !is_dense()) {
    name += fmt::format(", blocks of {}", settings.selector->block_size);
  }
  return name;
}

AttentionSettings EvalVariant::with_budget(double setting) const {
  AttentionSettings changed = settings;
  changed.selector->density = static_cast<float>(setting);
  return changed;
}

std::vector<EvalVariant> expand_variants(const EvalAxes& axes, const AttentionOptions& knobs) {
  const std::vector<std::string> names = parse_attention_list(axes.attention);
  const auto densities =
      parse_axis<std::optional<double>>(axes.densities, "--densities", parse_density);
  const auto peripheries = parse_axis<int>(axes.periphery, "--periphery", parse_periphery);
  const auto block_sizes = parse_axis<int64_t>(
      axes.block_sizes, "--block-size",
      [](const std::string& part) { return parse_tokens(part, "--block-size"); });

  std::vector<EvalVariant> variants = {{"dense", std::nullopt, {}}};
  for (const std::string& name : names) {
    if (name == "dense") continue;
    for (const int64_t block_size : block_sizes) {
      for (const bool periphery : peripheries) {
        AttentionOptions options = knobs;
        options.selector.block_size = block_size;
        options.periphery = periphery;
        options.density.reset();
        const AttentionSettings own = attention_settings(name, options);
        if (!has_budget(own.selector->method)) {
          variants.push_back({name, std::nullopt, own});
          continue;
        }
        for (const std::optional<double>& density : densities) {
          EvalVariant variant{name, density, own};
          if (density) variant.settings = variant.with_budget(*density);
          variants.push_back(variant);
        }
      }
    }
  }
  return variants;
}

bool block_sizes_differ(const std::vector<EvalVariant>& variants) {
  int64_t first = 0;
  for (const EvalVariant& variant : variants) {
    if (variant.is_dense()) continue;
    const int64_t block_size = variant.settings.selector->block_size;
    if (first != 0 && block_size != first) return true;
    first = block_size;
  }
  return false;
}

}  // namespace fovea::cli
