#include "fovea/worth/model_shape.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "fovea/base/error.h"
#include "fovea/worth/embedded_data.h"
#include "fovea/worth/untrusted_json.h"

namespace fovea::worth {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLargestFact = 1LL << 30;
constexpr int64_t kMostLayers = 10'000;

double product(int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

/// Members of config.json, distrusted.
class Config {
 public:
  Config(const Json& json, const std::string& name) : json_(json), name_(name) {}

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }

  int64_t number(const char* key) const {
    if (!has(key)) fail(ErrorCode::kInvalidFile, "{}: config has no '{}'", name_, key);
    const Json& value = json_.at(key);
    if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
        value.get<int64_t>() > kLargestFact) {
      fail(ErrorCode::kInvalidFile, "{}: '{}' must be a number between 0 and {}, got {}", name_,
           key, kLargestFact, value.dump().substr(0, 40));
    }
    return value.get<int64_t>();
  }
  int64_t number_or(const char* key, int64_t otherwise) const {
    return has(key) ? number(key) : otherwise;
  }
  /// The first of several spellings that is there.
  int64_t first_number(std::initializer_list<const char*> keys, int64_t otherwise) const {
    for (const char* key : keys) {
      if (has(key)) return number(key);
    }
    return otherwise;
  }
  std::string text_or(const char* key, const char* otherwise) const {
    return has(key) && json_.at(key).is_string() ? json_.at(key).get<std::string>() : otherwise;
  }
  bool flag_or(const char* key, bool otherwise) const {
    return has(key) && json_.at(key).is_boolean() ? json_.at(key).get<bool>() : otherwise;
  }
  const Json& json() const { return json_; }
  const std::string& name() const { return name_; }

 private:
  const Json& json_;
  const std::string& name_;
};

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

AttentionKind kind_of_layer_type(const Config& config, const std::string& type) {
  if (type == "full_attention" || type == "attention" || type == "global_attention") {
    return AttentionKind::kFull;
  }
  if (type == "sliding_attention" || type == "local_attention") return AttentionKind::kSliding;
  if (type == "linear_attention") return AttentionKind::kLinear;
  fail(ErrorCode::kUnsupported, "{}: layer type '{}' is not known", config.name(),
       type.substr(0, 40));
}

// layer_types when the config has them; else what the model type is known to do.
AttentionKind attention_of_layer(const Config& config, int64_t layer) {
  if (config.has("layer_types") && config.json().at("layer_types").is_array()) {
    const Json& types = config.json().at("layer_types");
    if (layer >= static_cast<int64_t>(types.size()) ||
        !types[static_cast<size_t>(layer)].is_string()) {
      fail(ErrorCode::kInvalidFile, "{}: layer_types does not name layer {}", config.name(), layer);
    }
    return kind_of_layer_type(config, types[static_cast<size_t>(layer)].get<std::string>());
  }
  const int64_t full_interval = config.number_or("full_attention_interval", 0);
  if (full_interval > 0) {
    return (layer + 1) % full_interval == 0 ? AttentionKind::kFull : AttentionKind::kLinear;
  }
  if (!config.has("sliding_window") || config.number("sliding_window") == 0) {
    return AttentionKind::kFull;
  }
  const std::string type = config.text_or("model_type", "");
  if (type.starts_with("qwen")) {  // off by default, and from max_window_layers up when on
    const bool on = config.flag_or("use_sliding_window", false) &&
                    layer >= config.number_or("max_window_layers", 0);
    return on ? AttentionKind::kSliding : AttentionKind::kFull;
  }
  if (type == "gpt_oss" || type == "gemma2") {  // alternate, the local one first
    return layer % 2 == 0 ? AttentionKind::kSliding : AttentionKind::kFull;
  }
  const int64_t pattern = config.first_number({"sliding_window_pattern", "_sliding_window_pattern"},
                                              type.starts_with("gemma3") ? 6 : 0);
  if (pattern > 0) {  // every pattern-th layer is global
    return (layer + 1) % pattern == 0 ? AttentionKind::kFull : AttentionKind::kSliding;
  }
  return AttentionKind::kSliding;  // Mistral
}

