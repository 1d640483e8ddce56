// `fovea needle`: facts hidden in long texts, and which attention still finds them.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_needle_command(CLI::App& app);

}  // namespace fovea::cli
