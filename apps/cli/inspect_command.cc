#include "apps/cli/inspect_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "apps/cli/prompt.h"
#include "apps/cli/table.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_file.h"

namespace fovea::cli {
namespace {

struct InspectOptions {
  std::string model;
  bool tensors = false;
  bool json = false;
};

int64_t num_parameters(const ModelTensor& tensor) {
  int64_t count = 1;
  for (const int64_t size : tensor.shape) count *= size;  // of a file that ModelFile has checked
  return count;
}

int64_t kv_bytes_per_token(const ModelConfig& config, int64_t element_bytes) {
  return 2 * config.num_layers * config.num_kv_heads * config.head_dim * element_bytes;
}

// Source of the chat template; a safetensors folder keeps it in tokenizer_config.json.
std::string chat_template_source(const ModelFile& file) {
  if (file.gguf() != nullptr) {
    return std::string(file.gguf()->find_string("tokenizer.chat_template").value_or(""));
  }
  std::ifstream config(file.folder() + "/tokenizer_config.json");
  const auto json = nlohmann::json::parse(config, nullptr, false);
  const bool has_template =
      json.is_object() && json.contains("chat_template") && json.at("chat_template").is_string();
  return has_template ? json.at("chat_template").get<std::string>() : "";
}

std::string chat_template_text(const ModelFile& file) {
  try {
    const auto chat = detect_chat_template(chat_template_source(file));
    return chat ? std::string(chat_family_name(chat->family)) : "none";
  } catch (const Error&) {
    return "of a family that Fovea does not know";
  }
}

nlohmann::json config_json(const ModelConfig& config) {
  int64_t num_local = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) num_local += config.is_local(layer);
  nlohmann::json json = {{"architecture", architecture_name(config.architecture)},
                         {"num_layers", config.num_layers},
                         {"num_local_layers", num_local},
                         {"model_dim", config.model_dim},
                         {"num_q_heads", config.num_q_heads},
                         {"num_kv_heads", config.num_kv_heads},
                         {"group_size", config.num_q_heads / config.num_kv_heads},
                         {"head_dim", config.head_dim},
                         {"mlp_dim", config.mlp_dim},
                         {"vocab_size", config.vocab_size},
                         {"context_length", config.context_length},
                         {"rope_theta", config.rope_theta},
                         {"tied_embeddings", config.tied_embeddings}};
  if (num_local > 0) {
    json["sliding_window"] = config.sliding_window;
    json["rope_theta_local"] = config.rope_theta_local;
  }
  return json;
}

void print_text(const nlohmann::json& json, bool all_tensors) {
  const auto number = [&](const char* name) { return json.at(name).get<int64_t>(); };
  const auto text = [&](const char* name) { return json.at(name).get<std::string>(); };
  const auto line = [](const char* name, const std::string& value) {
    fmt::print("{:<16}{}\n", name, value);
  };
  line("model", text("model"));
  line("format", text("format"));
  line("architecture", text("architecture"));
  line("parameters", format_count(static_cast<double>(number("num_parameters"))) + ", " +
                         format_bytes(static_cast<double>(number("weight_bytes"))) + " of weights");
  line("layers", fmt::format("{}{}, model_dim {}, mlp_dim {}", number("num_layers"),
                             number("num_local_layers") > 0
                                 ? fmt::format(" ({} of them with a sliding window of {})",
                                               number("num_local_layers"), number("sliding_window"))
                                 : "",
                             number("model_dim"), number("mlp_dim")));
  line("heads", fmt::format("{} q, {} kv, head_dim {}", number("num_q_heads"),
                            number("num_kv_heads"), number("head_dim")));
  line("vocabulary",
       fmt::format("{} tokens{}", number("vocab_size"),
                   json.at("tied_embeddings").get<bool>() ? ", embeddings tied" : ""));
  line("context", fmt::format("{} tokens", number("context_length")));
  const auto kv_bytes = static_cast<double>(number("kv_bytes_per_token"));
  line("kv cache",
       fmt::format("{:.0f} bytes per token in bf16, {} at the full context; half with "
                   "--kv-cache-dtype f8 or i8",
                   kv_bytes,
                   format_bytes(kv_bytes * static_cast<double>(number("context_length")))));
  line("chat template", text("chat_template"));

  fmt::print("\n");
  Table types({"type", "tensors", "parameters", "size"});
  for (const auto& [type, sums] : json.at("tensor_types").items()) {
    types.add_row({type, fmt::format("{}", sums.at("num_tensors").get<int64_t>()),
                   format_count(sums.at("num_parameters").get<double>()),
                   format_bytes(sums.at("bytes").get<double>())});
  }
  fmt::print("{}", types.to_string());
  if (!all_tensors) return;

  fmt::print("\n");
  Table tensors({"tensor", "type", "shape", "size", "in the file"});
  for (const auto& tensor : json.at("tensors")) {
    tensors.add_row({tensor.at("name").get<std::string>(), tensor.at("type").get<std::string>(),
                     shape_text(tensor.at("shape").get<std::vector<int64_t>>()),
                     format_bytes(tensor.at("bytes").get<double>()),
                     tensor.at("file_name").get<std::string>()});
  }
  fmt::print("{}", tensors.to_string());
}

void inspect(const InspectOptions& options) {
  nlohmann::json json = inspect_json(ModelFile::open(options.model));
  if (!options.json) return print_text(json, options.tensors);
  if (!options.tensors) json.erase("tensors");
  fmt::print("{}\n", json_text(json));
}

}  // namespace

