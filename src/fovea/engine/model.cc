#include "fovea/engine/model.h"

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/base/parallel.h"
#include "fovea/engine/memory.h"
#include "fovea/engine/synthetic.h"
#include "fovea/engine/weights.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tokenizer/tokenizer.h"
#include "fovea/tokenizer/tokenizer_json.h"

namespace fovea {
namespace {

TokenizerData gguf_tokenizer_data(const Gguf& gguf) {
  const auto text = [&](std::string_view key) { return gguf.find_string(key).value_or(""); };
  const std::vector<float> scores =
      gguf.find_floats("tokenizer.ggml.scores").value_or(std::vector<float>{});
  const std::vector<int32_t> types =
      gguf.find_ints("tokenizer.ggml.token_type").value_or(std::vector<int32_t>{});
  GgufTokenizerFields fields;
  fields.model = text("tokenizer.ggml.model");
  fields.pre = text("tokenizer.ggml.pre");
  fields.tokens =
      gguf.find_strings("tokenizer.ggml.tokens").value_or(std::span<const std::string_view>{});
  fields.scores = scores;
  fields.token_type = types;
  fields.merges =
      gguf.find_strings("tokenizer.ggml.merges").value_or(std::span<const std::string_view>{});
  fields.add_bos_token = gguf.find_bool("tokenizer.ggml.add_bos_token");
  fields.add_space_prefix = gguf.find_bool("tokenizer.ggml.add_space_prefix");
  fields.bos_token_id = gguf.find_int("tokenizer.ggml.bos_token_id");
  fields.eos_token_id = gguf.find_int("tokenizer.ggml.eos_token_id");
  fields.unknown_token_id = gguf.find_int("tokenizer.ggml.unknown_token_id");
  fields.padding_token_id = gguf.find_int("tokenizer.ggml.padding_token_id");
  fields.chat_template = text("tokenizer.chat_template");
  return tokenizer_data_from_gguf(fields);
}

DType resolve_compute_type(ComputeType compute, Device device) {
  if (device.type == DeviceType::kCuda) {
    if (compute == ComputeType::kF32) {
      fail(ErrorCode::kUnsupported, "a GPU computes in bf16, not in f32; use bf16 or auto");
    }
    return DType::kBF16;
  }
  if (compute == ComputeType::kF32) return DType::kF32;
  if (matmul_is_native(DType::kBF16)) return DType::kBF16;
  if (compute == ComputeType::kBF16) {
    fail(ErrorCode::kUnsupported,
         "bf16 needs a processor with AVX512-BF16 or AMX-BF16; use f32 or auto");
  }
  return DType::kF32;
}

/// Type of the layers' matrices.
DType stored_type(const Model& model, const ModelOptions& options) {
  if (!options.f8_weights) return model.compute_dtype();
  if (model.context().device.type == DeviceType::kCpu) {
    fail(ErrorCode::kUnsupported, "weights in f8e4m3 need a GPU");
  }
  return DType::kF8E4M3;
}

}  // namespace

Model::Model() = default;
Model::~Model() = default;

/// A model of which only device and type are settled.
std::shared_ptr<Model> Model::prepare(const std::string& path, const ModelOptions& options) {
  check_usable(options.device);
  check_argument(options.num_threads >= 0, "num_threads must not be negative, got {}",
                 options.num_threads);
  std::shared_ptr<Model> model(new Model());
  model->path_ = path;
  model->context_.device = options.device;
  model->context_.num_threads = options.num_threads;
  model->context_.num_threads = resolve_num_threads(model->context_);
  model->compute_dtype_ = resolve_compute_type(options.compute, options.device);
  return model;
}

void Model::check_room(DType weight_dtype) const {
  const bool is_wide = compute_dtype_ == DType::kF32 && matmul_is_native(DType::kBF16);
  check_memory(estimate_loading_bytes(*config_, compute_dtype_, weight_dtype, context_.device),
               fmt::format("{} in {}", path_, dtype_name(weight_dtype)),
               is_wide ? "bf16 or a smaller model" : "a smaller model", context_.device);
}

std::shared_ptr<const Model> Model::load(const std::string& path, const ModelOptions& options) {
  const std::shared_ptr<Model> model = prepare(path, options);
  ModelFile file = ModelFile::open(path);
  model->config_ = std::make_unique<ModelConfig>(file.config());
  model->tokenizer_ =
      std::make_unique<Tokenizer>(file.gguf() != nullptr ? gguf_tokenizer_data(*file.gguf())
                                                         : read_tokenizer_json(file.folder()));
  check_argument(model->tokenizer_->vocab_size() <= model->config_->vocab_size,
                 "{}: the tokenizer has {} tokens, the model {}", path,
                 model->tokenizer_->vocab_size(), model->config_->vocab_size);
  const DType weight_dtype = stored_type(*model, options);
  model->check_room(weight_dtype);
  model->weights_ = std::make_unique<Weights>(load_weights(
      std::move(file), model->compute_dtype_, weight_dtype, model->context_, options.progress));
  return model;
}

std::shared_ptr<const Model> Model::synthetic(const std::string& name, uint64_t seed,
                                              const ModelOptions& options) {
  const ModelConfig config = synthetic_config(name);
  const std::shared_ptr<Model> model = prepare("synthetic " + name, options);
  model->config_ = std::make_unique<ModelConfig>(config);
  model->tokenizer_ = std::make_unique<Tokenizer>(byte_tokenizer_data());
  const DType weight_dtype = stored_type(*model, options);
  model->check_room(weight_dtype);
  model->weights_ = std::make_unique<Weights>(make_synthetic_weights(
      config, model->compute_dtype_, weight_dtype, model->context_, seed, options.progress));
  return model;
}

DType Model::weight_dtype() const { return weights_->layers.front().qkv.dtype(); }

int64_t Model::weight_bytes() const { return weights_->size_bytes(); }

int64_t Model::kv_bytes_per_token() const {
  return 2 * config_->num_layers * config_->num_kv_heads * config_->head_dim *
         dtype_bytes(compute_dtype_);
}

}  // namespace fovea
