// ModelConfig out of GGUF metadata.
#include <cmath>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/base/shown.h"
#include "fovea/model_io/model_config.h"

namespace fovea {
namespace {

Architecture find_architecture(const Gguf& gguf) {
  const std::string_view name = gguf.get_string("general.architecture");
  for (const auto architecture :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kQwen3Moe,
        Architecture::kGemma3, Architecture::kGptOss}) {
    if (name == architecture_name(architecture)) return architecture;
  }
  fail(
      ErrorCode::kUnsupported,
      "'{}': architecture '{}' is not supported (llama, qwen2, qwen3, qwen3moe, gemma3 and gpt-oss "
      "are)",
      gguf.name(), shown(name));
}

std::optional<int32_t> find_token_id(const Gguf& gguf, std::string_view key) {
  const auto id = gguf.find_int(key);
  if (!id) return std::nullopt;
  if (*id < 0 || *id > std::numeric_limits<int32_t>::max()) {
    fail(ErrorCode::kInvalidFile, "'{}': {} is no token id: {}", gguf.name(), key, *id);
  }
  return static_cast<int32_t>(*id);
}

// Returns what scaling multiplies q and k by, each.
double read_rope_scaling(const Gguf& gguf, const std::string& prefix, ModelConfig& config) {
  const std::string type(gguf.find_string(prefix + "rope.scaling.type").value_or("none"));
  if (type == "none" || type.empty()) return 1.0;
  const bool is_known_yarn = type == "yarn" && config.architecture == Architecture::kGptOss;
  if (type != "linear" && !is_known_yarn) {
    fail(ErrorCode::kUnsupported, "'{}': rope scaling '{}' is not supported (linear is)",
         gguf.name(), shown(type));
  }
  const double factor = gguf.get_float(prefix + "rope.scaling.factor");
  if (is_known_yarn) {
    YarnScaling scaling;
    scaling.factor = factor;
    scaling.original_context_length = gguf.get_int(prefix + "rope.scaling.original_context_length");
    scaling.truncate = false;  // as the model was trained; the format has no key
    check_yarn(scaling, gguf.name());
    config.rope_factors = yarn_rope_factors(config.head_dim, config.rope_theta, scaling);
    return yarn_attention_factor(factor);
  }
  config.rope_factors.assign(static_cast<size_t>(config.head_dim / 2), static_cast<float>(factor));
  return 1.0;
}

// Gemma 3: five local layers, then a global one, gpt-oss: one and one.
void read_local_layers(const Gguf& gguf, const std::string& prefix, ModelConfig& config) {
  config.sliding_window = gguf.find_int(prefix + "attention.sliding_window").value_or(0);
  if (config.sliding_window == 0) return;
  const auto num_layers = static_cast<size_t>(config.num_layers);
  int64_t period = 0;
  if (config.architecture == Architecture::kGemma3) period = 6;
  if (config.architecture == Architecture::kGptOss) period = 2;
  config.local_layers.assign(num_layers, true);
  for (size_t i = 0; period > 0 && i < num_layers; ++i) {
    config.local_layers[i] = (static_cast<int64_t>(i) + 1) % period != 0;
  }
}

void read_gemma3(const Gguf& gguf, const std::string& prefix, ModelConfig& config) {
  config.activation = Activation::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<double>(config.model_dim));
  config.post_norms = true;
  config.rope_theta_local = gguf.find_float(prefix + "rope.freq_base_swa").value_or(10000.0);
  // Of the published sizes only 27B (62 layers) scales by model_dim / heads; the format has no key.
  if (config.num_layers == 62) {
    config.softmax_scale = 1.0 / std::sqrt(static_cast<double>(config.model_dim) /
                                           static_cast<double>(config.num_q_heads));
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (gguf.find_float(prefix + key).value_or(0.0) != 0.0) {
      fail(ErrorCode::kUnsupported, "'{}': {} is not supported", gguf.name(), key);
    }
  }
}

}  // namespace

