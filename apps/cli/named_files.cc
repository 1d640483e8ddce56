#include "apps/cli/named_files.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

struct NamedFile {
  std::string option;
  std::string path;
  bool is_written = false;
};

std::vector<NamedFile> named_files(const CLI::App& command) {
  std::vector<NamedFile> files;
  for (const CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name();
    const bool is_written = type == "OUT";
    if (!is_written && type != "MODEL" && type.rfind("FILE", 0) != 0) continue;
    const std::string name = option->get_positional() ? "the file to read" : option->get_name();
    for (const std::string& value : option->results()) {
      const bool is_list = type == "FILE,FILE,...";
      for (const std::string& path : is_list ? CLI::detail::split(value, ',') : Names{value}) {
        files.push_back({name, path, is_written});
      }
    }
  }
  return files;
}

// Devices may be named as often as one likes.
bool are_one_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  if (fs::exists(a, ignored) && !fs::is_regular_file(a, ignored)) return false;
  return fs::path(a).lexically_normal() == fs::path(b).lexically_normal() ||
         fs::equivalent(a, b, ignored);
}

void check_files(const CLI::App& command) {
  const std::vector<NamedFile> files = named_files(command);
  for (const NamedFile& file : files) {
    check_argument(!file.path.empty(), "{} needs the name of a file, not \"\"", file.option);
    if (!file.is_written) continue;
    for (const NamedFile& other : files) {
      check_argument(other.option == file.option || !are_one_file(file.path, other.path),
                     "{} and {} name the same file, {}: it would be overwritten", other.option,
                     file.option, file.path);
    }
  }
}

}  // namespace

void refuse_odd_files(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    command->parse_complete_callback([command] { check_files(*command); });
  }
}

}  // namespace fovea::cli
