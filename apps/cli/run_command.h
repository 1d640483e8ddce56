// `fovea run`: reads a prompt, answers it, says what that took.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_run_command(CLI::App& app);

}  // namespace fovea::cli
