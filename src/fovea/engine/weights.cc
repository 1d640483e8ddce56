#include "fovea/engine/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/slices.h"

namespace fovea {
namespace {

/// What one thread sends to a GPU: rows wait in page-locked memory, one half of which is copied
/// while the other is filled.
class Upload {
 public:
  explicit Upload(Device device)
      : stream_(make_stream(device)), context_{device, 0, stream_.get()} {}

  /// Rounds f32 [rows, columns] to bf16 on their way into rows [first_row, ...) of `matrix`.
  void send(const float* values, int64_t rows, const TensorView& matrix, int64_t first_row) {
    const int64_t count = rows * matrix.shape[1];
    const int64_t bytes = count * dtype_bytes(DType::kBF16);
    if (bytes > half_bytes_) {
      finish();
      staging_ = make_staging(2 * bytes, context_.device);
      half_bytes_ = bytes;
    }
    auto* half = reinterpret_cast<BFloat16*>(static_cast<std::byte*>(staging_.get()) +
                                             (uses_second_ ? half_bytes_ : 0));
    std::transform(values, values + count, half, to_bfloat16);
    finish();  // the other half's, which this one did not wait for
    enqueue_copy(make_view(half, DType::kBF16, {rows, matrix.shape[1]}),
                 rows_of(matrix, first_row, rows), context_);
    uses_second_ = !uses_second_;
  }
  void finish() { synchronize(context_); }

 private:
  std::shared_ptr<void> stream_;
  Context context_;
  std::shared_ptr<void> staging_;
  int64_t half_bytes_ = 0;
  bool uses_second_ = false;
};

/// Copies tensors of a file into their packed places and keeps count for the progress.
class Loader {
 public:
  Loader(const ModelFile& file, const Context& context, const std::function<void(double)>& progress)
      : file_(file), context_(context), progress_(progress) {
    for (const auto& [name, tensor] : file.tensors()) total_bytes_ += bytes_of(tensor);
  }

  /// A norm or bias; empty when the model has none of that name.
  Tensor vector(const std::string& name) { return on_device(vector_on_cpu(name)); }

  Tensor vector_on_cpu(const std::string& name) {
    const ModelTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) return {};
    Tensor result(DType::kF32, {tensor->shape[0]});
    file_.read_f32(*tensor, {result.as<float>(), static_cast<size_t>(tensor->shape[0])});
    advance(*tensor);
    return result;
  }

  /// A bf16 matrix whose rows are looked up.
  Tensor table(const std::string& name) {
    const ModelTensor& tensor = file_.tensor(name);
    const int64_t columns = tensor.shape[1];
    const Tensor here(DType::kBF16, {tensor.shape[0], columns});
    parallel_for(context_, tensor.shape[0], [&](int64_t row, int32_t) {
      std::vector<float> values(static_cast<size_t>(columns));
      file_.read_rows(tensor, row, 1, values);
      std::transform(values.begin(), values.end(), here.as<BFloat16>() + row * columns,
                     to_bfloat16);
    });
    Tensor there(DType::kBF16, {tensor.shape[0], columns}, context_.device);
    copy_tensor(here.view(), there.view(), context_);
    advance(tensor);
    return there;
  }

  /// `tensor` where the model computes.
  Tensor on_device(Tensor tensor) const {
    if (context_.device.type == DeviceType::kCpu || tensor.empty()) return tensor;
    const TensorView& view = tensor.view();
    Tensor copy = view.rank == 1
                      ? Tensor(view.dtype, {view.shape[0]}, context_.device)
                      : Tensor(view.dtype, {view.shape[0], view.shape[1]}, context_.device);
    copy_tensor(tensor.view(), copy.view(), context_);
    return copy;
  }

  /// An empty matrix to read into.
  PackedWeights packed(DType dtype, int64_t out_features, int64_t in_features) const {
    return PackedWeights(dtype, out_features, in_features, context_.device);
  }

  /// Rows of the tensor `name` into rows [first_row, ...) of `weights`.
  void matrix(const std::string& name, int64_t first_row, PackedWeights& weights) {
    if (context_.device.type != DeviceType::kCpu) return upload(name, first_row, weights.view());
    for_each_rows(name, [&](int64_t row, int64_t count, const float* values, int32_t) {
      weights.set_rows(first_row + row, count, values);
    });
  }

  /// The same, of one expert's matrix.
  void expert_matrix(const std::string& name, int64_t expert, int64_t first_row,
                     ExpertWeights& weights) {
    if (context_.device.type != DeviceType::kCpu) {
      return upload(name, expert * weights.out_features() + first_row, weights.view());
    }
    for_each_rows(name, [&](int64_t row, int64_t count, const float* values, int32_t) {
      weights.set_rows(expert, first_row + row, count, values);
    });
  }

