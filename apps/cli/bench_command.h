// `fovea bench`: what each attention costs and changes, by prompt length.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_bench_command(CLI::App& app);

}  // namespace fovea::cli
