// One door to a model on disk, GGUF or safetensors: its configuration, and its tensors under one
// set of names and one set of conventions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/model_io/gguf.h"
#include "fovea/model_io/model_config.h"
#include "fovea/model_io/safetensors.h"

namespace fovea {

/// A tensor of a model. `bytes` are as the file has them; ModelFile::read_* undo what a file format
/// does to weights (see ModelFile).
struct ModelTensor {
  std::string name;       // ours, for example "layers.3.q"
  std::string file_name;  // the file's, for messages
  WeightType type = WeightType::kF32;
  std::vector<int64_t> shape;  // [out, in] of a matrix, [n] of a norm or bias
  std::span<const std::byte> bytes;
  int64_t interleaved_heads = 0;           // > 0: rows are stored for interleaved RoPE pairs
  bool add_one = false;                    // a norm weight stored as weight - 1
  const FileTensor* tile_scale = nullptr;  // FP8: one scale per 128 x 128 weights
  int64_t row_step = 1, first_row = 0;     // row r is the file's row r * row_step + first_row
  std::span<const std::byte> exponents;    // MXFP4 of safetensors: one per 32 codes in `bytes`
  std::string_view exponents_name;         // the file's, of the tensor that they are in
};

/// An open model. Every tensor that the configuration asks for is there with the right shape.
///
/// Names: token_embedding [vocab, model_dim], output_norm, output (absent when tied), and per layer
/// N `layers.N.` + attention_norm, q [num_q_heads x head_dim, model_dim], k, v, o, q_bias, k_bias,
/// v_bias (Qwen2), q_norm, k_norm (Qwen3, Gemma 3), post_attention_norm, post_mlp_norm (Gemma 3),
/// mlp_norm, gate, up, down; o_bias, sinks (gpt-oss); with experts, in place of these three, router
/// and for each expert E experts.E. + gate, up, down (gpt-oss: also gate_bias, up_bias, down_bias,
/// router_bias).
///
/// Conventions, whatever the file: rows of q and k pair (i, i + head_dim / 2) for RoPE (GGUF files
/// of Llama store them interleaved; reading puts the rows back); norms multiply by the weight as
/// read (Hugging Face files of Gemma store weight - 1; reading adds the 1); FP8 weights are scaled.
///
/// Reading is const and safe from many threads.
class ModelFile {
 public:
  /// Opens a .gguf file, a folder with config.json and safetensors, or a .safetensors file whose
  /// folder has the config.json. Throws kInvalidFile for a file that is broken or does not fit its
  /// configuration, kUnsupported for an architecture, type or feature that we do not run; the
  /// message names it.
  static ModelFile open(const std::string& path);
  static ModelFile from_gguf(Gguf gguf);
  static ModelFile from_safetensors(Safetensors weights, ModelConfig config, std::string name);

  const ModelConfig& config() const { return config_; }
  /// The path given to open().
  const std::string& name() const { return name_; }
  /// The GGUF file (its metadata hold the tokenizer), null for safetensors.
  const Gguf* gguf() const { return gguf_ ? &*gguf_ : nullptr; }
  /// Folder of config.json, tokenizer.json and so on; empty for GGUF.
  const std::string& folder() const { return folder_; }

  const std::map<std::string, ModelTensor, std::less<>>& tensors() const { return tensors_; }
  /// Null when the model has no such tensor.
  const ModelTensor* find_tensor(std::string_view name) const;
  /// Throws kInvalidArgument when the model has no such tensor.
  const ModelTensor& tensor(std::string_view name) const;

  /// Reads rows [first_row, first_row + num_rows) as f32; out: [num_rows, in], a norm or bias has
  /// rows of one. Throws kInvalidArgument on rows or an `out` that do not fit, kInvalidFile when a
  /// weight is NaN or infinite (checked in the same pass, the message names tensor and index).
  void read_rows(const ModelTensor& tensor, int64_t first_row, int64_t num_rows,
                 std::span<float> out) const;
  /// Reads a whole tensor as f32. Throws as read_rows.
  void read_f32(const ModelTensor& tensor, std::span<float> out) const;
  std::vector<float> read_f32(std::string_view name) const;

 private:
  ModelFile() = default;
  const FileTensor* find_file_tensor(std::string_view file_name) const;
  void bind_tensors();
  void refuse_unknown_tensors() const;
  void read_stored_rows(const ModelTensor& tensor, int64_t columns, int64_t first_row,
                        std::span<float> out) const;

  std::string name_;
  std::string folder_;
  ModelConfig config_;
  std::optional<Gguf> gguf_;
  std::optional<Safetensors> safetensors_;
  std::map<std::string, ModelTensor, std::less<>> tensors_;
};

}  // namespace fovea