 private:
  void upload(const std::string& name, int64_t first_row, const TensorView& matrix) {
    uploads_.resize(static_cast<size_t>(resolve_num_threads(context_)));
    for_each_rows(name, [&](int64_t row, int64_t count, const float* values, int32_t thread) {
      std::unique_ptr<Upload>& mine = uploads_[static_cast<size_t>(thread)];
      if (mine == nullptr) mine = std::make_unique<Upload>(context_.device);
      mine->send(values, count, matrix, first_row + row);
    });
    for (const std::unique_ptr<Upload>& used : uploads_) {
      if (used != nullptr) used->finish();
    }
  }

  /// Calls body(first_row, num_rows, values, thread) for all rows, by all threads.
  template <typename Body>
  void for_each_rows(const std::string& name, Body body) {
    const ModelTensor& tensor = file_.tensor(name);
    const int64_t rows = tensor.shape[0];
    const int64_t columns = tensor.shape[1];
    constexpr int64_t kRowsPerTask = 64;
    parallel_for(context_, ceil_div(rows, kRowsPerTask), [&](int64_t task, int32_t thread) {
      const int64_t first = task * kRowsPerTask;
      const int64_t count = std::min(kRowsPerTask, rows - first);
      std::vector<float> values(static_cast<size_t>(count * columns));
      file_.read_rows(tensor, first, count, values);
      body(first, count, values.data(), thread);
    });
    advance(tensor);
  }

