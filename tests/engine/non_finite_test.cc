// NaN and infinity in weights, activations, keys and values: one clear line, never a wrong text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/engine/session.h"
#include "tests/engine/made_up_model.h"

namespace fovea {
namespace {

using testing::HasSubstr;

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 64,
  "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
  "vocab_size": 32, "max_position_embeddings": 4096, "num_hidden_layers": 3})";

/// What reading 700 tokens says when all values of the tensor `name` are `value`.
std::string error_with(const std::string& name, float value, const SessionOptions& options) {
  const test::TempDir folder;
  test::write_made_up_model(folder, kConfig,
                            [&](const std::string& tensor, std::vector<float>& values) {
                              if (tensor == name) std::fill(values.begin(), values.end(), value);
                            });
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 700; ++i) tokens.push_back(i * i % 32);
  try {
    Session session(Model::load(folder.path(), {.compute = ComputeType::kF32, .progress = {}}),
                    options);
    session.prefill(tokens);
    session.decode(1);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidFile);
    return error.what();
  }
  return "no error";
}

SessionOptions rescue() {
  SessionOptions options;
  options.attention.selector = SelectorSettings{};
  options.attention.selector->density = 0.3f;
  options.attention.min_sparse_len = 0;
  return options;
}

TEST(NonFinite, WeightsAreNamed) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(error_with("layers.1.k", kNan, {}),
              HasSubstr("'model.layers.1.self_attn.k_proj.weight' holds a NaN or infinity"));
  EXPECT_THAT(error_with("layers.2.mlp_norm", -kInf, {}),
              HasSubstr("'model.layers.2.post_attention_layernorm.weight' holds a NaN"));
  // Rows of an embedding that is not the output matrix are read when a token asks for them.
  EXPECT_THAT(error_with("token_embedding", kNan, {}),
              HasSubstr("'model.embed_tokens.weight' holds a NaN"));
}

TEST(NonFinite, ActivationsNameTheLayer) {
  EXPECT_THAT(error_with("layers.0.down", 3e38f, {}), HasSubstr("the input of layer 1 holds NaN"));
  EXPECT_THAT(error_with("layers.2.down", 3e38f, {}),
              HasSubstr("the output of the last layer holds NaN"));
}

TEST(NonFinite, KeysAndValuesNameTheLayerThatReadsThem) {
  for (const SessionOptions& options : {SessionOptions{}, rescue()}) {
    EXPECT_THAT(error_with("layers.1.k", 3e38f, options),
                HasSubstr("the input of layer 2 holds NaN"));
    EXPECT_THAT(error_with("layers.1.v", 3e38f, options),
                HasSubstr("the input of layer 2 holds NaN"));
    EXPECT_THAT(error_with("layers.1.q", 3e38f, options),
                HasSubstr("the input of layer 2 holds NaN"));
  }
}

TEST(NonFinite, LargeButFiniteIsNoError) {
  EXPECT_EQ(error_with("layers.1.k", 1e3f, {}), "no error");
  EXPECT_EQ(error_with("layers.1.k", 1e3f, rescue()), "no error");
}

}  // namespace
}  // namespace fovea
