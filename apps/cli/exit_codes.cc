#include "apps/cli/exit_codes.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <new>
#include <string>
#include <system_error>

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
      return report(kExitUserMistake,
                    fmt::format("unknown {} \"{}\" (see {} --help)",
                                argv[1][0] == '-' ? "option" : "command", argv[1], app.get_name()));
    }
    return report(kExitUserMistake,
                  fmt::format("{} (see {} --help)", error.what(), command_path(app)));
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
