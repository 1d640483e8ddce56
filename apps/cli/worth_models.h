// `fovea worth --model`: attention's share of architectures over context lengths.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/worth_text.h"
#include "fovea/worth/cost_model.h"

namespace fovea::cli {

/// A model by name of the table, by config.json, or by a file of weights that Fovea can read.
worth::ModelShape load_model_shape(const std::string& model);

/// A device by name of the table, or by a JSON file.
worth::DeviceRates load_device_rates(const std::string& device, const std::string& dtype);

struct ModelQuestion {
  std::vector<worth::ModelShape> models;
  worth::DeviceRates device;
  std::vector<int64_t> contexts;
  int64_t batch_size = 1;
  int64_t cached_tokens = 0;
};

/// Tables for people: one model in detail, several side by side.
std::string model_tables(const ModelQuestion& question, double speedup);
nlohmann::ordered_json model_json(const ModelQuestion& question, double speedup);

/// Shortest prompt at which a kernel `speedup` times faster makes prefill `target` times faster;
/// none up to 16M.
std::optional<int64_t> break_even_tokens(const worth::ModelShape& shape,
                                         const worth::DeviceRates& device, double speedup,
                                         double target);

}  // namespace fovea::cli
