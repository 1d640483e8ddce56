#include "fovea/worth/device_rates.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/worth/embedded_data.h"
#include "fovea/worth/untrusted_json.h"

namespace fovea::worth {
namespace {

using Json = nlohmann::ordered_json;

double positive(const Json& json, const std::string& name, const std::string& key) {
  if (!json.contains(key) || !json.at(key).is_number() || !(json.at(key).get<double>() > 0) ||
      !std::isfinite(json.at(key).get<double>())) {
    fail(ErrorCode::kInvalidFile, "device '{}': '{}' must be a number above 0", name, key);
  }
  return json.at(key).get<double>();
}

double positive_or_zero(const Json& json, const std::string& name, const std::string& key) {
  return json.contains(key) ? positive(json, name, key) : 0;
}

std::string text(const Json& json, const char* key) {
  return json.contains(key) && json.at(key).is_string() ? json.at(key).get<std::string>() : "";
}

DeviceRates read_device(const std::string& name, const Json& json, std::string_view dtype) {
  if (!json.is_object() || !json.contains("gemm_tflops") || !json.at("gemm_tflops").is_object()) {
    fail(ErrorCode::kInvalidFile,
         "device '{}': 'gemm_tflops' must be an object of types, such as {{\"bf16\": 677}}", name);
  }
  const Json& gemm = json.at("gemm_tflops");
  const std::string type(dtype);
  if (!gemm.contains(type)) {
    std::string types;
    for (const auto& [known, rate] : gemm.items()) types += (types.empty() ? "" : ", ") + known;
    fail(ErrorCode::kInvalidArgument, "device '{}' has no matmul rate for {}; it has {}", name,
         dtype, types);
  }
  DeviceRates rates;
  rates.name = name;
  rates.description = text(json, "description");
  rates.source = text(json, "source");
  rates.gemm_tflops = positive(gemm, name, type);
  if (json.contains("expert_tflops")) {
    const Json& experts = json.at("expert_tflops");
    if (!experts.is_object()) {
      fail(ErrorCode::kInvalidFile,
           "device '{}': 'expert_tflops' must be an object of types, such as {{\"bf16\": 450}}",
           name);
    }
    rates.expert_tflops = positive_or_zero(experts, name, type);
  }
  rates.copy_gbps = positive(json, name, "copy_gbps");
  rates.attention_tflops = positive_or_zero(json, name, "attention_tflops");
  rates.attention_gbps = positive_or_zero(json, name, "attention_gbps");
  return rates;
}

}  // namespace

DeviceRates device_rates_by_name(std::string_view name, std::string_view dtype) {
  const Json devices = Json::parse(embedded_devices());
  std::string names;
  for (const auto& [known, json] : devices.items()) {
    if (known == name) return read_device(known, json, dtype);
    names += (names.empty() ? "" : ", ") + known;
  }
  fail(ErrorCode::kInvalidArgument,
       "no device '{}' in the table; there are {}, or give a JSON file", name, names);
}

DeviceRates device_rates_from_json(std::string_view json_text, std::string_view dtype) {
  const Json json = parse_untrusted_json(json_text);
  if (json.is_discarded() || !json.is_object() || json.size() != 1) {
    fail(ErrorCode::kInvalidFile,
         "a device file is a JSON object with one member, the device's name and its rates");
  }
  const auto first = json.items().begin();
  return read_device(first.key(), first.value(), dtype);
}

std::vector<std::string> known_device_names() {
  const Json devices = Json::parse(embedded_devices());
  std::vector<std::string> names;
  for (const auto& [name, json] : devices.items()) names.push_back(name);
  return names;
}

}  // namespace fovea::worth
