// What scripts/check_logits.py asks of the engine; token ids come from a file of little-endian
// int32.
//
//   engine_probe logits MODEL TYPE IDS ROWS OUT   f32 logits of the last ROWS positions into OUT
//   engine_probe greedy MODEL TYPE IDS COUNT      prints "id margin" for each greedy token
//   engine_probe encode MODEL TEXT_FILE OUT       token ids of a text
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/engine/session.h"
#include "fovea/model_io/model_config.h"
#include "fovea/ops/sampling.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  check_argument(file.good(), "cannot read {}", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<int32_t> read_ids(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  std::copy_n(bytes.data(), ids.size() * sizeof(int32_t), reinterpret_cast<char*>(ids.data()));
  return ids;
}

void write_file(const std::string& path, const void* data, size_t bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  check_argument(file.good(), "cannot write {}", path);
}

std::shared_ptr<const Model> load(const std::string& path, const std::string& type) {
  ModelOptions options;
  options.compute = type == "f32"    ? ComputeType::kF32
                    : type == "bf16" ? ComputeType::kBF16
                                     : ComputeType::kAuto;
  return Model::load(path, options);
}

void probe(const std::vector<std::string>& args) {
  check_argument(args.size() >= 4, "see the comment at the top of engine_probe.cc");
  if (args[0] == "encode") {
    const auto ids = load(args[1], "auto")->tokenizer().encode(read_file(args[2]));
    write_file(args[3], ids.data(), ids.size() * sizeof(int32_t));
    return;
  }
  check_argument(args.size() >= 5, "see the comment at the top of engine_probe.cc");
  const std::vector<int32_t> ids = read_ids(args[3]);
  Session session(load(args[1], args[2]));
  if (args[0] == "logits") {
    PrefillOptions options;
    options.num_logit_rows = std::atoll(args[4].c_str());
    const std::span<const float> logits = session.prefill(ids, options);
    write_file(args.at(5), logits.data(), logits.size_bytes());
    return;
  }
  std::span<const float> logits = session.prefill(ids);
  for (int64_t i = 0; i < std::atoll(args[4].c_str()); ++i) {
    const int32_t best = argmax(logits);
    float second = -1e30f;
    for (size_t t = 0; t < logits.size(); ++t) {
      if (static_cast<int32_t>(t) != best) second = std::max(second, logits[t]);
    }
    std::printf("%d %.5f\n", best, static_cast<double>(logits[static_cast<size_t>(best)] - second));
    logits = session.decode(best);
  }
}

}  // namespace
}  // namespace fovea

int main(int argc, char** argv) {
  try {
    fovea::probe({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
