// Any bytes as a file of tasks: its first byte chooses the file's name, and so the kind.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "fovea/base/error.h"
#include "fovea/quality/load_tasks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fovea;
  if (size == 0) return 0;
  constexpr std::array<const char*, 4> kNames = {"data.json", "passkey.jsonl",
                                                 "longbook_choice_eng.jsonl", "math_calc.jsonl"};
  const std::string name = kNames[data[0] % kNames.size()];
  const std::string_view content(reinterpret_cast<const char*>(data) + 1, size - 1);
  const quality::EncodeFunction encode = [](std::string_view text) {
    return std::vector<int32_t>(text.begin(), text.end());
  };
  constexpr int64_t kLength = 512;
  try {
    for (const quality::Task& task :
         quality::parse_tasks(content, name, encode, {}, {.length = kLength, .max_tasks = 0})) {
      const auto num_tokens = static_cast<int64_t>(task.tokens.size());
      if (num_tokens + task.max_new_tokens > kLength) __builtin_trap();
      if (task.questions.size() != 1 || task.questions[0].answers.empty()) __builtin_trap();
    }
  } catch (const Error&) {
  }
  return 0;
}
