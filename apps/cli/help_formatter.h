// How --help looks: descriptions wrapped to a terminal's width, one blank line between groups.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace fovea::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
};

}  // namespace fovea::cli
