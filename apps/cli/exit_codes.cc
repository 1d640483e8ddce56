#include "apps/cli/exit_codes.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <new>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/cli/interrupt.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

int report(int exit_code, const std::string& message) {
  print_aside(fmt::format("fovea: error: {}\n", printable(message)));
  return exit_code;
}

// The innermost subcommand on the line, for "see fovea run --help".
std::string command_path(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  return path;
}

// Letters to add, drop or replace to get from `a` to `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// ", did you mean --attention?", or nothing when no name is near `word`.
std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  constexpr size_t kMostEdits = 2;
  const auto distance = [&](const std::string& name) { return edit_distance(word, name); };
  const auto best = std::ranges::min_element(names, {}, distance);
  if (best == names.end() || distance(*best) > kMostEdits) return "";
  return fmt::format(", did you mean {}?", *best);
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(std::function<bool(const CLI::App*)>{})) {
    names.push_back(command->get_name());
  }
  return fmt::format("unknown {} \"{}\"{}", word[0] == '-' ? "option" : "command", word,
                     nearest(word, names));
}

// What CLI11 says of a subcommand's line, where we know how to say it better.
std::string parse_complaint(const CLI::App& app, const CLI::ParseError& error) {
  const std::string message = error.what();
  const size_t twice = message.find(": At Most 1 required but received");
  if (twice != std::string::npos) return message.substr(0, twice) + " is given more than once";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) return message;
  for (const std::string& word : app.remaining(true)) {
    if (word.size() < 2 || word[0] != '-') continue;
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_subcommands().front()->get_options()) {
      names.push_back(option->get_name());
    }
    const std::string name = word.substr(0, word.find('='));
    return fmt::format("unknown option \"{}\"{}", name, nearest(name, names));
  }
  return message;
}

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
    case ErrorCode::kInvalidFile:
      return kExitUserMistake;
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kDevice:
      return kExitOurFailure;
  }
  return kExitOurFailure;
}

}  // namespace

int parse_and_run(CLI::App& app, int argc, const char* const* argv) {
  try {
    try {
      if (argc == 1) throw CLI::CallForHelp();
      app.parse(argc, argv);
    } catch (const CLI::Success& help_or_version) {
      app.exit(help_or_version);
    }
    std::cout.flush();
    std::fflush(stdout);
    check_standard_output();
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty()) {
      return report(kExitUserMistake, fmt::format("{} (see {} --help)",
                                                  unknown_command(app, argv[1]), app.get_name()));
    }
    return report(kExitUserMistake, fmt::format("{} (see {} --help)", parse_complaint(app, error),
                                                command_path(app)));
  } catch (const Interrupted& error) {
    std::fflush(stdout);
    print_aside(fmt::format("fovea: interrupted: {}\n", error.what()));
    return kExitInterrupted;
  } catch (const Error& error) {
    std::fflush(stdout);
    return report(exit_code_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return report(kExitOurFailure, "out of memory");
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) == 0) {
      return report(kExitOurFailure, fmt::format("internal error: {}", error.what()));
    }
    return report(kExitUserMistake,
                  fmt::format("cannot write standard output: {}", error.code().message()));
  } catch (const std::exception& error) {
    return report(kExitOurFailure, fmt::format("internal error: {}", error.what()));
  }
}

}  // namespace fovea::cli
