// A model's weights as the transformer multiplies them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fovea/base/context.h"
#include "fovea/engine/embedding.h"
#include "fovea/model_io/model_file.h"
#include "fovea/ops/expert_weights.h"
#include "fovea/ops/matmul.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// Matrices that read the same input are one: q, k and v; gate and up.
struct LayerWeights {
  Tensor attention_norm;        // f32 [model_dim]
  PackedWeights qkv;            // [(num_q_heads + 2 num_kv_heads) head_dim, model_dim]
  Tensor qkv_bias;              // f32 [(num_q_heads + 2 num_kv_heads) head_dim], or empty
  Tensor q_norm, k_norm;        // f32 [head_dim], or empty
  PackedWeights attention_out;  // [model_dim, num_q_heads head_dim]
  Tensor attention_out_bias;    // f32 [model_dim], or empty
  Tensor sinks;                 // f32 [num_q_heads], or empty
  Tensor post_attention_norm;   // f32 [model_dim], or empty
  Tensor mlp_norm;              // f32 [model_dim]
  PackedWeights gate_up;        // [2 mlp_dim, model_dim]
  PackedWeights down;           // [model_dim, mlp_dim]
  Tensor post_mlp_norm;         // f32 [model_dim], or empty
  // A mixture of experts has these in place of gate_up and down.
  PackedWeights router;           // [num_experts, model_dim]
  ExpertWeights experts_gate_up;  // each [2 expert_dim, model_dim]
  ExpertWeights experts_down;     // each [model_dim, expert_dim]
  // f32 [num_experts], [num_experts, 2 expert_dim] and [num_experts, model_dim], or empty.
  Tensor router_bias, experts_gate_up_bias, experts_down_bias;
};

struct Weights {
  std::unique_ptr<ModelFile> file;  // stays open: see FileEmbedding
  Tensor token_table;  // [vocab_size, model_dim], where `embedding` reads neither file nor `output`
  std::unique_ptr<Embedding> embedding;
  std::vector<LayerWeights> layers;
  Tensor output_norm;    // f32 [model_dim]
  PackedWeights output;  // [vocab_size, model_dim]

  int64_t size_bytes() const;
};

/// Turns the matrices of a layer on a GPU into f8e4m3, but for the router.
void quantize_matrices(LayerWeights& layer, const Context& context);

/// Bytes that load_weights() will hold.
int64_t estimate_weight_bytes(const ModelConfig& config, DType dtype, DType layer_dtype,
                              Device device);

/// Bytes that it will need on the way: a layer is loaded before its matrices are made f8e4m3.
int64_t estimate_loading_bytes(const ModelConfig& config, DType dtype, DType layer_dtype,
                               Device device);

/// Reads all weights of `file` and packs them as `dtype`, the layers' matrices as `layer_dtype`,
/// on the context's device. `progress` is
/// called with 0 ... 1. Throws kInvalidFile naming a tensor that holds NaN or Inf, kOutOfMemory as
/// Tensor does.
Weights load_weights(ModelFile file, DType dtype, DType layer_dtype, const Context& context,
                     const std::function<void(double)>& progress);

}  // namespace fovea
