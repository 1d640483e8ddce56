// What the process answers to its shell.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

constexpr int kExitOk = 0;
constexpr int kExitOurFailure = 1;     // memory, a device, a fault of ours
constexpr int kExitUserMistake = 2;    // options, files, prompts
constexpr int kExitInterrupted = 130;  // 128 + SIGINT, as shells expect

/// Parses the command line with `app`, which runs the subcommand, and turns what it throws into one
/// line on standard error and the exit code.
int parse_and_run(CLI::App& app, int argc, const char* const* argv);

}  // namespace fovea::cli
