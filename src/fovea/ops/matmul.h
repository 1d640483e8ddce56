// Products of activations with a model's weights: in bf16 or f32, through oneDNN.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fovea/base/context.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// Rows that one call of matmul_slab() computes at most. A prompt is worked in slabs of this many
/// rows, each by one thread: activations stay in its L2 cache, and a row's result does not depend
/// on how many rows came with it.
constexpr int64_t kSlabRows = 128;

/// Memory that one thread needs during matmul_slab(); grows to what is asked of it.
class MatmulScratch {
 public:
  float* get(int64_t bytes);

 private:
  Tensor memory_;
};

/// A weight matrix [out_features, in_features] laid out once for the processor or GPU.
///
/// On a GPU it is [out][in], bf16 or f8e4m3 with a scale for each 128 x 128 block. On the CPU,
/// where oneDNN has its blocked kernels (AVX-512 and up) it is cut into panels of 64 output
/// features, f32 [in][64] or bf16 [in / 2][64][2], padded with zeros; elsewhere it is f32
/// [out][in].
class PackedWeights {
 public:
  PackedWeights() = default;
  /// Zeros. `dtype` is f32 or, on a GPU always, bf16, and is the type of the activations too.
  /// Throws kInvalidArgument on sizes that are not positive, or on a GPU in_features not a multiple
  /// of 8; kUnsupported when the processor cannot multiply `dtype`; what Tensor throws.
  PackedWeights(DType dtype, int64_t out_features, int64_t in_features, Device device = {});
  /// A matrix that is on a GPU already: bf16 [out_features, in_features].
  explicit PackedWeights(Tensor matrix);

  /// A GPU's bf16 matrix as f8e4m3, in stream order: a block's scale is its largest value over 448.
  /// Activations stay bf16. Throws kInvalidArgument on other matrices, and unless both sizes are
  /// multiples of 128.
  PackedWeights quantized(const Context& context) const;

  /// Writes rows [first_row, first_row + num_rows) of the matrix from f32 [num_rows, in_features]
  /// of the CPU. Calls for different rows may run at once.
  void set_rows(int64_t first_row, int64_t num_rows, const float* rows);

  DType dtype() const { return dtype_; }
  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  int64_t size_bytes() const { return memory_.size_bytes() + scales_.size_bytes(); }
  bool empty() const { return out_features_ == 0; }
  Device device() const { return memory_.view().device; }
  /// The matrix as a tensor [out_features, in_features], of a GPU only.
  const TensorView& view() const;
  /// Of f8e4m3: f32 [out_features / 128, in_features / 128]; else empty.
  const TensorView& scales() const { return scales_.view(); }

 private:
  friend void matmul_slab(const TensorView&, const PackedWeights&, const TensorView&,
                          MatmulScratch&);
  friend void matmul_row(const TensorView&, const PackedWeights&, const TensorView&,
                         const Context&);
  void set_gpu_rows(int64_t first_row, int64_t num_rows, const float* rows);
  struct Plan;  // oneDNN's primitives, shared by matrices of one shape
  static std::shared_ptr<const Plan> find_plan(DType dtype, int64_t out, int64_t in, bool panels);

  DType dtype_ = DType::kF32;
  int64_t out_features_ = 0;
  int64_t in_features_ = 0;
  int64_t padded_in_ = 0;
  bool panels_ = false;
  Tensor memory_;
  Tensor scales_;
  std::shared_ptr<const Plan> plan_;
};

/// Bytes that PackedWeights of these arguments would hold; f8e4m3 is what quantized() gives.
int64_t packed_weight_bytes(DType dtype, int64_t out_features, int64_t in_features,
                            Device device = {});

/// Whether this processor multiplies `dtype` matrices with instructions made for it; f32 always.
bool matmul_is_native(DType dtype);

/// Rows that matmul_slab() touches in its buffers when given `rows`: the next of 16, 32, 64, 128.
int64_t padded_slab_rows(int64_t rows);

/// out = in x weights^T, computed by the calling thread alone; meant to be called inside
/// parallel_for.
///
/// in: weights.dtype() [rows, in_features], out: f32 [rows, out_features], both dense, rows at most
/// kSlabRows, with readable (in) and writable (out) memory for padded_slab_rows(rows) rows.
/// Throws kInvalidArgument on shapes that do not fit.
void matmul_slab(const TensorView& in, const PackedWeights& weights, const TensorView& out,
                 MatmulScratch& scratch);

/// The same for a single row, by all threads of `context`; in: weights.dtype() [in_features], out:
/// f32 [out_features]. A decode step is bound by reading the weights, and oneDNN is slow at one
/// row.
void matmul_row(const TensorView& in, const PackedWeights& weights, const TensorView& out,
                const Context& context);

}  // namespace fovea
