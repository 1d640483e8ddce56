// Peak memory of a prefill grows linearly with the prompt: nothing of size n x n / block_size is
// ever held.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "fovea/engine/session.h"

namespace fovea {
namespace {

/// Peak resident bytes since the last reset_peak(), -1 where the kernel does not say.
int64_t peak_bytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  while (file >> word) {
    int64_t kib = 0;
    if (word == "VmHWM:" && file >> kib) return kib * 1024;
  }
  return -1;
}

bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

class PrefillMemory : public testing::TestWithParam<bool> {};

TEST_P(PrefillMemory, GrowsLinearlyWithThePrompt) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer keeps freed memory";
#endif
  if (!reset_peak() || peak_bytes() < 0) GTEST_SKIP() << "this system does not count peak memory";
  // Large blocks straight from the system and back to it: a heap that keeps what one session freed
  // for the next would blur the differences.
  mallopt(M_MMAP_THRESHOLD, 1 << 18);
  const auto model = Model::load("models/needle_7m");
  SessionOptions options;
  options.chunk_size = 1024;
  if (GetParam()) {
    options.attention.selector = SelectorSettings{};
    options.attention.selector->method = SelectorMethod::kWitness;
    options.attention.selector->density = 0.1f;
    options.attention.min_sparse_len = 0;
  }
  const auto peak_of = [&](int64_t num_tokens) {
    std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7919 % 4000);
    options.max_len = num_tokens;
    Session session(model, options);
    malloc_trim(0);
    reset_peak();
    session.prefill(tokens);
    return peak_bytes();
  };
  peak_of(2048);  // what is allocated once: compiled kernels, thread stacks
  const int64_t at_4k = peak_of(4096);
  const int64_t at_8k = peak_of(8192);
  const int64_t at_16k = peak_of(16384);
  const int64_t kv_bytes = 4096 * model->kv_bytes_per_token();
  EXPECT_GT(at_8k - at_4k, kv_bytes / 2);
  EXPECT_LT(at_8k - at_4k, 2 * kv_bytes);
  // Twice the tokens, twice the growth. One f32 number per (head, token, block) would leave 12 MiB
  // here.
  EXPECT_LT((at_16k - at_8k) - 2 * (at_8k - at_4k), 5 << 20);
}

INSTANTIATE_TEST_SUITE_P(All, PrefillMemory, testing::Bool(), [](const auto& test) {
  return test.param ? std::string("Witness") : std::string("Dense");
});

}  // namespace
}  // namespace fovea
