// Any text as config.json and as generation_config.json.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"
#include "fovea/model_io/tensor_names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fovea;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ModelConfig config;
  try {
    config = config_from_json(text, "config.json");
    check_config(config, "config.json");  // what was accepted stays acceptable
    if (expected_tensors(config, FileFormat::kSafetensors).empty()) std::abort();
  } catch (const Error&) {
  }
  try {
    add_generation_config(text, "generation_config.json", config);
  } catch (const Error&) {
  }
  return 0;
}
