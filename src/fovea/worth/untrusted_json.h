// Parsing JSON that anybody may have written.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace fovea::worth {

/// The parsed text, members in their order; discarded (is_discarded()) when it is not JSON. What is
/// nested deeper than any report or config is left out: printing it would recurse once a level.
inline nlohmann::ordered_json parse_untrusted_json(std::string_view text) {
  constexpr int kDeepest = 32;
  const auto keep = [](int depth, nlohmann::ordered_json::parse_event_t, nlohmann::ordered_json&) {
    return depth <= kDeepest;
  };
  return nlohmann::ordered_json::parse(text, keep, /*allow_exceptions=*/false);
}

}  // namespace fovea::worth
