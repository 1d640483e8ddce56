// Any bytes as a GGUF file: parsed, its metadata read by every lookup, opened as a model, and
// weights read.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "fovea/base/error.h"
#include "fovea/model_io/model_file.h"
#include "fovea/model_io/quantized.h"

namespace {

// Runs `action`; an Error is a fine answer.
template <typename Action>
void allow_error(Action action) {
  try {
    action();
  } catch (const fovea::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fovea;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  allow_error([&] {
    Gguf gguf = Gguf::parse(bytes, "fuzz.gguf");
    for (const auto& entry : gguf.metadata()) {
      const std::string_view name = entry.first;
      allow_error([&] { gguf.get_int(name); });
      allow_error([&] { gguf.get_float(name); });
      allow_error([&] { gguf.get_string(name); });
      allow_error([&] { gguf.find_bool(name); });
      allow_error([&] { gguf.find_strings(name); });
      allow_error([&] { gguf.find_floats(name); });
      allow_error([&] { gguf.find_ints(name); });
      allow_error([&] { gguf.find_bools(name); });
    }
    for (const FileTensor& tensor : gguf.tensors()) {
      allow_error([&] {
        std::vector<float> pack(static_cast<size_t>(pack_elements(tensor.type)));
        dequantize(tensor.type, tensor.bytes.first(static_cast<size_t>(pack_bytes(tensor.type))),
                   pack);
      });
    }
    const ModelFile model = ModelFile::from_gguf(std::move(gguf));
    for (const auto& entry : model.tensors()) {
      allow_error([&] { model.read_f32(entry.first); });
    }
  });
  return 0;
}
