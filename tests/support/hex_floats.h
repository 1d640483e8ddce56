// Floats as golden files keep them: hex of little-endian f32.
#pragma once

#include <cstring>
#include <string>
#include <vector>

namespace fovea::test {

inline std::vector<float> floats_of_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace fovea::test