bool is_mixture_layer(const Config& config, const MixtureShape& mixture, int64_t layer) {
  if (mixture.num_experts == 0 || layer < config.number_or("first_k_dense_replace", 0))
    return false;
  if (config.has("mlp_only_layers") && config.json().at("mlp_only_layers").is_array()) {
    const Json& dense = config.json().at("mlp_only_layers");
    if (std::find(dense.begin(), dense.end(), Json(layer)) != dense.end()) return false;
  }
  const int64_t every = std::max<int64_t>(1, config.number_or("decoder_sparse_step", 1));
  return (layer + 1) % every == 0;
}

MixtureShape mixture_of(const Config& config) {
  MixtureShape mixture;
  mixture.num_experts =
      config.first_number({"num_local_experts", "num_experts", "n_routed_experts"}, 0);
  if (mixture.num_experts <= 1) return {};
  mixture.experts_per_token = config.first_number({"num_experts_per_tok", "experts_per_token"}, 0);
  mixture.expert_dim = config.first_number({"moe_intermediate_size", "intermediate_size"}, 0);
  mixture.shared_expert_dim = config.has("shared_expert_intermediate_size")
                                  ? config.number("shared_expert_intermediate_size")
                                  : config.number_or("n_shared_experts", 0) * mixture.expert_dim;
  return mixture;
}

Precision precision_of(const Config& config) {
  Precision precision;
  const std::string dtype =
      config.text_or("dtype", config.text_or("torch_dtype", "bfloat16").c_str());
  if (dtype == "float32")
    precision.weight_bytes = precision.activation_bytes = precision.kv_bytes = 4;
  precision.expert_bytes = precision.weight_bytes;
  if (!config.has("quantization_config") || !config.json().at("quantization_config").is_object()) {
    return precision;
  }
  const Json& quantization = config.json().at("quantization_config");
  const Config details(quantization, config.name());
  const std::string method = details.text_or("quant_method", "");
  if (method == "fp8") {
    precision.weight_bytes = precision.expert_bytes = 1;
  } else if (method == "mxfp4") {  // 4 bits and one shared exponent for 32 of them; experts only
    precision.expert_bytes = 4.25 / 8;
  } else if (details.has("bits")) {  // GPTQ, AWQ: one 16-bit scale for 128 weights is common
    precision.weight_bytes = precision.expert_bytes =
        static_cast<double>(details.number("bits")) / 8 + 2.0 / 128;
  }
  return precision;
}

}  // namespace

int64_t ModelShape::count(AttentionKind kind) const {
  return std::count_if(layers.begin(), layers.end(),
                       [&](const LayerShape& layer) { return layer.attention == kind; });
}

double attention_parameters(const ModelShape& shape, AttentionKind kind) {
  const int64_t dim = shape.model_dim;
  if (kind == AttentionKind::kLinear) {
    const LinearAttentionShape& linear = shape.linear;
    const int64_t key_dim = linear.num_key_heads * linear.key_head_dim;
    const int64_t value_dim = linear.num_value_heads * linear.value_head_dim;
    // q, k, v and gate; two gates a head; convolution over q, k, v; output.
    return product(dim, 2 * key_dim + 2 * value_dim) + product(dim, 2 * linear.num_value_heads) +
           product(linear.conv_width, 2 * key_dim + value_dim) + product(value_dim, dim);
  }
  const int64_t q_dim = shape.num_q_heads * shape.head_dim;
  const int64_t value_dim = shape.num_q_heads * shape.value_head_dim;
  if (shape.is_latent()) {
    const LatentShape& latent = shape.latent;
    const double q = latent.q_rank > 0 ? product(dim, latent.q_rank) + product(latent.q_rank, q_dim)
                                       : product(dim, q_dim);
    const double kv_down = product(dim, latent.kv_rank + latent.rope_head_dim);
    const double kv_up =
        product(latent.kv_rank, shape.num_q_heads * (latent.nope_head_dim + shape.value_head_dim));
    return q + kv_down + kv_up + product(value_dim, dim);
  }
  const int64_t kv_dim = shape.num_kv_heads * (shape.head_dim + shape.value_head_dim);
  return product(dim, q_dim) * (shape.gated_attention_output ? 2 : 1) + product(dim, kv_dim) +
         product(value_dim, dim);
}

