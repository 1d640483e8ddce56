#include "fovea/model_io/tensor_names.h"

#include <fmt/format.h>

#include <utility>

#include "fovea/model_io/quantized.h"

namespace fovea {
namespace {

struct Names {
  const char* ours;
  const char* gguf;
  const char* safetensors;
};

constexpr Names kTokenEmbedding = {"token_embedding", "token_embd.weight",
                                   "model.embed_tokens.weight"};
constexpr Names kOutputNorm = {"output_norm", "output_norm.weight", "model.norm.weight"};
constexpr Names kOutput = {"output", "output.weight", "lm_head.weight"};

constexpr Names kAttentionNorm = {"attention_norm", "attn_norm.weight", "input_layernorm.weight"};
constexpr Names kQ = {"q", "attn_q.weight", "self_attn.q_proj.weight"};
constexpr Names kK = {"k", "attn_k.weight", "self_attn.k_proj.weight"};
constexpr Names kV = {"v", "attn_v.weight", "self_attn.v_proj.weight"};
constexpr Names kO = {"o", "attn_output.weight", "self_attn.o_proj.weight"};
constexpr Names kQBias = {"q_bias", "attn_q.bias", "self_attn.q_proj.bias"};
constexpr Names kKBias = {"k_bias", "attn_k.bias", "self_attn.k_proj.bias"};
constexpr Names kVBias = {"v_bias", "attn_v.bias", "self_attn.v_proj.bias"};
constexpr Names kQNorm = {"q_norm", "attn_q_norm.weight", "self_attn.q_norm.weight"};
constexpr Names kKNorm = {"k_norm", "attn_k_norm.weight", "self_attn.k_norm.weight"};
constexpr Names kGate = {"gate", "ffn_gate.weight", "mlp.gate_proj.weight"};
constexpr Names kUp = {"up", "ffn_up.weight", "mlp.up_proj.weight"};
constexpr Names kDown = {"down", "ffn_down.weight", "mlp.down_proj.weight"};
// Hugging Face's post_attention_layernorm is the norm before the mlp, except in Gemma.
constexpr Names kMlpNorm = {"mlp_norm", "ffn_norm.weight", "post_attention_layernorm.weight"};
constexpr Names kPostAttentionNorm = {"post_attention_norm", "post_attention_norm.weight",
                                      "post_attention_layernorm.weight"};
constexpr Names kGemmaMlpNorm = {"mlp_norm", "ffn_norm.weight", "pre_feedforward_layernorm.weight"};
constexpr Names kPostMlpNorm = {"post_mlp_norm", "post_ffw_norm.weight",
                                "post_feedforward_layernorm.weight"};

// GGUF has the matrices of all experts in one tensor.
constexpr Names kRouter = {"router", "ffn_gate_inp.weight", "mlp.gate.weight"};
constexpr Names kExpertGate = {"gate", "ffn_gate_exps.weight", "gate_proj.weight"};
constexpr Names kExpertUp = {"up", "ffn_up_exps.weight", "up_proj.weight"};
constexpr Names kExpertDown = {"down", "ffn_down_exps.weight", "down_proj.weight"};

constexpr Names kSinks = {"sinks", "attn_sinks.weight", "self_attn.sinks"};
constexpr Names kOBias = {"o_bias", "attn_output.bias", "self_attn.o_proj.bias"};
constexpr Names kGptOssMlpNorm = {"mlp_norm", "post_attention_norm.weight",
                                  "post_attention_layernorm.weight"};
constexpr Names kGptOssRouter = {"router", "ffn_gate_inp.weight", "mlp.router.weight"};
constexpr Names kRouterBias = {"router_bias", "ffn_gate_inp.bias", "mlp.router.bias"};
// Safetensors have gates and ups in turn.
constexpr Names kGptOssGate = {"gate", "ffn_gate_exps", "gate_up_proj"};
constexpr Names kGptOssUp = {"up", "ffn_up_exps", "gate_up_proj"};
constexpr Names kGptOssDown = {"down", "ffn_down_exps", "down_proj"};

class Collector {
 public:
  explicit Collector(FileFormat format) : gguf_(format == FileFormat::kGguf) {}

