// Every architecture against transformers: golden/architectures.json has small models' config.json
// and logits, made by golden/make_architectures.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fovea/engine/session.h"
#include "fovea/model_io/model_config.h"
#include "tests/engine/made_up_model.h"
#include "tests/support/hex_floats.h"
#include "tests/support/relative_error.h"

namespace fovea {
namespace {

using nlohmann::json;
using test::relative_error;

constexpr int64_t kNumTokens = 150;  // more than a page
constexpr int64_t kNumRows = 12;     // whose logits are known

class Architectures : public testing::TestWithParam<const char*> {};

TEST_P(Architectures, LogitsAreThoseOfTransformers) {
  std::ifstream file("tests/golden/architectures.json");
  const json golden = json::parse(file).at(GetParam());
  const std::vector<float> want = test::floats_of_hex(golden.at("logits"));
  const test::TempDir folder;
  ASSERT_NO_FATAL_FAILURE(test::write_made_up_model(folder, golden.at("config").dump()));
  const auto model = Model::load(folder.path(), {.compute = ComputeType::kF32, .progress = {}});
  const auto vocab_size = static_cast<size_t>(model->config().vocab_size);
  ASSERT_EQ(want.size(), kNumRows * vocab_size);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < kNumTokens; ++i) {
    tokens.push_back(static_cast<int32_t>((i * i + 7 * i) % 32));
  }

  Session whole(model);
  PrefillOptions options;
  options.num_logit_rows = kNumRows;
  EXPECT_LT(relative_error(whole.prefill(tokens, options), want), 1e-5);

  const int32_t last = tokens.back();
  tokens.pop_back();
  Session parts(model);
  parts.prefill(tokens);
  EXPECT_LT(relative_error(parts.decode(last), std::span(want).last(vocab_size)), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(All, Architectures,
                         testing::Values("llama", "mistral", "qwen2", "qwen3", "qwen3_moe",
                                         "gemma3", "gpt_oss"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace fovea
