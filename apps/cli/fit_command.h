// `fovea fit FILE.csv`: laws of ttft and itl against length, from a sweep that somebody measured.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_fit_command(CLI::App& app);

}  // namespace fovea::cli
