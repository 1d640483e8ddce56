// `fovea worth`: what a faster attention kernel returns, from a share, a trace, a model's shape,
// two published points, or a claim.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_worth_command(CLI::App& app);

}  // namespace fovea::cli
