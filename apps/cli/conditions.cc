#include "apps/cli/conditions.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "fovea/base/cpu_features.h"
#include "fovea/base/parallel.h"
#include "fovea/tensor/device_memory.h"
#include "fovea_version.h"

namespace fovea::cli {
namespace {

std::string instruction_set() {
  const CpuFeatures& features = cpu_features();
  if (features.amx_bf16) return "amx_bf16";
  if (features.avx512_bf16) return "avx512_bf16";
  if (features.avx512) return "avx512";
  return features.avx2 ? "avx2" : "portable";
}

constexpr std::array<std::string_view, 13> kNotFlags = {
    "--model",  "--file", "--prompt", "--json",    "--output", "--system",    "--trace",
    "--report", "--csv",  "--url",    "--journal", "--texts",  "--task-files"};

using Field = std::pair<const char*, std::string Conditions::*>;
constexpr std::array<Field, 13> kFields = {{
    {"model", &Conditions::model},
    {"hardware", &Conditions::hardware},
    {"weights_dtype", &Conditions::weights_dtype},
    {"attention_dtype", &Conditions::attention_dtype},
    {"kv_dtype", &Conditions::kv_dtype},
    {"prompt_length", &Conditions::prompt_length},
    {"answer_length", &Conditions::answer_length},
    {"concurrency", &Conditions::concurrency},
    {"engine", &Conditions::engine},
    {"prefix_caching", &Conditions::prefix_caching},
    {"tokens_counted", &Conditions::tokens_counted},
    {"latency_target", &Conditions::latency_target},
    {"fraction_met", &Conditions::fraction_met},
}};

}  // namespace

std::string version_text() { return FOVEA_VERSION " (commit " FOVEA_COMMIT ")"; }

nlohmann::json given_options(const CLI::App& command) {
  nlohmann::json given = nlohmann::json::object();
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool changes_figures =
        std::find(kNotFlags.begin(), kNotFlags.end(), name) == kNotFlags.end();
    if (option->count() == 0 || !changes_figures) continue;
    std::string value;
    for (const std::string& part : option->results()) value += (value.empty() ? "" : " ") + part;
    given[name] = value;
  }
  return given;
}

nlohmann::json machine_json(const Context& context) {
  utsname system = {};
  uname(&system);
  const std::string gpu = device_name(context.device);
  return {{"machine", fmt::format("{} {} {}", system.sysname, system.release, system.machine)},
          {"processor", cpu_model_name()},
          {"instruction_set", instruction_set()},
          {"num_threads", resolve_num_threads(context)},
          {"gpu", gpu.empty() ? nlohmann::json() : nlohmann::json(gpu)},
          {"memory_bytes", int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE)},
          {"version", FOVEA_VERSION},
          {"commit", FOVEA_COMMIT}};
}

nlohmann::json to_json(const Conditions& conditions) {
  nlohmann::json json = {{"flags", conditions.flags}};
  for (const auto& [name, member] : kFields) {
    const std::string& value = conditions.*member;
    json[name] = value.empty() ? nlohmann::json() : nlohmann::json(value);
  }
  return json;
}

std::vector<worth::ConditionEntry> condition_entries(const Conditions& conditions) {
  const auto joined = [](const std::vector<std::pair<const char*, std::string>>& parts) {
    std::string text;
    for (const auto& [label, value] : parts) {
      if (value.empty()) continue;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", label, value);
    }
    return text;
  };
  std::string flags;
  for (const auto& [name, value] : conditions.flags.items()) {
    flags += fmt::format("{}{} {}", flags.empty() ? "" : " ", name, value.get<std::string>());
  }
  return worth::ten_conditions({
      {"model", conditions.model},
      {"hardware", conditions.hardware},
      {"precision", joined({{"weights", conditions.weights_dtype},
                            {"attention", conditions.attention_dtype},
                            {"KV", conditions.kv_dtype}})},
      {"lengths",
       joined({{"prompt", conditions.prompt_length}, {"answer", conditions.answer_length}})},
      {"load", conditions.concurrency},
      {"engine", conditions.engine.empty() || flags.empty()
                     ? conditions.engine
                     : conditions.engine + ", flags " + flags},
      {"prefix_caching", conditions.prefix_caching},
      {"tokens_counted", conditions.tokens_counted},
      {"latency_target", conditions.latency_target},
      {"fraction_met", conditions.fraction_met},
  });
}

std::string to_line(const Conditions& conditions) {
  const auto known = [](const std::string& value) { return value.empty() ? "missing" : value; };
  std::string flags;
  for (const auto& [name, value] : conditions.flags.items()) {
    flags += fmt::format(" {} {}", name, value.get<std::string>());
  }
  return fmt::format(
      "conditions: {} (weights {}, attention {}, KV {}) on {}; prompt {}, answer {}; concurrency "
      "{}; "
      "{}, flags{}; prefix caching {}; tokens counted: {}; latency target {}, fraction that met it "
      "{}",
      known(conditions.model), known(conditions.weights_dtype), known(conditions.attention_dtype),
      known(conditions.kv_dtype), known(conditions.hardware), known(conditions.prompt_length),
      known(conditions.answer_length), known(conditions.concurrency), known(conditions.engine),
      flags.empty() ? " default" : flags, known(conditions.prefix_caching),
      known(conditions.tokens_counted), known(conditions.latency_target),
      known(conditions.fraction_met));
}

std::string hardware_text(const Context& context) {
  if (context.device.type != DeviceType::kCpu) return device_name(context.device);
  const int32_t num_threads = resolve_num_threads(context);
  return fmt::format("{} thread{} of {} ({})", num_threads, num_threads == 1 ? "" : "s",
                     cpu_model_name(), instruction_set());
}

}  // namespace fovea::cli