  ExpectedTensor& add(const Names& names, std::vector<int64_t> shape) {
    ExpectedTensor& tensor = tensors.emplace_back();
    const char* file_name = gguf_ ? names.gguf : names.safetensors;
    tensor.name = ours_prefix_ + names.ours;
    tensor.file_name = file_prefix_ + file_name;
    tensor.shape = std::move(shape);
    return tensor;
  }
  void add_norm(const Names& names, int64_t size) { add(names, {size}).is_norm = true; }
  void add_expert(const Names& names, int64_t expert, int64_t num_experts,
                  std::vector<int64_t> shape) {
    ExpectedTensor& tensor = tensors.emplace_back();
    tensor.name = fmt::format("{}experts.{}.{}", ours_prefix_, expert, names.ours);
    tensor.file_name =
        gguf_ ? file_prefix_ + names.gguf
              : fmt::format("{}mlp.experts.{}.{}", file_prefix_, expert, names.safetensors);
    tensor.shape = std::move(shape);
    if (!gguf_) return;
    tensor.part = expert;
    tensor.num_parts = num_experts;
  }
  /// A matrix of gpt-oss and its bias, whose files keep those of all experts in one tensor each.
  void add_gpt_oss_expert(const Names& names, int64_t expert, int64_t num_experts,
                          std::vector<int64_t> shape, int64_t row_step, int64_t first_row) {
    const std::string of_file =
        gguf_ ? file_prefix_ + names.gguf : file_prefix_ + "mlp.experts." + names.safetensors;
    for (const bool is_bias : {false, true}) {
      ExpectedTensor& tensor = tensors.emplace_back();
      tensor.name = fmt::format("{}experts.{}.{}{}", ours_prefix_, expert, names.ours,
                                is_bias ? "_bias" : "");
      tensor.part = expert;
      tensor.num_parts = num_experts;
      tensor.shape = is_bias ? std::vector<int64_t>{shape[0]} : shape;
      if (gguf_) {
        tensor.file_name = of_file + (is_bias ? ".bias" : ".weight");
        continue;
      }
      tensor.row_step = row_step;
      tensor.first_row = first_row;
      tensor.file_name = of_file + (is_bias ? "_bias" : "_blocks");
      if (!is_bias) tensor.exponents_name = of_file + "_scales";
    }
  }
  void enter_layer(int64_t layer) {
    ours_prefix_ = fmt::format("layers.{}.", layer);
    file_prefix_ = gguf_ ? fmt::format("blk.{}.", layer) : fmt::format("model.layers.{}.", layer);
  }

  std::vector<ExpectedTensor> tensors;

 private:
  bool gguf_;
  std::string ours_prefix_;
  std::string file_prefix_;
};

void add_gpt_oss_mixture(const ModelConfig& config, Collector& all) {
  const int64_t num_experts = config.num_experts, width = config.expert_dim;
  all.add(kGptOssRouter, {num_experts, config.model_dim});
  all.add(kRouterBias, {num_experts});
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    all.add_gpt_oss_expert(kGptOssGate, expert, num_experts, {width, config.model_dim}, 2, 0);
    all.add_gpt_oss_expert(kGptOssUp, expert, num_experts, {width, config.model_dim}, 2, 1);
    all.add_gpt_oss_expert(kGptOssDown, expert, num_experts, {config.model_dim, width}, 1, 0);
  }
}

}  // namespace

std::vector<int64_t> file_shape(const ExpectedTensor& tensor) {
  std::vector<int64_t> shape = tensor.shape;
  shape[0] *= tensor.row_step;
  if (!tensor.exponents_name.empty()) {
    shape.back() /= kMxFp4Group;
    shape.push_back(kMxFp4Group / 2);
  }
  if (tensor.num_parts > 1) shape.insert(shape.begin(), tensor.num_parts);
  return shape;
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, FileFormat format) {
  Collector all(format);
  const int64_t model_dim = config.model_dim;
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  const bool gpt_oss = config.architecture == Architecture::kGptOss;
  all.add(kTokenEmbedding, {config.vocab_size, model_dim});
  all.add_norm(kOutputNorm, model_dim);
  if (!config.tied_embeddings) all.add(kOutput, {config.vocab_size, model_dim});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    all.enter_layer(layer);
    all.add_norm(kAttentionNorm, model_dim);
    all.add(kQ, {q_dim, model_dim}).rope_heads = config.num_q_heads;
    all.add(kK, {kv_dim, model_dim}).rope_heads = config.num_kv_heads;
    all.add(kV, {kv_dim, model_dim});
    all.add(kO, {model_dim, q_dim});
    if (config.qkv_bias) {
      all.add(kQBias, {q_dim}).rope_heads = config.num_q_heads;
      all.add(kKBias, {kv_dim}).rope_heads = config.num_kv_heads;
      all.add(kVBias, {kv_dim});
    }
    if (config.output_bias) all.add(kOBias, {model_dim});
    if (config.attention_sinks) all.add(kSinks, {config.num_q_heads});
    if (config.qk_norm) {
      all.add_norm(kQNorm, config.head_dim);
      all.add_norm(kKNorm, config.head_dim);
    }
    if (config.post_norms) {
      all.add_norm(kPostAttentionNorm, model_dim);
      all.add_norm(kGemmaMlpNorm, model_dim);
      all.add_norm(kPostMlpNorm, model_dim);
    } else {
      all.add_norm(gpt_oss ? kGptOssMlpNorm : kMlpNorm, model_dim);
    }
    if (gpt_oss) {
      add_gpt_oss_mixture(config, all);
      continue;
    }
    if (config.num_experts > 0) {
      all.add(kRouter, {config.num_experts, model_dim});
      for (int64_t expert = 0; expert < config.num_experts; ++expert) {
        all.add_expert(kExpertGate, expert, config.num_experts, {config.expert_dim, model_dim});
        all.add_expert(kExpertUp, expert, config.num_experts, {config.expert_dim, model_dim});
        all.add_expert(kExpertDown, expert, config.num_experts, {model_dim, config.expert_dim});
      }
      continue;
    }
    all.add(kGate, {config.mlp_dim, model_dim});
    all.add(kUp, {config.mlp_dim, model_dim});
    all.add(kDown, {model_dim, config.mlp_dim});
  }
  return std::move(all.tensors);
}

}  // namespace fovea
