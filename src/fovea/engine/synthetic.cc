#include "fovea/engine/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/fill_random.h"
#include "fovea/tokenizer/byte_alphabet.h"

namespace fovea {
namespace {

struct Shape {
  std::string_view name;
  Architecture architecture;
  int64_t num_layers, model_dim, num_q_heads, num_kv_heads, head_dim, mlp_dim, vocab_size;
  double rope_theta;
  bool tied_embeddings;
  int64_t num_experts = 0, experts_per_token = 0, expert_dim = 0;
  int64_t sliding_window = 0;  // of every other layer, from the first on
};

/// From the models' published configurations; context lengths are ours, so that long prompts can be
/// measured on every shape.
constexpr std::array<Shape, 10> kShapes = {{
    {"Test-1M", Architecture::kLlama, 2, 128, 2, 1, 64, 512, 2048, 1e4,
     false},  // nobody's: for tests
    {"SmolLM2-135M", Architecture::kLlama, 30, 576, 9, 3, 64, 1536, 49152, 1e5, true},
    {"Llama-3.1-8B", Architecture::kLlama, 32, 4096, 32, 8, 128, 14336, 128256, 5e5, false},
    {"Qwen2.5-7B", Architecture::kQwen2, 28, 3584, 28, 4, 128, 18944, 152064, 1e6, false},
    {"Test-MoE", Architecture::kQwen3Moe, 2, 128, 2, 1, 64, 0, 2048, 1e4, false, 8, 2, 128},
    {"Test-OSS", Architecture::kGptOss, 2, 128, 2, 1, 64, 0, 2048, 1e4, false, 8, 2, 96, 128},
    {"Test-D128", Architecture::kQwen3, 2, 256, 4, 1, 128, 512, 2048, 1e4, false},
    {"Qwen3-30B-A3B", Architecture::kQwen3Moe, 48, 2048, 32, 4, 128, 0, 151936, 1e6, false, 128, 8,
     768},
    {"gpt-oss-20b", Architecture::kGptOss, 24, 2880, 64, 8, 64, 0, 201088, 1.5e5, false, 32, 4,
     2880, 128},
    {"Qwen3-32B", Architecture::kQwen3, 64, 5120, 64, 8, 128, 25600, 151936, 1e6, false},
}};
constexpr int64_t kContextLength = int64_t{1} << 20;

/// Makes tensors one after the other; each continues the row of random numbers.
class RandomWeights {
 public:
  RandomWeights(DType dtype, const Context& context, uint64_t seed)
      : dtype_(dtype), context_(context), seed_(seed) {}

  PackedWeights matrix(int64_t out_features, int64_t in_features) {
    if (is_gpu()) return PackedWeights(on_gpu(out_features, in_features));
    PackedWeights weights(dtype_, out_features, in_features);
    for_each_row(out_features, in_features,
                 [&](int64_t row, const float* values) { weights.set_rows(row, 1, values); });
    return weights;
  }

  ExpertWeights experts(int64_t num_experts, int64_t out_features, int64_t in_features) {
    const int64_t num_rows = num_experts * out_features;
    if (is_gpu()) return {num_experts, on_gpu(num_rows, in_features)};
    ExpertWeights weights(dtype_, num_experts, out_features, in_features);
    for_each_row(num_rows, in_features, [&](int64_t row, const float* values) {
      weights.set_rows(row / out_features, row % out_features, 1, values);
    });
    return weights;
  }

  Tensor ones(int64_t count) const {
    const Tensor here(DType::kF32, {count});
    std::fill_n(here.as<float>(), count, 1.0f);
    Tensor there(DType::kF32, {count}, context_.device);
    copy_tensor(here.view(), there.view(), context_);
    return there;
  }

  Tensor zeros(int64_t count) const { return {DType::kF32, {count}, context_.device}; }
  Tensor zeros(int64_t rows, int64_t columns) const {
    return {DType::kF32, {rows, columns}, context_.device};
  }

  Tensor table(int64_t rows, int64_t dim) {
    Tensor tensor(dtype_, {rows, dim}, context_.device);
    fill(tensor.view(), 1.0f);
    return tensor;
  }

 private:
  bool is_gpu() const { return context_.device.type != DeviceType::kCpu; }
  static float bound_of(int64_t in_features) {
    return static_cast<float>(std::sqrt(3.0 / static_cast<double>(in_features)));
  }

  Tensor on_gpu(int64_t out_features, int64_t in_features) {
    Tensor tensor(dtype_, {out_features, in_features}, context_.device);
    fill(tensor.view(), bound_of(in_features));
    return tensor;
  }

  template <typename Body>
  void for_each_row(int64_t num_rows, int64_t in_features, Body body) {
    const Tensor row(DType::kF32, {in_features});
    for (int64_t i = 0; i < num_rows; ++i) {
      fill(row.view(), bound_of(in_features));
      body(i, row.as<float>());
    }
  }

