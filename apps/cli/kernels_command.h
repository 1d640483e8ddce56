// `fovea kernels`: attention and selection alone, beside the machine's own product and copy rates.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_kernels_command(CLI::App& app);

}  // namespace fovea::cli
