// Products of activations with a model's weights on a GPU: cuBLASLt, and kernels of ours for the
// one row of a decode step and for weights in f8.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "fovea/base/context.h"
#include "fovea/ops/cuda/cublas_lt.h"
#include "fovea/ops/cuda/row_product.h"
#include "fovea/ops/matmul.h"
#include "fovea/tensor/tensor.h"

namespace fovea::cuda {

/// Bytes that a product of `rows` with weights in f8 takes for a moment.
int64_t f8_rows_bytes(int64_t rows, int64_t in_features);

/// One stream's products, with f32 sums. Nothing waits; after a shape's first call nothing
/// is allocated either.
///
/// A row's result does not depend on how many rows came with it as long as they are more than
/// kMaxSplitRows: then a sum over in_features is never cut.
class CudaMatmul {
 public:
  static constexpr int64_t kMaxSplitRows = 16;
  static constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;  // of cuBLASLt, held

  /// Throws kUnsupported when cuBLASLt is not here.
  explicit CudaMatmul(const Context& context);
  ~CudaMatmul();

  /// out = in weights^T, or out += it; in: bf16 [rows, in_features], rounded to f8 where weights
  /// are and there is more than one row; out: bf16 or, with `add` always, f32. Strides of rows are
  /// multiples of 8 elements (for f8 of out too), or as dense; pointers of 16 bytes.
  void run(const TensorView& in, const PackedWeights& weights, const TensorView& out, bool add);

  /// Does it if launch_row_product() can, and says whether it did.
  bool run_row(const RowProduct& product) const;

 private:
  struct Shape {
    DType dtype;  // of both operands
    int64_t rows, in_features, out_features, in_stride, out_stride;
    DType out_dtype;
    bool add;
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan;
  /// Null where the library has none.
  const Plan* find_plan(const Shape& shape);
  void run_f8(const TensorView& in, const PackedWeights& weights, const TensorView& out, bool add);
  void multiply(const Plan& plan, const void* in, const void* weights, void* out, bool add) const;

  Context context_;
  cublasLtHandle_t handle_ = nullptr;
  Tensor workspace_;
  std::map<Shape, std::unique_ptr<const Plan>> plans_;
};

}  // namespace fovea::cuda
