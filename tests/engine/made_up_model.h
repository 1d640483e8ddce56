// Model folders in the Hugging Face form with made-up weights, small enough to write in a test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fovea/model_io/model_config.h"
#include "fovea/model_io/tensor_names.h"
#include "tests/model_io/safetensors_builder.h"
#include "tests/support/temp_dir.h"

namespace fovea::test {

/// The numbers of golden/make_architectures.py, different for every name and place.
inline std::vector<uint32_t> made_up_bits(const std::string& name, size_t count) {
  uint32_t seed = 2166136261u;
  for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 16777619u;  // FNV-1a
  std::vector<uint32_t> values(count);
  for (size_t i = 0; i < count; ++i) {
    uint32_t x = static_cast<uint32_t>(i) * 0x9E3779B9u + seed;
    x = (x ^ (x >> 16)) * 0x21F0AAADu;
    x = (x ^ (x >> 15)) * 0x735A2D97u;
    x ^= x >> 15;
    values[i] = x;
  }
  return values;
}

/// base + values in [-0.5, 0.5).
inline std::vector<float> made_up_weights(const std::string& name, size_t count, float base) {
  std::vector<float> values;
  for (const uint32_t bits : made_up_bits(name, count)) {
    values.push_back(base + static_cast<float>(bits >> 8) * 0x1p-24f - 0.5f);
  }
  return values;
}

/// Codes of MXFP4, any byte, or exponents from 119 to 122.
inline std::string made_up_mxfp4(const std::string& name, size_t count, bool is_exponent) {
  std::string bytes;
  for (const uint32_t bits : made_up_bits(name, count)) {
    bytes.push_back(static_cast<char>(is_exponent ? 119 + (bits >> 30) : bits >> 24));
  }
  return bytes;
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  ASSERT_TRUE(file.good()) << path;
}

/// A tokenizer of one token.
constexpr const char* kOneTokenJson = R"({
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})";

/// Changes a tensor, known by our name for it, before it is written.
using EditWeights = std::function<void(const std::string& name, std::vector<float>& values)>;

/// Writes config.json, weights and a tokenizer of one token.
inline void write_made_up_model(
    const TempDir& folder, const std::string& config_json,
    const EditWeights& edit = [](const std::string&, std::vector<float>&) {}) {
  const ModelConfig config = config_from_json(config_json, "config.json");
  SafetensorsBuilder tensors;
  std::set<std::string> written;  // several of ours may lie in one of the file's
  for (const ExpectedTensor& tensor : expected_tensors(config, FileFormat::kSafetensors)) {
    if (!written.insert(tensor.file_name).second) continue;
    std::vector<int64_t> shape = file_shape(tensor);
    size_t count = 1;
    for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
    if (!tensor.exponents_name.empty()) {
      tensors.add(tensor.file_name, "U8", shape, made_up_mxfp4(tensor.file_name, count, false));
      count /= static_cast<size_t>(shape.back());
      shape.pop_back();
      tensors.add(tensor.exponents_name, "U8", shape,
                  made_up_mxfp4(tensor.exponents_name, count, true));
      continue;
    }
    const bool ones = tensor.is_norm && config.architecture != Architecture::kGemma3;
    std::vector<float> values = made_up_weights(tensor.file_name, count, ones ? 1.0f : 0.0f);
    edit(tensor.name, values);
    tensors.add_f32(tensor.file_name, shape, values);
  }
  write_file(folder.file("config.json"), config_json);
  write_file(folder.file("model.safetensors"), tensors.build());
  write_file(folder.file("tokenizer.json"), kOneTokenJson);
}

}  // namespace fovea::test
