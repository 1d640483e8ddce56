#include "apps/cli/exit_codes.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <string>

#include "apps/cli/interrupt.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"

namespace fovea::cli {
namespace {

int report(int exit_code, const std::string& message) {
  fmt::print(stderr, "fovea: error: {}\n", printable(message));
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
  if (argc == 1) {
    fmt::print("{}", app.help());
    return kExitOk;
  }
  try {
    app.parse(argc, argv);
    std::cout.flush();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout) {
      return report(kExitUserMistake,
                    fmt::format("cannot write standard output: {}", std::strerror(errno)));
    }
    return kExitOk;
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
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
    fmt::print(stderr, "fovea: interrupted: {}\n", error.what());
    return kExitInterrupted;
  } catch (const Error& error) {
    std::fflush(stdout);
    return report(exit_code_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return report(kExitOurFailure, "out of memory");
  } catch (const std::exception& error) {
    return report(kExitOurFailure, fmt::format("internal error: {}", error.what()));
  }
}

}  // namespace fovea::cli
