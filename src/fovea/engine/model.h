// A model in memory: configuration, tokenizer and weights, ready to compute with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "fovea/base/context.h"
#include "fovea/base/dtype.h"

namespace fovea {

struct ModelConfig;  // model_io/model_config.h
class Tokenizer;     // tokenizer/tokenizer.h
struct Weights;      // engine/weights.h

enum class ComputeType {
  kAuto,  // bf16 where the device multiplies it (AMX-BF16, AVX512-BF16, a GPU), else f32
  kF32,
  kBF16,
};

struct ModelOptions {
  ComputeType compute = ComputeType::kAuto;
  /// Keep the layers' matrices as f8e4m3 with a scale per 128 x 128 block; a GPU's only, and not
  /// routers, embeddings and the output matrix.
  bool f8_weights = false;
  Device device = {};       // a GPU computes in bf16
  int32_t num_threads = 0;  // 0: OMP_NUM_THREADS, or as many as there are cores
  /// Called with the share of the weights loaded, 0 ... 1, from the loading thread; may throw to
  /// stop the loading.
  std::function<void(double share)> progress;
};

/// Immutable once loaded; any number of sessions may read it at once.
class Model {
 public:
  /// Loads a .gguf file, a .safetensors file beside its config.json, or a folder that holds them.
  ///
  /// Throws kInvalidFile on a file that breaks its format or holds NaN or Inf (names the tensor),
  /// kUnsupported on an unknown architecture or tensor type, kDevice when there is no such GPU,
  /// kOutOfMemory before reading the weights when they need more memory than the device has free
  /// ("needs X, has Y").
  static std::shared_ptr<const Model> load(const std::string& path,
                                           const ModelOptions& options = {});
  /// A model of a published shape with random weights from `seed`, see engine/synthetic.h; its
  /// tokens are bytes. Throws kInvalidArgument on an unknown name, else as load().
  static std::shared_ptr<const Model> synthetic(const std::string& name, uint64_t seed = 0,
                                                const ModelOptions& options = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return *config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const Weights& weights() const { return *weights_; }
  /// As given to load(), or "synthetic NAME".
  const std::string& path() const { return path_; }
  /// Type of activations, weights and KV: f32 or bf16.
  DType compute_dtype() const { return compute_dtype_; }
  /// Type of the layers' matrices: the compute type, or f8e4m3.
  DType weight_dtype() const;
  const Context& context() const { return context_; }
  /// Bytes of the weights as held in memory.
  int64_t weight_bytes() const;
  /// Bytes of K and V that one token takes in all layers, statistics not included.
  int64_t kv_bytes_per_token() const;

 private:
  Model();
  static std::shared_ptr<Model> prepare(const std::string& path, const ModelOptions& options);
  void check_room(DType weight_dtype) const;

  std::string path_;
  std::unique_ptr<ModelConfig> config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Weights> weights_;
  DType compute_dtype_ = DType::kF32;
  Context context_;
};

}  // namespace fovea
