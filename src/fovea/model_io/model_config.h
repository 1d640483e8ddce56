// What the engine must know of a model besides its weights, from GGUF metadata or from config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/model_io/gguf.h"

namespace fovea {

enum class Architecture {
  kLlama,     // Llama, SmolLM2, Mistral
  kQwen2,     // q/k/v bias
  kQwen3,     // RMSNorm of each q and k head
  kQwen3Moe,  // the same with a mixture of experts in every layer
  kGemma3,    // q/k norm, norms on both sides of attention and mlp, local and global layers
  kGptOss,    // mixture of experts with biases everywhere, attention sinks, every other layer local
};

/// "llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "gpt-oss": what GGUF files say.
std::string_view architecture_name(Architecture architecture);

enum class Activation {
  kSilu,
  kGeluTanh,
  kClampedSwiglu,  // gpt-oss: see GateFunction
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int64_t num_layers = 0;
  int64_t model_dim = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // even
  int64_t mlp_dim = 0;
  int64_t vocab_size = 0;
  int64_t context_length = 0;  // tokens

  /// Rotation of pair (i, i + head_dim / 2) at position p:
  /// p * rope_theta^(-2 i / head_dim) / rope_factors[i]. Weights that a file keeps for interleaved
  /// pairs (GGUF of Llama) are put in this order by ModelFile, so there is one convention.
  double rope_theta = 10000.0;
  /// head_dim / 2 divisors (linear, llama3 or yarn scaling), empty for all ones.
  std::vector<float> rope_factors;
  /// The base of local layers; equals rope_theta where the architecture makes no difference.
  double rope_theta_local = 10000.0;
  /// Whether rope_factors hold for local layers as well.
  bool scales_local_rope = false;

  double rms_eps = 1e-6;
  Activation activation = Activation::kSilu;
  /// Logits of attention are multiplied by this.
  double softmax_scale = 0.0;
  /// Token embeddings are multiplied by this (Gemma: sqrt(model_dim)).
  double embedding_scale = 1.0;

  /// In local layers a query sees itself and the sliding_window - 1 tokens before it. 0: no local
  /// layers.
  int64_t sliding_window = 0;
  /// One flag per layer, or empty when no layer is local.
  std::vector<bool> local_layers;
  bool is_local(int64_t layer) const {
    return !local_layers.empty() && local_layers[static_cast<size_t>(layer)];
  }

  /// A mixture of experts in place of the mlp: each token's mlp is the weighted sum of the
  /// experts_per_token experts that the router rates highest, each a gated mlp of expert_dim.
  /// num_experts 0: a plain mlp of mlp_dim.
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_dim = 0;
  /// Whether the weights of a token's experts are scaled to sum to one.
  bool normalise_experts = false;

  bool qkv_bias = false;
  /// Of attention's output, and of the router and the experts.
  bool output_bias = false;
  bool expert_bias = false;
  /// One logit per q head that takes weight and gives nothing.
  bool attention_sinks = false;
  /// Safetensors keep the experts in MXFP4: four-bit floats with a power of two for each 32.
  bool mxfp4_experts = false;
  bool qk_norm = false;
  /// RMSNorms after attention and after the mlp, before their residual additions.
  bool post_norms = false;
  /// The output matrix is the token embedding.
  bool tied_embeddings = false;

  std::optional<int32_t> bos_id;
  /// Any of these ends a text; may be empty.
  std::vector<int32_t> eos_ids;
};

/// Reads the configuration of a GGUF file.
/// Throws kUnsupported for an architecture or a feature that we do not run (it is named),
/// kInvalidFile for missing keys, wrong types and numbers that make no model.
ModelConfig config_from_gguf(const Gguf& gguf);

/// Reads the text of a Hugging Face config.json; `name` stands for the path in messages. Throws as
/// above.
ModelConfig config_from_json(std::string_view text, const std::string& name);

/// Adds the end-of-text ids of generation_config.json, where chat models keep theirs. Throws as
/// above.
void add_generation_config(std::string_view text, const std::string& name, ModelConfig& config);

/// Sets what all models of gpt-oss share: activation, biases, sinks, how weights of experts and
/// RoPE are scaled.
void set_gpt_oss(ModelConfig& config);

/// Throws kInvalidFile unless the numbers make a model: sizes in range, heads that divide, finite
/// scales.
void check_config(const ModelConfig& config, const std::string& name);

/// The part of check_config that concerns sizes and heads; readers call it before they divide or
/// build lists by them.
void check_sizes(const ModelConfig& config, const std::string& name);

/// Divisors of "llama3" RoPE scaling (Llama 3.1): wavelengths over original_context /
/// low_freq_factor are stretched by `factor`, those under original_context / high_freq_factor stay,
/// with a ramp between.
std::vector<float> llama3_rope_factors(int64_t head_dim, double theta, double factor,
                                       double low_freq_factor, double high_freq_factor,
                                       int64_t original_context_length);

/// Scaling by parts of arXiv 2309.00071 (YaRN).
struct YarnScaling {
  double factor = 1.0;
  double beta_fast = 32.0;  // pairs that turn more often than this over the original context stay
  double beta_slow = 1.0;   // those that turn less often are stretched by `factor`; a ramp between
  int64_t original_context_length = 0;
  bool truncate = true;  // the ramp's ends are whole pairs
};
/// Throws kInvalidFile unless its numbers make a scaling.
void check_yarn(const YarnScaling& scaling, const std::string& name);
std::vector<float> yarn_rope_factors(int64_t head_dim, double theta, const YarnScaling& scaling);
/// What YaRN multiplies q and k by, each.
double yarn_attention_factor(double factor);

}  // namespace fovea
