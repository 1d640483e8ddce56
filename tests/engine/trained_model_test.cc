// needle_17m against transformers, on 510 tokens of facts, filler and questions:
// golden/needle_17m.json, made by golden/make_needle_17m.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fovea/engine/session.h"
#include "fovea/model_io/model_config.h"
#include "fovea/ops/sampling.h"
#include "fovea/tokenizer/tokenizer.h"
#include "tests/support/hex_floats.h"
#include "tests/support/relative_error.h"

namespace fovea {
namespace {

TEST(TrainedModel, TokensAndLogitsAreThoseOfTransformers) {
  std::ifstream file("tests/golden/needle_17m.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  const auto tokens = golden.at("tokens").get<std::vector<int32_t>>();
  const auto top_tokens = golden.at("top_tokens").get<std::vector<int32_t>>();
  const std::vector<float> top_logits = test::floats_of_hex(golden.at("top_logits"));
  ASSERT_EQ(tokens.size(), 510u);
  ASSERT_EQ(top_tokens.size(), tokens.size());

  const auto model =
      Model::load("models/needle_17m", {.compute = ComputeType::kF32, .progress = {}});
  EXPECT_EQ(model->tokenizer().encode(golden.at("text").get<std::string>()), tokens);

  Session session(model);
  PrefillOptions options;
  options.num_logit_rows = static_cast<int64_t>(tokens.size());
  const std::span<const float> logits = session.prefill(tokens, options);
  const auto vocab_size = static_cast<size_t>(model->config().vocab_size);
  std::vector<int32_t> ours;
  std::vector<float> our_logits;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * vocab_size, vocab_size);
    ours.push_back(argmax(row));
    our_logits.push_back(row[static_cast<size_t>(top_tokens[i])]);
  }
  EXPECT_EQ(ours, top_tokens);
  EXPECT_LT(test::relative_error(our_logits, top_logits), 1e-5);
}

}  // namespace
}  // namespace fovea
