// What a command writes must not be what it reads.
#pragma once

namespace CLI {
class App;
}

namespace fovea::cli {

/// From now on every subcommand of `app` refuses, before it begins, an empty name of a file, and to
/// write (options whose type is OUT) a file that it reads (FILE, MODEL) or writes by another
/// option. Call it once all options are added.
void refuse_odd_files(CLI::App& app);

}  // namespace fovea::cli
