// `fovea conditions FILE`: which of the ten conditions a benchmark's report states, missing ones
// first.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_conditions_command(CLI::App& app);

}  // namespace fovea::cli
