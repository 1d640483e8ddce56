// `fovea calibrate`: the cheapest settings of an attention that lose no more than they may.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_calibrate_command(CLI::App& app);

}  // namespace fovea::cli
