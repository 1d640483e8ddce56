// ModelConfig out of a Hugging Face config.json.
#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/base/error.h"
#include "fovea/base/json_file.h"
#include "fovea/base/shown.h"
#include "fovea/model_io/model_config.h"

namespace fovea {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;

[[noreturn]] void fail_unsupported(const JsonObject& object, std::string_view what) {
  fail(ErrorCode::kUnsupported, "'{}': {} is not supported", object.name(), what);
}

Architecture find_architecture(const JsonObject& object) {
  const auto type = object.find_string("model_type");
  if (!type) fail(ErrorCode::kInvalidFile, "'{}': 'model_type' is missing", object.name());
  if (*type == "llama" || *type == "mistral") return Architecture::kLlama;
  if (*type == "qwen2") return Architecture::kQwen2;
  if (*type == "qwen3") return Architecture::kQwen3;
  if (*type == "qwen3_moe") return Architecture::kQwen3Moe;
  if (*type == "gemma3_text") return Architecture::kGemma3;
  if (*type == "gpt_oss") return Architecture::kGptOss;
  fail(ErrorCode::kUnsupported,
       "'{}': architecture '{}' is not supported (llama, mistral, qwen2, qwen3, qwen3_moe, "
       "gemma3_text and gpt_oss are)",
       object.name(), shown(*type));
}

Activation find_activation(const JsonObject& object, const ModelConfig& config) {
  auto name = object.find_string("hidden_activation");  // Gemma's key, which wins there
  if (!name) name = object.find_string("hidden_act");
  if (!name) name = config.architecture == Architecture::kGemma3 ? "gelu_pytorch_tanh" : "silu";
  if (config.architecture == Architecture::kGptOss) {
    for (const auto& [key, value] : {std::pair("swiglu_alpha", 1.702), {"swiglu_limit", 7.0}}) {
      if (object.find_float(key).value_or(value) != value) {
        fail_unsupported(object, fmt::format("a {} other than {}", key, value));
      }
    }
  }
  if (*name == "silu") return Activation::kSilu;
  if (*name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  fail_unsupported(object, fmt::format("activation '{}'", shown(*name)));
}

// Ids are an integer or a list of integers.
std::vector<int32_t> find_token_ids(const JsonObject& object, const char* key) {
  std::vector<int32_t> ids;
  const json* value = object.find(key);
  if (value == nullptr) return ids;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_unsigned() ||
        id.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
      fail(ErrorCode::kInvalidFile, "'{}': '{}' must be a token id or a list of them",
           object.name(), key);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// Returns what YaRN multiplies q and k by, each.
double read_yarn(const JsonObject& object, double factor, ModelConfig& config) {
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    if (object.find(key) != nullptr) fail_unsupported(object, fmt::format("yarn's {}", key));
  }
  YarnScaling scaling;
  scaling.factor = factor;
  scaling.beta_fast = object.find_float("beta_fast").value_or(scaling.beta_fast);
  scaling.beta_slow = object.find_float("beta_slow").value_or(scaling.beta_slow);
  scaling.original_context_length =
      object.find_int("original_max_position_embeddings").value_or(config.context_length);
  scaling.truncate = object.find_bool("truncate").value_or(true);
  check_yarn(scaling, object.name());
  config.rope_factors = yarn_rope_factors(config.head_dim, config.rope_theta, scaling);
  return object.find_float("attention_factor").value_or(yarn_attention_factor(factor));
}

// `scaling` is a rope_scaling or rope_parameters object. Returns what it multiplies q and k by,
// each.
double read_rope_scaling(const JsonObject& scaling, ModelConfig& config) {
  auto type = scaling.find_string("rope_type");
  if (!type) type = scaling.find_string("type");
  if (!type || *type == "default") return 1.0;
  const double factor = scaling.find_float("factor").value_or(1.0);
  if (*type == "linear") {
    config.rope_factors.assign(static_cast<size_t>(config.head_dim / 2),
                               static_cast<float>(factor));
  } else if (*type == "llama3") {
    config.rope_factors =
        llama3_rope_factors(config.head_dim, config.rope_theta, factor,
                            scaling.find_float("low_freq_factor").value_or(1.0),
                            scaling.find_float("high_freq_factor").value_or(4.0),
                            scaling.find_int("original_max_position_embeddings").value_or(8192));
  } else if (*type == "yarn") {
    return read_yarn(scaling, factor, config);
  } else {
    fail_unsupported(scaling, fmt::format("rope scaling '{}'", shown(*type)));
  }
  return 1.0;
}

// Returns what scaling multiplies q and k by, each.
double read_rope(const JsonObject& object, ModelConfig& config) {
  double multiplier = 1.0;
  const bool gemma = config.architecture == Architecture::kGemma3;
  config.rope_theta = object.find_float("rope_theta").value_or(gemma ? 1e6 : 10000.0);
  if (object.find_float("partial_rotary_factor").value_or(1.0) != 1.0) {
    fail_unsupported(object, "a partial_rotary_factor other than 1");
  }
  if (const json* scaling = object.find("rope_scaling")) {
    multiplier = read_rope_scaling(JsonObject(*scaling, object.name()), config);
  }
  config.rope_theta_local =
      object.find_float("rope_local_base_freq").value_or(gemma ? 10000.0 : config.rope_theta);
  const json* parameters_json = object.find("rope_parameters");  // the newer spelling of all above
  if (parameters_json == nullptr) return multiplier;
  const JsonObject parameters(*parameters_json, object.name());
  const json* by_layer_type = parameters.find("full_attention");
  const JsonObject global(by_layer_type ? *by_layer_type : *parameters_json, object.name());
  config.rope_theta = global.find_float("rope_theta").value_or(config.rope_theta);
  if (!gemma) config.rope_theta_local = config.rope_theta;
  if (const json* local_json = parameters.find("sliding_attention")) {
    const JsonObject local(*local_json, object.name());
    config.rope_theta_local = local.find_float("rope_theta").value_or(config.rope_theta_local);
    const std::string type = local.find_string("rope_type").value_or("default");
    if (type != "default") {
      fail_unsupported(object, fmt::format("rope scaling '{}' of local layers", shown(type)));
    }
  }
  return multiplier * read_rope_scaling(global, config);
}

void read_local_layers(const JsonObject& object, ModelConfig& config) {
  const bool qwen =
      config.architecture == Architecture::kQwen2 ||
      config.architecture == Architecture::kQwen3Moe ||
      config.architecture == Architecture::kQwen3;  // its window is off unless asked for
  if (!object.find_bool("use_sliding_window").value_or(!qwen)) return;
  config.sliding_window = object.find_int("sliding_window").value_or(0);
  if (config.sliding_window == 0) return;
  const auto num_layers = static_cast<size_t>(config.num_layers);
  if (const json* types = object.find("layer_types")) {
    if (!types->is_array() || types->size() != num_layers) {
      fail(ErrorCode::kInvalidFile, "'{}': 'layer_types' must list {} layers", object.name(),
           num_layers);
    }
    for (const json& type : *types) {
      const std::string name = type.is_string() ? type.get<std::string>() : "";
      if (name != "sliding_attention" && name != "full_attention") {
        fail_unsupported(object, fmt::format("layer type '{}'", shown(name)));
      }
      config.local_layers.push_back(name == "sliding_attention");
    }
    return;
  }
  config.local_layers.assign(num_layers, true);
  if (config.architecture == Architecture::kGemma3) {
    const int64_t period = object.find_int("sliding_window_pattern").value_or(6);
    if (period < 1) {
      fail(ErrorCode::kInvalidFile, "'{}': 'sliding_window_pattern' must be at least 1, is {}",
           object.name(), period);
    }
    for (size_t i = 0; i < num_layers; ++i) {
      config.local_layers[i] = (static_cast<int64_t>(i) + 1) % period != 0;
    }
  } else if (const auto first_local = object.find_int("max_window_layers")) {
    for (size_t i = 0; i < num_layers; ++i) {
      config.local_layers[i] = static_cast<int64_t>(i) >= *first_local;
    }
  }
}

void read_experts(const JsonObject& object, ModelConfig& config) {
  const bool gpt_oss = config.architecture == Architecture::kGptOss;
  const auto newer = object.find_int("num_local_experts");
  config.num_experts = newer ? *newer : object.get_int("num_experts");
  config.experts_per_token = object.get_int("num_experts_per_tok");
  config.expert_dim = object.get_int(gpt_oss ? "intermediate_size" : "moe_intermediate_size");
  config.normalise_experts = object.find_bool("norm_topk_prob").value_or(false);
  if (config.num_experts == 0) {
    fail(ErrorCode::kInvalidFile, "'{}': 'num_experts' must be at least 1, is 0", object.name());
  }
  const json* plain_layers = object.find("mlp_only_layers");
  const bool all_mixed = plain_layers == nullptr || *plain_layers == json::array();
  if (!all_mixed || object.find_int("decoder_sparse_step").value_or(1) != 1) {
    fail_unsupported(object, "a mixture of experts in some layers only");
  }
}

void check_quantization(const JsonObject& object, const ModelConfig& config) {
  const bool gpt_oss = config.architecture == Architecture::kGptOss;
  const json* found = object.find("quantization_config");
  std::string method = "none";
  if (found != nullptr) {
    method = JsonObject(*found, object.name()).find_string("quant_method").value_or("unknown");
  }
  if (method == (gpt_oss ? "mxfp4" : "none")) return;
  if (gpt_oss) fail_unsupported(object, "gpt_oss without experts in MXFP4");
  if (method != "fp8") fail_unsupported(object, fmt::format("quantization '{}'", shown(method)));
  const json* tile = JsonObject(*found, object.name()).find("weight_block_size");
  if (tile == nullptr || *tile != json::array({128, 128})) {
    fail_unsupported(object, "FP8 without scales of 128 x 128 weights");
  }
}

void refuse_what_we_do_not_run(const JsonObject& object, const ModelConfig& config) {
  check_quantization(object, config);
  for (const char* key : {"mlp_bias", "use_bidirectional_attention"}) {
    if (object.find_bool(key).value_or(false)) fail_unsupported(object, key);
  }
  const bool has_bias =
      config.architecture == Architecture::kQwen2 || config.architecture == Architecture::kGptOss;
  if (object.find_bool("attention_bias").value_or(has_bias) != has_bias) {
    fail_unsupported(object, has_bias ? "no attention_bias" : "attention_bias");
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (object.find_float(key).value_or(0.0) != 0.0) fail_unsupported(object, key);
  }
}

}  // namespace

ModelConfig config_from_json(std::string_view text, const std::string& name) {
  const json root = parse_json_object(text, name, kMaxDepth);
  const JsonObject object(root, name);
  ModelConfig config;
  config.architecture = find_architecture(object);
  const bool gemma = config.architecture == Architecture::kGemma3;
  const bool gpt_oss = config.architecture == Architecture::kGptOss;
  const bool has_qk_norm = gemma || config.architecture == Architecture::kQwen3 ||
                           config.architecture == Architecture::kQwen3Moe;
  config.num_layers = object.get_int("num_hidden_layers");
  config.model_dim = object.get_int("hidden_size");
  config.num_q_heads = object.get_int("num_attention_heads");
  config.num_kv_heads = object.find_int("num_key_value_heads").value_or(config.num_q_heads);
  config.mlp_dim = object.get_int("intermediate_size");
  config.vocab_size = object.get_int("vocab_size");
  config.context_length = object.get_int("max_position_embeddings");
  config.rms_eps = object.find_float("rms_norm_eps").value_or(1e-6);
  if (const auto head_dim = object.find_int("head_dim")) {
    config.head_dim = *head_dim;
  } else {
    if (gemma || has_qk_norm) {  // their default is no division
      fail(ErrorCode::kInvalidFile, "'{}': 'head_dim' is missing", name);
    }
    if (config.num_q_heads < 1 || config.model_dim % config.num_q_heads != 0) {
      fail(ErrorCode::kInvalidFile, "'{}': hidden_size {} does not divide among {} heads", name,
           config.model_dim, config.num_q_heads);
    }
    config.head_dim = config.model_dim / config.num_q_heads;
  }
  if (config.architecture == Architecture::kQwen3Moe || gpt_oss) read_experts(object, config);
  check_sizes(config, name);

  refuse_what_we_do_not_run(object, config);
  const double multiplier = read_rope(object, config);
  read_local_layers(object, config);
  config.activation = find_activation(object, config);
  const double scaled_dim =
      object.find_float("query_pre_attn_scalar").value_or(static_cast<double>(config.head_dim));
  if (scaled_dim > 0.0) config.softmax_scale = multiplier * multiplier / std::sqrt(scaled_dim);
  if (gemma) config.embedding_scale = std::sqrt(static_cast<double>(config.model_dim));
  config.post_norms = gemma;
  config.qkv_bias = config.architecture == Architecture::kQwen2;
  config.mxfp4_experts = gpt_oss;
  if (gpt_oss) set_gpt_oss(config);
  config.qk_norm = has_qk_norm;
  config.tied_embeddings = object.find_bool("tie_word_embeddings").value_or(gemma);

  const std::vector<int32_t> bos_ids = find_token_ids(object, "bos_token_id");
  if (!bos_ids.empty()) config.bos_id = bos_ids[0];
  config.eos_ids = find_token_ids(object, "eos_token_id");
  check_config(config, name);
  return config;
}

void add_generation_config(std::string_view text, const std::string& name, ModelConfig& config) {
  const json root = parse_json_object(text, name, kMaxDepth);
  for (const int32_t id : find_token_ids(JsonObject(root, name), "eos_token_id")) {
    if (std::find(config.eos_ids.begin(), config.eos_ids.end(), id) == config.eos_ids.end()) {
      config.eos_ids.push_back(id);
    }
  }
  check_config(config, name);
}

}  // namespace fovea
