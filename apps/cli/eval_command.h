// `fovea eval`: what each attention gets right on long-context tasks.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

/// Adds the subcommand to `app`.
void add_eval_command(CLI::App& app);

}  // namespace fovea::cli
