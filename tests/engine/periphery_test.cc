// Which layers see the blocks that they do not read through means.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fovea/engine/session.h"
#include "tests/engine/made_up_model.h"

namespace fovea {
namespace {

/// Logits of a model of `num_layers` layers after 700 tokens, of which a row reads its own block of
/// 64 and the first.
std::vector<float> logits_of(int num_layers, bool periphery) {
  const test::TempDir folder;
  test::write_made_up_model(folder, fmt::format(R"({{"model_type": "llama", "hidden_size": 64,
      "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
      "vocab_size": 32, "max_position_embeddings": 4096, "num_hidden_layers": {}}})",
                                                num_layers));
  SelectorSettings selector;
  selector.method = SelectorMethod::kStreaming;
  selector.block_size = 64;
  selector.streaming_sink_tokens = 64;
  selector.streaming_local_tokens = 1;
  SessionOptions options;
  options.attention.selector = selector;
  options.attention.min_sparse_len = 0;
  options.attention.periphery = periphery;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 700; ++i) tokens.push_back(i * i % 32);
  Session session(Model::load(folder.path(), {.compute = ComputeType::kF32, .progress = {}}),
                  options);
  const std::span<const float> logits = session.prefill(tokens);
  return {logits.begin(), logits.end()};
}

TEST(Periphery, TheFirstLayerHasNone) { EXPECT_EQ(logits_of(1, true), logits_of(1, false)); }

TEST(Periphery, TheSecondLayerHasOne) { EXPECT_NE(logits_of(2, true), logits_of(2, false)); }

}  // namespace
}  // namespace fovea