nlohmann::json inspect_json(const ModelFile& file) {
  const ModelConfig& config = file.config();
  nlohmann::json json = config_json(config);
  json["model"] = file.name();
  json["format"] = file.gguf() != nullptr ? fmt::format("GGUF v{}", file.gguf()->version())
                                          : std::string("safetensors");
  json["kv_bytes_per_token"] = kv_bytes_per_token(config, 2);
  json["chat_template"] = chat_template_text(file);

  int64_t total_parameters = 0;
  int64_t total_bytes = 0;
  nlohmann::json types = nlohmann::json::object();
  nlohmann::json tensors = nlohmann::json::array();
  for (const auto& [name, tensor] : file.tensors()) {
    const std::string type(weight_type_name(tensor.type));
    const int64_t parameters = num_parameters(tensor);
    const auto bytes = static_cast<int64_t>(tensor.bytes.size());
    nlohmann::json& sums = types[type];
    if (sums.is_null()) sums = nlohmann::json::object();
    sums["num_tensors"] = sums.value("num_tensors", int64_t{0}) + 1;
    sums["num_parameters"] = sums.value("num_parameters", int64_t{0}) + parameters;
    sums["bytes"] = sums.value("bytes", int64_t{0}) + bytes;
    total_parameters += parameters;
    total_bytes += bytes;
    tensors.push_back({{"name", name},
                       {"file_name", tensor.file_name},
                       {"type", type},
                       {"shape", tensor.shape},
                       {"bytes", bytes}});
  }
  json["num_parameters"] = total_parameters;
  json["weight_bytes"] = total_bytes;
  json["tensor_types"] = types;
  json["tensors"] = tensors;
  return json;
}

void add_inspect_command(CLI::App& app) {
  const auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand("inspect", "Say what a model file holds");
  command
      ->add_option("model", options->model,
                   "A .gguf file, a .safetensors file beside its config.json, or their folder")
      ->required()
      ->type_name("MODEL");
  command->add_flag("--tensors", options->tensors, "List every tensor");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Examples:\n"
      "  fovea inspect models/needle_7m\n"
      "  fovea inspect model.gguf --tensors\n"
      "  fovea inspect model.gguf --json | python3 -m json.tool");
  command->callback([options] { inspect(*options); });
}

}  // namespace fovea::cli
