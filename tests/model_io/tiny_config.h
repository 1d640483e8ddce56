// The smallest model that has every kind of tensor of its architecture.
#pragma once

#include "fovea/model_io/model_config.h"

namespace fovea {

/// One layer, model_dim 8, two query heads and one key-value head of 4, mlp 12 or three experts of
/// 6, five tokens.
inline ModelConfig tiny_config(Architecture architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.num_layers = 1;
  config.model_dim = 8;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.mlp_dim = 12;
  config.vocab_size = 5;
  config.context_length = 64;
  config.softmax_scale = 0.5;
  config.qk_norm = architecture == Architecture::kQwen3 ||
                   architecture == Architecture::kQwen3Moe || architecture == Architecture::kGemma3;
  config.qkv_bias = architecture == Architecture::kQwen2;
  config.post_norms = architecture == Architecture::kGemma3;
  config.tied_embeddings = true;
  if (architecture == Architecture::kQwen3Moe) {
    config.num_experts = 3;
    config.experts_per_token = 2;
    config.expert_dim = 6;
    config.normalise_experts = true;
  }
  return config;
}

}  // namespace fovea
