// What a throughput or latency figure must carry to mean something, and the machine it came from.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fovea/base/context.h"
#include "fovea/worth/conditions.h"

namespace CLI {
class App;
}

namespace fovea::cli {

/// "0.1.0 (commit 1a2b3c4d5e6f)".
std::string version_text();

/// Options of the subcommand that the user gave and that can change a figure, by name: not what is
/// read and where the report goes.
nlohmann::json given_options(const CLI::App& command);

/// {"machine", "processor", "instruction_set", "num_threads", "memory_bytes", "version", "commit"}.
nlohmann::json machine_json(const Context& context);

/// The ten conditions of a figure. An empty string is printed as missing.
struct Conditions {
  std::string model;
  std::string hardware;       // type and count
  std::string weights_dtype;  // precision, in three parts
  std::string attention_dtype;
  std::string kv_dtype;
  std::string prompt_length;  // tokens, or several of them
  std::string answer_length;
  std::string concurrency;  // and arrivals
  std::string engine;
  nlohmann::json flags = nlohmann::json::object();  // that differ from default
  std::string prefix_caching;
  std::string tokens_counted;
  std::string latency_target;
  std::string fraction_met;
};

/// Every field by its name, null where it is missing.
nlohmann::json to_json(const Conditions& conditions);

/// The ten, as reports list them.
std::vector<worth::ConditionEntry> condition_entries(const Conditions& conditions);

/// "conditions: models/needle_7m (weights bf16, ...) on 2 threads of ...; latency target missing,
/// ...": one line.
std::string to_line(const Conditions& conditions);

/// "2 threads of Intel(R) Xeon(R) ...".
std::string hardware_text(const Context& context);

}  // namespace fovea::cli
