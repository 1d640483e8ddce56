// Any bytes as a safetensors file and as the index of a sharded one.
#include <cstddef>
#include <cstdint>

#include "fovea/base/error.h"
#include "fovea/model_io/model_file.h"

namespace {

fovea::ModelConfig tiny_config() {
  fovea::ModelConfig config;
  config.architecture =
      fovea::Architecture::kGemma3;  // the one whose weights are changed in reading
  config.num_layers = 1;
  config.model_dim = 8;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.mlp_dim = 12;
  config.vocab_size = 5;
  config.context_length = 64;
  config.softmax_scale = 0.5;
  config.qk_norm = true;
  config.post_norms = true;
  config.tied_embeddings = true;
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fovea;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const ModelFile model = ModelFile::from_safetensors(
        Safetensors::parse(bytes, "fuzz.safetensors"), tiny_config(), "fuzz.safetensors");
    for (const auto& [name, tensor] : model.tensors()) model.read_f32(name);
  } catch (const Error&) {
  }
  try {
    parse_shard_index({reinterpret_cast<const char*>(data), size}, "fuzz.index.json");
  } catch (const Error&) {
  }
  return 0;
}
