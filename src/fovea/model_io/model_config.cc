#include "fovea/model_io/model_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "fovea/base/error.h"

namespace fovea {
namespace {

void check_range(const std::string& name, const char* what, int64_t value, int64_t most) {
  if (value < 1 || value > most) {
    fail(ErrorCode::kInvalidFile, "'{}': {} must be in [1, {}], is {}", name, what, most, value);
  }
}

void check_positive(const std::string& name, const char* what, double value, double most) {
  if (!(value > 0.0 && value <= most)) {
    fail(ErrorCode::kInvalidFile, "'{}': {} must be in (0, {}], is {}", name, what, most, value);
  }
}

}  // namespace

std::string_view architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kQwen3Moe:
      return "qwen3moe";
    case Architecture::kGemma3:
      return "gemma3";
    case Architecture::kGptOss:
      return "gpt-oss";
  }
  return "unknown";
}

void set_gpt_oss(ModelConfig& config) {
  config.activation = Activation::kClampedSwiglu;
  config.qkv_bias = config.output_bias = config.expert_bias = true;
  config.attention_sinks = true;
  config.normalise_experts = true;
  config.scales_local_rope = true;
}

void check_sizes(const ModelConfig& config, const std::string& name) {
  // Far above every published model, far below where a product of a few of them leaves 64 bits.
  check_range(name, "number of layers", config.num_layers, 1024);
  check_range(name, "model_dim", config.model_dim, 1 << 18);
  check_range(name, "number of query heads", config.num_q_heads, 1024);
  check_range(name, "number of key-value heads", config.num_kv_heads, 1024);
  check_range(name, "head_dim", config.head_dim, 1024);
  if (config.num_experts == 0) {
    check_range(name, "mlp_dim", config.mlp_dim, 1 << 20);
  } else {
    check_range(name, "num_experts", config.num_experts, 1 << 12);
    check_range(name, "experts_per_token", config.experts_per_token, config.num_experts);
    check_range(name, "expert_dim", config.expert_dim, 1 << 20);
  }
  check_range(name, "vocab_size", config.vocab_size, 1 << 24);
  check_range(name, "context_length", config.context_length, 1 << 30);
  if (config.num_q_heads % config.num_kv_heads != 0) {
    fail(ErrorCode::kInvalidFile, "'{}': {} query heads do not divide among {} key-value heads",
         name, config.num_q_heads, config.num_kv_heads);
  }
  if (config.head_dim % 2 != 0) {
    fail(ErrorCode::kInvalidFile, "'{}': head_dim must be even, is {}", name, config.head_dim);
  }
}

void check_config(const ModelConfig& config, const std::string& name) {
  check_sizes(config, name);
  check_positive(name, "rope theta", config.rope_theta, 1e15);
  check_positive(name, "local rope theta", config.rope_theta_local, 1e15);
  check_positive(name, "rms epsilon", config.rms_eps, 1.0);
  check_positive(name, "softmax scale", config.softmax_scale, 1e3);
  check_positive(name, "embedding scale", config.embedding_scale, 1e6);
  if (!config.rope_factors.empty() &&
      static_cast<int64_t>(config.rope_factors.size()) != config.head_dim / 2) {
    fail(ErrorCode::kInvalidFile, "'{}': {} rope factors, head_dim {} needs {}", name,
         config.rope_factors.size(), config.head_dim, config.head_dim / 2);
  }
  for (const float factor : config.rope_factors) check_positive(name, "rope factor", factor, 1e6);
  if (config.mxfp4_experts && (config.model_dim % 32 != 0 || config.expert_dim % 32 != 0)) {
    fail(ErrorCode::kInvalidFile,
         "'{}': model_dim and expert_dim must be multiples of 32 for MXFP4, are {} and {}", name,
         config.model_dim, config.expert_dim);
  }
  if (!config.local_layers.empty()) {
    check_range(name, "sliding window", config.sliding_window, 1 << 30);
  }
  const auto check_id = [&](const char* what, int32_t id) {
    if (id < 0 || id >= config.vocab_size) {
      fail(ErrorCode::kInvalidFile, "'{}': {} {} is outside the vocabulary of {}", name, what, id,
           config.vocab_size);
    }
  };
  if (config.bos_id) check_id("begin-of-text id", *config.bos_id);
  for (const int32_t id : config.eos_ids) check_id("end-of-text id", id);
}

std::vector<float> llama3_rope_factors(int64_t head_dim, double theta, double factor,
                                       double low_freq_factor, double high_freq_factor,
                                       int64_t original_context_length) {
  std::vector<float> factors;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
    const double wavelength = 2.0 * std::numbers::pi * std::pow(theta, exponent);
    const double turns = static_cast<double>(original_context_length) / wavelength;
    double divisor = 1.0;
    if (turns < low_freq_factor) {
      divisor = factor;
    } else if (turns < high_freq_factor) {
      const double smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
      divisor = 1.0 / ((1.0 - smooth) / factor + smooth);
    }
    factors.push_back(static_cast<float>(divisor));
  }
  return factors;
}

void check_yarn(const YarnScaling& scaling, const std::string& name) {
  check_positive(name, "rope scaling factor", scaling.factor, 1e6);
  check_positive(name, "beta_fast", scaling.beta_fast, 1e6);
  check_positive(name, "beta_slow", scaling.beta_slow, 1e6);
  check_range(name, "original context length", scaling.original_context_length, 1 << 30);
}

std::vector<float> yarn_rope_factors(int64_t head_dim, double theta, const YarnScaling& scaling) {
  const auto dim = static_cast<double>(head_dim);
  // The pair, a real number, that turns `turns` times over the original context.
  const auto pair_of = [&](double turns) {
    const double length = static_cast<double>(scaling.original_context_length);
    return dim * std::log(length / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
  };
  double low = pair_of(scaling.beta_fast);
  double high = pair_of(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  std::vector<float> factors;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    factors.push_back(static_cast<float>(1.0 / (stretched / scaling.factor + (1.0 - stretched))));
  }
  return factors;
}

double yarn_attention_factor(double factor) {
  return factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0;
}

}  // namespace fovea