  static int64_t bytes_of(const ModelTensor& tensor) {
    return static_cast<int64_t>(tensor.bytes.size());
  }
  void advance(const ModelTensor& tensor) {
    done_bytes_ += bytes_of(tensor);
    if (progress_) {
      progress_(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
    }
  }

  const ModelFile& file_;
  const Context& context_;
  const std::function<void(double)>& progress_;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
  std::vector<std::unique_ptr<Upload>> uploads_;  // of the threads
};

/// q_bias, k_bias and v_bias one after the other; empty when the model has none.
Tensor fused_bias(Loader& loader, const std::string& prefix, int64_t size) {
  Tensor fused;
  int64_t offset = 0;
  for (const char* name : {"q_bias", "k_bias", "v_bias"}) {
    const Tensor part = loader.vector_on_cpu(prefix + name);
    if (part.view().empty()) continue;
    if (fused.view().empty()) fused = Tensor(DType::kF32, {size});
    std::copy_n(part.as<float>(), part.view().shape[0], fused.as<float>() + offset);
    offset += part.view().shape[0];
  }
  return loader.on_device(std::move(fused));
}

void load_expert_biases(Loader& loader, const std::string& prefix, const ModelConfig& config,
                        LayerWeights& layer) {
  Tensor gate_up(DType::kF32, {config.num_experts, 2 * config.expert_dim});
  Tensor down(DType::kF32, {config.num_experts, config.model_dim});
  for (int64_t expert = 0; expert < config.num_experts; ++expert) {
    const auto copy = [&](const char* name, int64_t offset, const Tensor& to) {
      const Tensor bias =
          loader.vector_on_cpu(fmt::format("{}experts.{}.{}", prefix, expert, name));
      std::copy_n(bias.as<float>(), bias.view().shape[0],
                  to.as<float>() + expert * to.view().shape[1] + offset);
    };
    copy("gate_bias", 0, gate_up);
    copy("up_bias", config.expert_dim, gate_up);
    copy("down_bias", 0, down);
  }
  layer.router_bias = loader.vector(prefix + "router_bias");
  layer.experts_gate_up_bias = loader.on_device(std::move(gate_up));
  layer.experts_down_bias = loader.on_device(std::move(down));
}

void load_experts(Loader& loader, const std::string& prefix, const ModelConfig& config, DType dtype,
                  Device device, LayerWeights& layer) {
  layer.router = loader.packed(dtype, config.num_experts, config.model_dim);
  loader.matrix(prefix + "router", 0, layer.router);
  layer.experts_gate_up =
      ExpertWeights(dtype, config.num_experts, 2 * config.expert_dim, config.model_dim, device);
  layer.experts_down =
      ExpertWeights(dtype, config.num_experts, config.model_dim, config.expert_dim, device);
  for (int64_t expert = 0; expert < config.num_experts; ++expert) {
    const std::string of_expert = fmt::format("{}experts.{}.", prefix, expert);
    loader.expert_matrix(of_expert + "gate", expert, 0, layer.experts_gate_up);
    loader.expert_matrix(of_expert + "up", expert, config.expert_dim, layer.experts_gate_up);
    loader.expert_matrix(of_expert + "down", expert, 0, layer.experts_down);
  }
  if (config.expert_bias) load_expert_biases(loader, prefix, config, layer);
}

}  // namespace

void quantize_matrices(LayerWeights& layer, const Context& context) {
  for (PackedWeights* matrix : {&layer.qkv, &layer.attention_out, &layer.gate_up, &layer.down}) {
    if (!matrix->empty()) *matrix = matrix->quantized(context);
  }
  for (ExpertWeights* experts : {&layer.experts_gate_up, &layer.experts_down}) {
    if (!experts->empty()) *experts = experts->quantized(context);
  }
}

int64_t Weights::size_bytes() const {
  int64_t bytes = output.size_bytes() + output_norm.size_bytes() + token_table.size_bytes();
  for (const LayerWeights& layer : layers) {
    bytes += layer.qkv.size_bytes() + layer.attention_out.size_bytes() +
             layer.gate_up.size_bytes() + layer.down.size_bytes() + layer.router.size_bytes() +
             layer.experts_gate_up.size_bytes() + layer.experts_down.size_bytes();
  }
  return bytes;
}

namespace {

int64_t estimate_layer_bytes(const ModelConfig& config, DType dtype, DType layer_dtype,
                             Device device) {
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  const auto matrix = [&](int64_t out_features, int64_t in_features) {
    return packed_weight_bytes(layer_dtype, out_features, in_features, device);
  };
  const int64_t attention =
      matrix(q_dim + 2 * kv_dim, config.model_dim) + matrix(config.model_dim, q_dim);
  const auto gated_mlp = [&](int64_t width) {
    return matrix(2 * width, config.model_dim) + matrix(config.model_dim, width);
  };
  const int64_t mlp =
      config.num_experts == 0
          ? gated_mlp(config.mlp_dim)
          : checked_add(
                checked_mul(gated_mlp(config.expert_dim), config.num_experts, "weight bytes"),
                packed_weight_bytes(dtype, config.num_experts, config.model_dim, device),
                "weight bytes");
  return checked_add(attention, mlp, "weight bytes");
}

}  // namespace

int64_t estimate_weight_bytes(const ModelConfig& config, DType dtype, DType layer_dtype,
                              Device device) {
  const int64_t layer = estimate_layer_bytes(config, dtype, layer_dtype, device);
  const bool has_table = device.type != DeviceType::kCpu && !config.tied_embeddings;
  const int64_t ends =
      packed_weight_bytes(dtype, config.vocab_size, config.model_dim, device) * (has_table ? 2 : 1);
  return checked_add(checked_mul(layer, config.num_layers, "weight bytes"), ends, "weight bytes");
}

int64_t estimate_loading_bytes(const ModelConfig& config, DType dtype, DType layer_dtype,
                               Device device) {
  const int64_t held = estimate_weight_bytes(config, dtype, layer_dtype, device);
  if (layer_dtype == dtype) return held;
  return checked_add(held, estimate_layer_bytes(config, dtype, dtype, device), "weight bytes");
}

Weights load_weights(ModelFile file, DType dtype, DType layer_dtype, const Context& context,
                     const std::function<void(double)>& progress) {
  Weights weights;
  weights.file = std::make_unique<ModelFile>(std::move(file));
  const ModelConfig& config = weights.file->config();
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  Loader loader(*weights.file, context, progress);

  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string prefix = fmt::format("layers.{}.", i);
    LayerWeights& layer = weights.layers.emplace_back();
    layer.attention_norm = loader.vector(prefix + "attention_norm");
    layer.qkv = loader.packed(dtype, q_dim + 2 * kv_dim, config.model_dim);
    loader.matrix(prefix + "q", 0, layer.qkv);
    loader.matrix(prefix + "k", q_dim, layer.qkv);
    loader.matrix(prefix + "v", q_dim + kv_dim, layer.qkv);
    layer.qkv_bias = fused_bias(loader, prefix, q_dim + 2 * kv_dim);
    layer.q_norm = loader.vector(prefix + "q_norm");
    layer.k_norm = loader.vector(prefix + "k_norm");
    layer.attention_out = loader.packed(dtype, config.model_dim, q_dim);
    loader.matrix(prefix + "o", 0, layer.attention_out);
    layer.attention_out_bias = loader.vector(prefix + "o_bias");
    layer.sinks = loader.vector(prefix + "sinks");
    layer.post_attention_norm = loader.vector(prefix + "post_attention_norm");
    layer.mlp_norm = loader.vector(prefix + "mlp_norm");
    if (config.num_experts > 0) {
      load_experts(loader, prefix, config, dtype, context.device, layer);
    } else {
      layer.gate_up = loader.packed(dtype, 2 * config.mlp_dim, config.model_dim);
      loader.matrix(prefix + "gate", 0, layer.gate_up);
      loader.matrix(prefix + "up", config.mlp_dim, layer.gate_up);
      layer.down = loader.packed(dtype, config.model_dim, config.mlp_dim);
      loader.matrix(prefix + "down", 0, layer.down);
    }
    layer.post_mlp_norm = loader.vector(prefix + "post_mlp_norm");
    if (layer_dtype != dtype) quantize_matrices(layer, context);
  }
  weights.output_norm = loader.vector("output_norm");
  weights.output = loader.packed(dtype, config.vocab_size, config.model_dim);
  loader.matrix(config.tied_embeddings ? "token_embedding" : "output", 0, weights.output);
  if (context.device.type == DeviceType::kCpu) {
    weights.embedding = std::make_unique<FileEmbedding>(*weights.file);
    return weights;
  }
  if (!config.tied_embeddings) weights.token_table = loader.table("token_embedding");
  weights.embedding = std::make_unique<TableEmbedding>(
      config.tied_embeddings ? weights.output.view() : weights.token_table.view(),
      static_cast<float>(config.embedding_scale));
  return weights;
}

}  // namespace fovea
