// `fovea sweep`: ttft and itl against length, of our engine or of a server.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_sweep_command(CLI::App& app);

}  // namespace fovea::cli
