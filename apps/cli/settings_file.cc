#include "apps/cli/settings_file.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/base/json_file.h"
#include "fovea/base/shown.h"

namespace fovea::cli {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "fovea_settings";
constexpr const char* kSettingsOption = "--settings";

std::string key_of(const CLI::Option& option) {
  std::string key = option.get_single_name();
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

bool is_flag(const CLI::Option& option) { return option.get_expected_min() == 0; }

// Options of `command` that a file can set.
std::vector<CLI::Option*> settable_options(CLI::App& command) {
  std::vector<CLI::Option*> options = command.get_options([](const CLI::Option* option) {
    return option->get_group() == kSelectionGroup && option->get_name() != kSettingsOption;
  });
  if (CLI::Option* attention = command.get_option_no_throw("--attention")) {
    options.push_back(attention);
  }
  return options;
}

// As if the user had given it; what they gave themselves stays.
void set_option(CLI::Option& option, const json& value, const std::string& name) {
  if (!value.is_string() && !value.is_number() && !value.is_boolean()) {
    fail(ErrorCode::kInvalidFile, "'{}': '{}' must be a number, a word, true or false", name,
         key_of(option));
  }
  const std::string text = value.is_string() ? value.get<std::string>() : json_text(value, -1);
  const bool is_default = is_flag(option) ? text == "false" : text == option.get_default_str();
  if (option.count() > 0 || is_default) return;
  try {
    option.add_result(text);
    option.run_callback();
  } catch (const CLI::Error&) {
    fail(ErrorCode::kInvalidFile, "'{}': '{}' cannot be {}", name, key_of(option),
         shown(json_text(value, -1)));
  } catch (const Error& error) {
    fail(ErrorCode::kInvalidFile, "'{}': {}", name, error.what());
  }
}

void apply(CLI::App& command, const std::string& path) {
  const json file = parse_json_object(read_text(path), path, 16);
  const JsonObject object(file, path);
  if (object.find_string("format") != kFormat) {
    fail(ErrorCode::kInvalidFile, "'{}': is no settings file, \"format\" must be \"{}\"", path,
         kFormat);
  }
  for (const auto& [key, value] : file.items()) {
    if (key != "format" && key != "attention" && key != "settings" && key != "calibration") {
      fail(ErrorCode::kInvalidFile, "'{}': unknown member '{}'", path, shown(key));
    }
  }
  json settings = json::object();
  if (const json* found = object.find("settings")) settings = *found;
  if (!settings.is_object()) {
    fail(ErrorCode::kInvalidFile, "'{}': 'settings' must be an object", path);
  }
  if (const auto attention = object.find_string("attention")) settings["attention"] = *attention;

  std::vector<CLI::Option*> options = settable_options(command);
  for (const auto& [key, value] : settings.items()) {
    const auto found = std::find_if(options.begin(), options.end(), [&](const CLI::Option* option) {
      return key_of(*option) == key;
    });
    if (found == options.end()) {
      if (key == "attention") continue;  // a command without that option
      std::vector<std::string> known;
      for (const CLI::Option* option : options) known.push_back(key_of(*option));
      fail(ErrorCode::kInvalidFile, "'{}': unknown setting '{}', known are {}", path, shown(key),
           fmt::join(known, ", "));
    }
    set_option(**found, value, path);
  }
}

}  // namespace

void add_settings_option(CLI::App& command) {
  command
      .add_option_function<std::string>(
          kSettingsOption, [&command](const std::string& path) { apply(command, path); },
          "Attention and settings from a file that fovea calibrate wrote; options given here win")
      ->type_name("FILE")
      ->group(kSelectionGroup);
}

json selection_settings(const CLI::App& command) {
  json settings = json::object();
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group() != kSelectionGroup || option->get_name() == kSettingsOption) continue;
    const bool is_readers_choice =
        option->get_name() == "--min-sparse-len" || option->get_name() == "--dense-tail";
    if (is_readers_choice && option->count() == 0) continue;
    if (is_flag(*option)) {
      settings[key_of(*option)] = option->count() > 0 && option->as<bool>();
      continue;
    }
    const auto text = option->as<std::string>();
    if (text.empty()) continue;  // without a default
    const json value = json::parse(text, nullptr, false);
    settings[key_of(*option)] = value.is_number() ? value : json(text);
  }
  return settings;
}

std::string settings_file_text(const std::string& attention, const json& settings,
                               const json& calibration) {
  const json file = {{"format", kFormat},
                     {"attention", attention},
                     {"settings", settings},
                     {"calibration", calibration}};
  return json_text(file) + "\n";
}

}  // namespace fovea::cli
