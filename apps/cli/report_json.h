// The engine's reports as JSON, with the names that they have in C++.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "fovea/engine/session.h"

namespace fovea::cli {

/// Every setting by its name; null for dense.
nlohmann::json to_json(const AttentionSettings& settings);

/// Times, accounting and memory. `head_density` goes in when asked for, a list per layer.
nlohmann::json to_json(const PrefillReport& report, int64_t num_q_heads, bool head_density);

/// {"median", "min", "max"} and up to 16 "samples", of more the quartiles "q1" and "q3" instead;
/// null when there are none.
nlohmann::json summary_json(const std::vector<double>& samples);

/// Middle value, or the mean of the two middle ones. Throws kInvalidArgument when there are none.
double median(std::vector<double> values);

/// 16 hex digits that stand for a prompt's tokens (FNV-1a over their ids), so that two reports can
/// tell whether they read the same.
std::string prompt_hash(std::span<const int32_t> tokens);

/// Most memory that the process has held at once since reset_peak_memory(), or since its start
/// where the system does not let it be reset; 0 where it cannot be asked.
int64_t peak_memory_bytes();
void reset_peak_memory();

}  // namespace fovea::cli
