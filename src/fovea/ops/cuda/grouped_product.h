// Rows times matrices, of one or of many experts in one launch, by kernels of ours: what the
// library does not do well, or not at all.
#pragma once

#include <cstdint>

#include "fovea/base/context.h"
#include "fovea/ops/gated_activation.h"
#include "fovea/tensor/tensor.h"

namespace fovea::cuda {

/// Rows are cut into tiles of this many.
constexpr int64_t kRowsPerTile = 128;
/// In f8, so many columns of a row, or of as many rows of a matrix, share a scale.
constexpr int64_t kScaleBlock = 128;

/// Which matrix a tile of rows is multiplied with.
struct RowTiles {
  int64_t rows = 0;  // of `in` and `out`
  int64_t num_experts = 1;
  /// GPU memory, null where there is one matrix: an expert's first tile, [num_experts + 1], the
  /// last being the number of all tiles; and the expert of each tile.
  const int32_t* first_tile = nullptr;
  const int32_t* expert_of_tile = nullptr;
  const int32_t* rows_of_expert = nullptr;  // [num_experts]
};

/// out = in weights^T, with f32 sums. GPU memory; bf16, or f8e4m3 with scales: of a row's blocks of
/// columns [depth / 128, scale_rows(rows)], of a matrix's blocks [weight rows / 128, depth / 128].
struct GroupedProduct {
  RowTiles tiles;
  /// GPU memory, 0 at first: how many tiles have been taken. In f8 null where CTAs take turns, as
  /// they may where all tiles take the same time.
  int32_t* next_tile = nullptr;
  TensorView in;  // [rows, depth]
  /// GPU memory, [tiles.rows]; of a gated product: which row of `in` each row of a tile is.
  const int32_t* in_rows = nullptr;
  const float* in_scales = nullptr;
  TensorView weights;  // [num_experts * rows of each, depth]
  const float* weight_scales = nullptr;
  void* out = nullptr;  // [rows, columns]
  DType out_dtype = DType::kBF16;
  int64_t columns = 0;
  int64_t out_stride = 0;
  float* out_scales = nullptr;  // of an output in f8
  bool add = false;             // onto an f32 output
  /// Weights hold gates first and then as many values; out = function(gate) * value.
  bool is_gated = false;
  GateFunction function = GateFunction::kSilu;
  /// f32 [num_experts, rows of each matrix], added before the function; in bf16, with
  /// kClampedSwiglu only.
  const float* bias = nullptr;
};

/// Rows that scales have room for.
constexpr int64_t scale_rows(int64_t rows) {
  return (rows + kRowsPerTile - 1) / kRowsPerTile * kRowsPerTile;
}

/// Scales of rows in f8.
constexpr int64_t num_row_scales(int64_t rows, int64_t columns) {
  return scale_rows(rows) * (columns / kScaleBlock);
}

/// Weights in bf16: outputs are bf16. In f8: sizes are multiples of 128, gated outputs are f8,
/// others bf16 or f32. Nothing waits.
void launch_grouped_product(const GroupedProduct& product, const Context& context);

}  // namespace fovea::cuda
