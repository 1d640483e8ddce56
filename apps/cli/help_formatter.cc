#include "apps/cli/help_formatter.h"

#include <fmt/format.h>

#include <string_view>

namespace fovea::cli {
namespace {

constexpr size_t kNameWidth = 32;
constexpr size_t kTextWidth = 66;

// `text` in lines of at most kTextWidth, broken at blanks, each after the first behind `indent`
// blanks.
std::string wrapped(std::string_view text, size_t indent) {
  std::string lines;
  while (text.size() > kTextWidth) {
    const size_t blank = text.rfind(' ', kTextWidth);
    if (blank == std::string_view::npos) break;
    lines += fmt::format("{}\n{:{}}", text.substr(0, blank), "", indent);
    text.remove_prefix(blank + 1);
  }
  return lines.append(text);
}

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode mode) const {
  std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
  for (size_t at = help.find("\n\n\n"); at != std::string::npos; at = help.find("\n\n\n")) {
    help.erase(at, 1);
  }
  return help.substr(help.find_first_not_of('\n'));
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  const std::string name =
      "  " + make_option_name(option, is_positional) + make_option_opts(option);
  const std::string description = wrapped(make_option_desc(option), kNameWidth);
  if (name.size() + 1 > kNameWidth) {
    return fmt::format("{}\n{:{}}{}\n", name, "", kNameWidth, description);
  }
  return fmt::format("{:<{}}{}\n", name, kNameWidth, description);
}

}  // namespace fovea::cli
