// What scripts/check_logits.py asks of the engine; token ids come from a file of little-endian
// int32.
//
//   engine_probe logits MODEL TYPE IDS ROWS OUT   f32 logits of the last ROWS positions into OUT
//   engine_probe greedy MODEL TYPE IDS COUNT      prints "id margin" for each greedy token
//   engine_probe time MODEL TYPE IDS METHOD [DENSITY [CHUNK]]   a prefill's report, twice, and
//   decode gaps engine_probe encode MODEL TEXT_FILE OUT       token ids of a text
#include <algorithm>
#include <chrono>
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

void print_report(const PrefillReport& report) {
  std::printf(
      "%lld tokens %.1f ms: attention %.1f selection %.1f matmul %.1f other %.1f; density %.4f "
      "forced "
      "%.3f; kv %.1f MB stats %.1f MB scratch %.2f MB activations %.1f MB %s\n",
      static_cast<long long>(report.num_tokens), report.times.total_ms, report.times.attention_ms,
      report.times.selection_ms, report.times.matmul_ms, report.times.other_ms, report.density(),
      report.forced_share(), static_cast<double>(report.kv_bytes) / 1e6,
      static_cast<double>(report.stats_bytes) / 1e6,
      static_cast<double>(report.selection_scratch_bytes) / 1e6,
      static_cast<double>(report.activation_bytes) / 1e6, report.note.c_str());
}

/// `args` as the command line has them.
void time_prefill(const std::vector<std::string>& args) {
  const std::vector<int32_t> ids = read_ids(args[3]);
  SessionOptions options;
  if (args[4] != "dense") {
    SelectorSettings settings;
    settings.method = parse_selector_method(args[4]);
    if (args.size() > 5) settings.density = std::strtof(args[5].c_str(), nullptr);
    options.attention.selector = settings;
  }
  if (args.size() > 6) options.chunk_size = std::atoll(args[6].c_str());
  const auto model = load(args[1], args[2]);
  for (int round = 0; round < 2; ++round) {
    Session session(model, options);
    std::span<const float> logits = session.prefill(ids);
    print_report(session.report());
    std::vector<double> gaps;
    for (int i = 0; i < 32 && session.room() > 0; ++i) {
      const auto start = std::chrono::steady_clock::now();
      logits = session.decode(argmax(logits));
      gaps.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count());
    }
    std::sort(gaps.begin(), gaps.end());
    if (!gaps.empty()) std::printf("itl median %.2f ms\n", gaps[gaps.size() / 2]);
  }
}

void probe(const std::vector<std::string>& args) {
  check_argument(args.size() >= 4, "see the comment at the top of engine_probe.cc");
  if (args[0] == "encode") {
    const auto ids = load(args[1], "auto")->tokenizer().encode(read_file(args[2]));
    write_file(args[3], ids.data(), ids.size() * sizeof(int32_t));
    return;
  }
  check_argument(args.size() >= 5, "see the comment at the top of engine_probe.cc");
  if (args[0] == "time") return time_prefill(args);
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
