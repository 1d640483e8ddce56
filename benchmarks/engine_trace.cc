// Traces decode steps of a synthetic model on a GPU through CUPTI, kernel by kernel.
//
//   engine_trace OUT.json.gz MODEL [CONTEXT] [f8]
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "fovea/engine/session.h"
#include "fovea/trace/cuda/cupti_trace.h"

namespace {

constexpr int kUntraced = 4;  // the first steps choose, allocate and record
constexpr int kTraced = 4;

void trace(const char* path, const char* name, int64_t context, bool f8_weights) {
  fovea::ModelOptions model_options;
  model_options.device = {fovea::DeviceType::kCuda, 0};
  model_options.f8_weights = f8_weights;
  fovea::SessionOptions options;
  options.max_len = context + kUntraced + kTraced;
  fovea::Session session(fovea::Model::synthetic(name, 0, model_options), options);
  session.prefill(std::vector<int32_t>(static_cast<size_t>(context), 65));
  for (int i = 0; i < kUntraced; ++i) session.decode(66);
  fovea::trace::CuptiTrace recording(path);
  for (int i = 0; i < kTraced; ++i) {
    recording.begin_step("step[decode bs=1]");
    session.decode(67);  // waits for its end
  }
  recording.end_step();
  recording.finish();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 5) {
    fmt::print(stderr, "usage: engine_trace OUT.json.gz MODEL [CONTEXT] [f8]\n");
    return 2;
  }
  try {
    trace(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 256,
          argc > 4 && argv[4] == std::string_view("f8"));
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_trace: error: {}\n", error.what());
    return 1;
  }
  return 0;
}
