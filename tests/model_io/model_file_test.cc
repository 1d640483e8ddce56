#include "fovea/model_io/model_file.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fovea {
namespace {

// The model that the project carries.
TEST(ModelFile, OpensNeedle7m) {
  const ModelFile model = ModelFile::open("models/needle_7m");
  const ModelConfig& config = model.config();
  EXPECT_EQ(config.architecture, Architecture::kQwen3);
  EXPECT_EQ(config.num_layers, 6);
  EXPECT_EQ(config.num_q_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.context_length, 131072);
  EXPECT_EQ(config.rope_theta, 5e6);
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{0});
  EXPECT_TRUE(config.qk_norm);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_TRUE(config.rope_factors.empty());
  EXPECT_TRUE(config.local_layers.empty());
  EXPECT_EQ(model.folder(), "models/needle_7m");
  EXPECT_EQ(model.gguf(), nullptr);
  EXPECT_EQ(model.find_tensor("output"), nullptr);
  EXPECT_EQ(model.tensors().size(), 2u + 6u * 11u);
  const std::vector<float> norm = model.read_f32("layers.0.attention_norm");
  ASSERT_EQ(norm.size(), 256u);
  EXPECT_GT(norm[0], 0.0f);
}

}  // namespace
}  // namespace fovea