double dense_mlp_parameters(const ModelShape& shape) {
  return 3 * product(shape.model_dim, shape.mlp_dim);  // gate, up, down
}

double expert_parameters(const ModelShape& shape) {
  return 3 * product(shape.model_dim, shape.mixture.expert_dim);
}

double shared_expert_parameters(const ModelShape& shape) {
  return 3 * product(shape.model_dim, shape.mixture.shared_expert_dim);
}

namespace {

double parameters(const ModelShape& shape, double experts) {
  double sum = product(shape.vocab_size, shape.model_dim) * (shape.tied_embeddings ? 1 : 2);
  for (const LayerShape& layer : shape.layers) {
    sum += attention_parameters(shape, layer.attention);
    if (layer.mlp == MlpKind::kDense) {
      sum += dense_mlp_parameters(shape);
    } else {
      sum += product(shape.model_dim, shape.mixture.num_experts) +  // router
             experts * expert_parameters(shape) + shared_expert_parameters(shape);
    }
  }
  return sum;
}

}  // namespace

double ModelShape::num_parameters() const {
  return parameters(*this, static_cast<double>(mixture.num_experts));
}

double ModelShape::num_active_parameters() const {
  return parameters(*this, static_cast<double>(mixture.experts_per_token));
}

double ModelShape::kv_bytes_per_token() const {
  const auto caching = static_cast<int64_t>(layers.size()) - count(AttentionKind::kLinear);
  const int64_t elements = is_latent() ? latent.kv_rank + latent.rope_head_dim
                                       : num_kv_heads * (head_dim + value_head_dim);
  return product(caching, elements) * precision.kv_bytes;
}

void check_model_shape(const ModelShape& shape) {
  const auto positive = [&](int64_t value, const char* what) {
    check_argument(value > 0 && value <= kLargestFact, "{}: {} must be above 0, got {}", shape.name,
                   what, value);
  };
  check_argument(!shape.layers.empty() && static_cast<int64_t>(shape.layers.size()) <= kMostLayers,
                 "{}: the number of layers must be between 1 and {}, got {}", shape.name,
                 kMostLayers, shape.layers.size());
  positive(shape.model_dim, "model_dim");
  positive(shape.vocab_size, "vocab_size");
  positive(shape.num_q_heads, "num_q_heads");
  positive(shape.num_kv_heads, "num_kv_heads");
  positive(shape.head_dim, "head_dim");
  positive(shape.value_head_dim, "value_head_dim");
  check_argument(shape.num_q_heads % shape.num_kv_heads == 0,
                 "{}: {} query heads are no multiple of {} KV heads", shape.name, shape.num_q_heads,
                 shape.num_kv_heads);
  for (const LayerShape& layer : shape.layers) {
    if (layer.attention == AttentionKind::kSliding)
      positive(shape.sliding_window, "sliding_window");
    if (layer.attention == AttentionKind::kLinear) {
      positive(shape.linear.num_key_heads, "linear_num_key_heads");
      positive(shape.linear.num_value_heads, "linear_num_value_heads");
      positive(shape.linear.key_head_dim, "linear_key_head_dim");
      positive(shape.linear.value_head_dim, "linear_value_head_dim");
    }
    if (layer.mlp == MlpKind::kDense) positive(shape.mlp_dim, "mlp_dim");
    if (layer.mlp == MlpKind::kMixture) {
      positive(shape.mixture.expert_dim, "expert_dim");
      positive(shape.mixture.experts_per_token, "experts_per_token");
      check_argument(shape.mixture.experts_per_token <= shape.mixture.num_experts,
                     "{}: {} experts per token of {}", shape.name, shape.mixture.experts_per_token,
                     shape.mixture.num_experts);
    }
  }
}