ModelConfig config_from_gguf(const Gguf& gguf) {
  ModelConfig config;
  config.architecture = find_architecture(gguf);
  const std::string prefix = std::string(architecture_name(config.architecture)) + ".";
  config.num_layers = gguf.get_int(prefix + "block_count");
  config.model_dim = gguf.get_int(prefix + "embedding_length");
  config.num_q_heads = gguf.get_int(prefix + "attention.head_count");
  config.num_kv_heads =
      gguf.find_int(prefix + "attention.head_count_kv").value_or(config.num_q_heads);
  config.mlp_dim = gguf.get_int(prefix + "feed_forward_length");
  config.context_length = gguf.get_int(prefix + "context_length");
  config.rms_eps = gguf.get_float(prefix + "attention.layer_norm_rms_epsilon");

  if (const auto head_dim = gguf.find_int(prefix + "attention.key_length")) {
    config.head_dim = *head_dim;
  } else {
    if (config.num_q_heads < 1 || config.model_dim % config.num_q_heads != 0) {
      fail(ErrorCode::kInvalidFile, "'{}': model_dim {} does not divide among {} heads",
           gguf.name(), config.model_dim, config.num_q_heads);
    }
    config.head_dim = config.model_dim / config.num_q_heads;
  }
  for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
    const int64_t value = gguf.find_int(prefix + key).value_or(config.head_dim);
    if (value != config.head_dim) {
      fail(ErrorCode::kUnsupported, "'{}': {} of {} with a head_dim of {} is not supported",
           gguf.name(), key, value, config.head_dim);
    }
  }
  const bool gpt_oss = config.architecture == Architecture::kGptOss;
  if (config.architecture == Architecture::kQwen3Moe || gpt_oss) {
    config.num_experts = gguf.get_int(prefix + "expert_count");
    config.experts_per_token = gguf.get_int(prefix + "expert_used_count");
    config.expert_dim = gguf.get_int(prefix + "expert_feed_forward_length");
    config.normalise_experts = true;  // the format has no key
    if (config.num_experts == 0) {
      fail(ErrorCode::kInvalidFile, "'{}': {}expert_count must be at least 1, is 0", gguf.name(),
           prefix);
    }
  } else if (gguf.find_int(prefix + "expert_count").value_or(0) != 0) {
    fail(ErrorCode::kUnsupported, "'{}': mixtures of experts are not supported in {}", gguf.name(),
         architecture_name(config.architecture));
  }

  const auto tokens = gguf.find_strings("tokenizer.ggml.tokens");
  const auto vocab_size = gguf.find_int(prefix + "vocab_size");
  if (!tokens && !vocab_size) {
    fail(ErrorCode::kInvalidFile, "'{}': neither {}vocab_size nor tokenizer.ggml.tokens is there",
         gguf.name(), prefix);
  }
  config.vocab_size = vocab_size ? *vocab_size : static_cast<int64_t>(tokens->size());
  check_sizes(config, gguf.name());
  config.bos_id = find_token_id(gguf, "tokenizer.ggml.bos_token_id");
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    const auto id = find_token_id(gguf, key);
    if (id && (config.eos_ids.empty() || config.eos_ids[0] != *id)) config.eos_ids.push_back(*id);
  }

  config.rope_theta = gguf.find_float(prefix + "rope.freq_base").value_or(10000.0);
  config.rope_theta_local = config.rope_theta;
  const double multiplier = read_rope_scaling(gguf, prefix, config);
  config.softmax_scale = multiplier * multiplier / std::sqrt(static_cast<double>(config.head_dim));
  read_local_layers(gguf, prefix, config);
  if (config.architecture == Architecture::kGemma3) read_gemma3(gguf, prefix, config);

  config.qkv_bias = gguf.find_tensor("blk.0.attn_q.bias") != nullptr;
  if (gpt_oss) set_gpt_oss(config);
  config.qk_norm = config.architecture == Architecture::kQwen3 ||
                   config.architecture == Architecture::kQwen3Moe ||
                   config.architecture == Architecture::kGemma3;
  config.tied_embeddings = gguf.find_tensor("output.weight") == nullptr;
  check_config(config, gguf.name());
  return config;
}

}  // namespace fovea
