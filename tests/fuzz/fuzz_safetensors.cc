// Any bytes as a safetensors file and as the index of a sharded one.
#include <cstddef>
#include <cstdint>

#include "fovea/base/error.h"
#include "fovea/model_io/model_file.h"
#include "tests/model_io/tiny_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fovea;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    // Gemma 3's weights are changed in reading.
    const ModelFile model =
        ModelFile::from_safetensors(Safetensors::parse(bytes, "fuzz.safetensors"),
                                    tiny_config(Architecture::kGemma3), "fuzz.safetensors");
    for (const auto& [name, tensor] : model.tensors()) model.read_f32(name);
  } catch (const Error&) {
  }
  try {
    parse_shard_index({reinterpret_cast<const char*>(data), size}, "fuzz.index.json");
  } catch (const Error&) {
  }
  return 0;
}