ModelShape model_shape_from_config(std::string_view json_text, const std::string& name) {
  Json json = parse_untrusted_json(json_text);
  if (json.is_discarded() || !json.is_object()) {
    fail(ErrorCode::kInvalidFile, "{}: the model's config is not a JSON object", name);
  }
  // Models that also see or hear keep the decoder's facts one level down.
  if (json.contains("text_config") && json.at("text_config").is_object()) {
    Json text = json.at("text_config");
    json = std::move(text);
  }
  const Config config(json, name);
  ModelShape shape;
  shape.name = name;
  shape.model_dim = config.number("hidden_size");
  shape.vocab_size = config.number("vocab_size");
  shape.num_q_heads = config.number("num_attention_heads");
  shape.num_kv_heads = config.number_or("num_key_value_heads", shape.num_q_heads);
  shape.mlp_dim = config.number_or("intermediate_size", 0);
  shape.sliding_window = config.number_or("sliding_window", 0);
  shape.gated_attention_output = config.flag_or("attn_output_gate", false);
  shape.tied_embeddings = config.flag_or("tie_word_embeddings", false);
  shape.mixture = mixture_of(config);
  shape.precision = precision_of(config);
  if (config.has("kv_lora_rank")) {
    shape.latent = {config.number("kv_lora_rank"), config.number_or("q_lora_rank", 0),
                    config.number("qk_nope_head_dim"), config.number("qk_rope_head_dim")};
    shape.head_dim = shape.latent.nope_head_dim + shape.latent.rope_head_dim;
    shape.value_head_dim = config.number("v_head_dim");
  } else {
    if (shape.num_q_heads == 0) fail(ErrorCode::kInvalidFile, "{}: no attention heads", name);
    shape.head_dim = config.number_or("head_dim", shape.model_dim / shape.num_q_heads);
    shape.value_head_dim = shape.head_dim;
  }
  shape.linear = {
      config.number_or("linear_num_key_heads", 0), config.number_or("linear_num_value_heads", 0),
      config.number_or("linear_key_head_dim", 0), config.number_or("linear_value_head_dim", 0),
      config.number_or("linear_conv_kernel_dim", 0)};
  const int64_t num_layers = config.number("num_hidden_layers");
  if (num_layers < 1 || num_layers > kMostLayers) {
    fail(ErrorCode::kInvalidFile, "{}: num_hidden_layers must be between 1 and {}, got {}", name,
         kMostLayers, num_layers);
  }
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    shape.layers.push_back(
        {attention_of_layer(config, layer),
         is_mixture_layer(config, shape.mixture, layer) ? MlpKind::kMixture : MlpKind::kDense});
  }
  check_model_shape(shape);
  return shape;
}

std::vector<std::string> known_model_names() {
  const Json models = Json::parse(embedded_models());
  std::vector<std::string> names;
  for (const auto& [name, config] : models.items()) names.push_back(name);
  return names;
}

ModelShape model_shape_by_name(std::string_view wanted) {
  const Json models = Json::parse(embedded_models());
  std::string names;
  for (const auto& [name, config] : models.items()) {
    if (lowered(name) == lowered(wanted)) return model_shape_from_config(config.dump(), name);
    names += (names.empty() ? "" : ", ") + name;
  }
  fail(ErrorCode::kInvalidArgument, "no model '{}' in the table; there are {}", wanted, names);
}

}  // namespace fovea::worth
