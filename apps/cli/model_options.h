// Options that every command with a model shares, and loading it with a progress bar.
#pragma once

#include <memory>
#include <string>

#include "apps/cli/conditions.h"
#include "fovea/engine/model.h"

namespace CLI {
class App;
}

namespace fovea::cli {

struct ModelArguments {
  std::string path;
  std::string synthetic;  // a shape, instead of a path
  std::string dtype = "auto";
  bool f8_weights = false;
  std::string device = "cpu";
  int32_t num_threads = 0;
};

/// Adds -m/--model, --synthetic, --device, --dtype, --f8-weights and --threads. `arguments` must
/// outlive the parse.
void add_model_options(CLI::App& command, ModelArguments& arguments);

/// Throws kInvalidArgument on what is wrong with them, before anything is loaded.
void check_model_options(const ModelArguments& arguments);

/// Throws kInvalidArgument when --threads is negative or absurd.
void check_num_threads(int32_t num_threads);

/// "cpu", "cuda" or "cuda:N". Throws kInvalidArgument on anything else.
Device parse_device(const std::string& name);

/// Throws as Model::load and check_num_threads do, kInvalidArgument on an unknown dtype or device.
std::shared_ptr<const Model> load_model(const ModelArguments& arguments);

/// The conditions that the model and this command's options settle; lengths are the caller's to
/// fill.
Conditions model_conditions(const Model& model, const CLI::App& command);

}  // namespace fovea::cli
