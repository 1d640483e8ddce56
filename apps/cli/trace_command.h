// `fovea trace FILE...`: where the time of a profiler's trace went, and whether a faster attention
// kernel matters.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

void add_trace_command(CLI::App& app);

}  // namespace fovea::cli