  void fill(const TensorView& tensor, float bound) {
    fill_random(tensor, bound, seed_, next_, context_);
    next_ += static_cast<uint64_t>(tensor.num_elements());
  }

  DType dtype_;
  Context context_;
  uint64_t seed_;
  uint64_t next_ = 0;
};

}  // namespace

std::vector<std::string> synthetic_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

ModelConfig synthetic_config(std::string_view name) {
  const auto shape = std::find_if(kShapes.begin(), kShapes.end(),
                                  [&](const Shape& known) { return known.name == name; });
  if (shape == kShapes.end()) {
    std::string known;
    for (const Shape& each : kShapes)
      known += fmt::format("{}{}", known.empty() ? "" : ", ", each.name);
    fail(ErrorCode::kInvalidArgument, "there is no synthetic model \"{}\"; there are {}", name,
         known);
  }
  ModelConfig config;
  config.architecture = shape->architecture;
  config.num_layers = shape->num_layers;
  config.model_dim = shape->model_dim;
  config.num_q_heads = shape->num_q_heads;
  config.num_kv_heads = shape->num_kv_heads;
  config.head_dim = shape->head_dim;
  config.mlp_dim = shape->mlp_dim;
  config.vocab_size = shape->vocab_size;
  config.context_length = kContextLength;
  config.rope_theta = config.rope_theta_local = shape->rope_theta;
  config.softmax_scale = 1.0 / std::sqrt(static_cast<double>(shape->head_dim));
  config.qkv_bias = shape->architecture == Architecture::kQwen2;
  config.qk_norm =
      shape->architecture == Architecture::kQwen3 || shape->architecture == Architecture::kQwen3Moe;
  config.tied_embeddings = shape->tied_embeddings;
  config.num_experts = shape->num_experts;
  config.experts_per_token = shape->experts_per_token;
  config.expert_dim = shape->expert_dim;
  config.normalise_experts = shape->num_experts > 0;
  if (shape->sliding_window > 0) {
    config.sliding_window = shape->sliding_window;
    for (int64_t i = 0; i < shape->num_layers; ++i) config.local_layers.push_back(i % 2 == 0);
  }
  if (shape->architecture == Architecture::kGptOss) set_gpt_oss(config);
  check_config(config, std::string(name));
  return config;
}

Weights make_synthetic_weights(const ModelConfig& config, DType dtype, DType layer_dtype,
                               const Context& context, uint64_t seed,
                               const std::function<void(double)>& progress) {
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  RandomWeights random(dtype, context, seed);
  Weights weights;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    LayerWeights& layer = weights.layers.emplace_back();
    layer.attention_norm = random.ones(config.model_dim);
    layer.qkv = random.matrix(q_dim + 2 * kv_dim, config.model_dim);
    if (config.qkv_bias) layer.qkv_bias = random.zeros(q_dim + 2 * kv_dim);
    if (config.qk_norm) {
      layer.q_norm = random.ones(config.head_dim);
      layer.k_norm = random.ones(config.head_dim);
    }
    layer.attention_out = random.matrix(config.model_dim, q_dim);
    if (config.output_bias) layer.attention_out_bias = random.zeros(config.model_dim);
    if (config.attention_sinks) layer.sinks = random.zeros(config.num_q_heads);
    layer.mlp_norm = random.ones(config.model_dim);
    if (config.num_experts > 0) {
      layer.router = random.matrix(config.num_experts, config.model_dim);
      layer.experts_gate_up =
          random.experts(config.num_experts, 2 * config.expert_dim, config.model_dim);
      layer.experts_down = random.experts(config.num_experts, config.model_dim, config.expert_dim);
      if (config.expert_bias) {
        layer.router_bias = random.zeros(config.num_experts);
        layer.experts_gate_up_bias = random.zeros(config.num_experts, 2 * config.expert_dim);
        layer.experts_down_bias = random.zeros(config.num_experts, config.model_dim);
      }
    } else {
      layer.gate_up = random.matrix(2 * config.mlp_dim, config.model_dim);
      layer.down = random.matrix(config.model_dim, config.mlp_dim);
    }
    if (layer_dtype != dtype) quantize_matrices(layer, context);
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(config.num_layers));
  }
  weights.output_norm = random.ones(config.model_dim);
  weights.output = random.matrix(config.vocab_size, config.model_dim);
  weights.token_table = random.table(config.vocab_size, config.model_dim);
  weights.embedding = std::make_unique<TableEmbedding>(weights.token_table.view(),
                                                       static_cast<float>(config.embedding_scale));
  return weights;
}

TokenizerData byte_tokenizer_data() {
  TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(alphabet_from_byte(static_cast<uint8_t>(byte)));
    data.types.push_back(TokenType::kNormal);
  }
  return data;
}

}  // namespace fovea
