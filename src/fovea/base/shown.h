// Text out of files, as error messages may show it.
#pragma once

#include <string>
#include <string_view>

namespace fovea {

/// `text` as printable ASCII, at most 80 characters, so that a message stays one short line.
inline std::string shown(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string result;
  for (const char c : text.substr(0, kLongest)) result += (c >= ' ' && c <= '~') ? c : '?';
  if (text.size() > kLongest) result += "...";
  return result;
}

}  // namespace fovea
