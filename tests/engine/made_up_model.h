// Model folders in the Hugging Face form with made-up weights, small enough to write in a test.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "fovea/model_io/model_config.h"
#include "fovea/model_io/tensor_names.h"
#include "tests/model_io/safetensors_builder.h"
#include "tests/support/temp_dir.h"

namespace fovea::test {

/// The numbers of golden/make_architectures.py: base + values in [-0.5, 0.5) by the tensor's name.
inline std::vector<float> made_up_weights(const std::string& name, size_t count, float base) {
  uint32_t seed = 2166136261u;
  for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 16777619u;  // FNV-1a
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    uint32_t x = static_cast<uint32_t>(i) * 0x9E3779B9u + seed;
    x = (x ^ (x >> 16)) * 0x21F0AAADu;
    x = (x ^ (x >> 15)) * 0x735A2D97u;
    x ^= x >> 15;
    values[i] = base + static_cast<float>(x >> 8) * 0x1p-24f - 0.5f;
  }
  return values;
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
  for (const ExpectedTensor& tensor : expected_tensors(config, FileFormat::kSafetensors)) {
    size_t count = 1;
    for (const int64_t dim : tensor.shape) count *= static_cast<size_t>(dim);
    const bool ones = tensor.is_norm && config.architecture != Architecture::kGemma3;
    std::vector<float> values = made_up_weights(tensor.file_name, count, ones ? 1.0f : 0.0f);
    edit(tensor.name, values);
    tensors.add_f32(tensor.file_name, tensor.shape, values);
  }
  write_file(folder.file("config.json"), config_json);
  write_file(folder.file("model.safetensors"), tensors.build());
  write_file(folder.file("tokenizer.json"), kOneTokenJson);
}

}  // namespace fovea::test
