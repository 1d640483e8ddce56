// A file of attention settings: what `fovea calibrate` writes and --settings reads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace CLI {
class App;
}

namespace fovea::cli {

/// The help group of the options that such a file can set, by their names with _ for -.
inline constexpr const char* kSelectionGroup = "Selection";

/// Adds --settings to `command`: what the file sets and the user does not give on the command line.
/// Comes before the options of kSelectionGroup.
void add_settings_option(CLI::App& command);

/// Options of kSelectionGroup, as given or by default, by their names with _ for -. Without those
/// that the command that reads a prompt chooses better: --min-sparse-len and --dense-tail, unless
/// given.
nlohmann::json selection_settings(const CLI::App& command);

/// The content of a settings file: `settings` as above, `calibration` free.
std::string settings_file_text(const std::string& attention, const nlohmann::json& settings,
                               const nlohmann::json& calibration);

}  // namespace fovea::cli
