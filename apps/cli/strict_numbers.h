// Numbers on the command line are taken as they stand or not at all.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

/// From now on every option of `app` and its subcommands that takes a number refuses text that is
/// none, or that its type cannot hold: left to itself, CLI11 takes --seed -1 for 2^64 - 1 and cuts
/// what is too large. Call it once all options are added.
void refuse_odd_numbers(CLI::App& app);

}  // namespace fovea::cli
