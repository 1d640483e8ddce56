// The ten conditions that a throughput or latency figure must carry, looked for in somebody's
// report.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::worth {

/// One condition as a report states it.
struct ConditionEntry {
  std::string name;      // "model", "hardware", "precision" ...
  std::string meaning;   // what should be there, in a few words
  std::string value;     // empty when missing
  std::string found_at;  // the member it came from, such as "input_config.loadgen.concurrency"

  bool missing() const { return value.empty(); }
};

/// The ten, in the order of docs/measuring.md, with the values that are known by name; the others
/// are missing.
std::vector<ConditionEntry> ten_conditions(const std::map<std::string, std::string>& known = {});

/// What a report says, and does not.
struct ConditionsAudit {
  std::string format;  // "vLLM bench", "AIPerf", "GuideLLM", "Fovea" or "unknown JSON"
  std::vector<ConditionEntry> entries;  // always ten, in the order of ten_conditions()
  std::vector<std::string> remarks;     // how to read this tool's figures

  int num_missing() const;
};

/// Audits a report's JSON. Throws kInvalidFile when the text is not a JSON object (or an array with
/// one first).
ConditionsAudit audit_conditions(std::string_view json_text);

}  // namespace fovea::worth
