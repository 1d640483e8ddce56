// The facts of a decoder that decide its cost, read from config.json or from the table that ships.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::worth {

enum class AttentionKind {
  kFull,     // every earlier token
  kSliding,  // the last `sliding_window` tokens
  kLinear,   // a recurrent state of fixed size (gated delta rule)
};

/// Which of the two forms a layer's MLP has.
enum class MlpKind { kDense, kMixture };

struct LayerShape {
  AttentionKind attention = AttentionKind::kFull;
  MlpKind mlp = MlpKind::kDense;
};

/// Multi-head latent attention (DeepSeek): keys and values come from one latent per token.
struct LatentShape {
  int64_t kv_rank = 0;  // 0: the model has none of this
  int64_t q_rank = 0;   // 0: queries are projected directly
  int64_t nope_head_dim = 0;
  int64_t rope_head_dim = 0;
};

/// Mixture of experts.
struct MixtureShape {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_dim = 0;         // of one expert's MLP
  int64_t shared_expert_dim = 0;  // of all shared experts together
};

/// Linear attention with a state of num_value_heads x key_head_dim x value_head_dim.
struct LinearAttentionShape {
  int64_t num_key_heads = 0;
  int64_t num_value_heads = 0;
  int64_t key_head_dim = 0;
  int64_t value_head_dim = 0;
  int64_t conv_width = 0;
};

/// Bytes of one element in memory.
struct Precision {
  double weight_bytes = 2;
  double expert_bytes = 2;  // routed experts: 0.53125 for MXFP4
  double activation_bytes = 2;
  double kv_bytes = 2;
};

struct ModelShape {
  std::string name;
  std::vector<LayerShape> layers;
  int64_t model_dim = 0;
  int64_t vocab_size = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;        // of queries and keys
  int64_t value_head_dim = 0;  // of values
  int64_t mlp_dim = 0;
  int64_t sliding_window = 0;
  bool gated_attention_output = false;  // q projection is twice as wide
  bool tied_embeddings = false;
  LatentShape latent;
  MixtureShape mixture;
  LinearAttentionShape linear;
  Precision precision;

  bool is_latent() const { return latent.kv_rank > 0; }
  int64_t count(AttentionKind kind) const;
  /// Weights, embeddings once or twice as the model ties them; norms and biases left out (under 0.1
  /// %).
  double num_parameters() const;
  /// Those that one token uses.
  double num_active_parameters() const;
  /// KV cache of one token over all layers, windows counted as if they were full.
  double kv_bytes_per_token() const;
};

/// Parameters of one layer's parts, which are also half the FLOPs that a token costs there.
double attention_parameters(const ModelShape& shape, AttentionKind kind);
double dense_mlp_parameters(const ModelShape& shape);
double expert_parameters(const ModelShape& shape);  // of one routed expert
double shared_expert_parameters(const ModelShape& shape);

/// Reads the text of a Hugging Face config.json. Throws kInvalidFile for text that is not JSON or
/// lacks a fact, and kUnsupported for an attention kind it does not know; the message names the
/// member.
ModelShape model_shape_from_config(std::string_view json_text, const std::string& name);

/// A model of the shipped table, by name, upper and lower case being equal. Throws kInvalidArgument
/// listing the names.
ModelShape model_shape_by_name(std::string_view name);
std::vector<std::string> known_model_names();

/// Throws kInvalidArgument naming the first fact that is missing or absurd.
void check_model_shape(const ModelShape& shape);

}  // namespace fovea::worth
