// `fovea inspect MODEL`: what a model file holds, read without loading its weights.
#pragma once

#include <nlohmann/json.hpp>

namespace CLI {
class App;
}

namespace fovea {
class ModelFile;
}

namespace fovea::cli {

void add_inspect_command(CLI::App& app);

/// Everything that the command says, "tensors" (each one) included.
nlohmann::json inspect_json(const ModelFile& file);

}  // namespace fovea::cli
