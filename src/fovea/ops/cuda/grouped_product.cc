#include "fovea/ops/cuda/grouped_product.h"

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/ops/cuda/grouped_launch.h"
#include "fovea/tensor/cuda/device.h"
#include "fovea/tensor/cuda/tensor_map.h"

namespace fovea::cuda {
namespace {

/// A map of a dense matrix with boxes of 128 rows.
CUtensorMap map_of(const void* data, DType dtype, int64_t rows, int64_t columns) {
  constexpr int32_t kBoxRows = 128;
  const TensorView view = make_view(const_cast<void*>(data), dtype, {rows, columns});
  TensorMapShape shape;
  shape.rows = rows;
  shape.row_stride = columns;
  shape.columns = columns;
  shape.heads = 1;
  return make_tensor_map(view, shape, kBoxRows);
}

}  // namespace

void launch_grouped_product(const GroupedProduct& product, const Context& context) {
  const RowTiles& tiles = product.tiles;
  const DType dtype = product.weights.dtype;
  const int64_t depth = product.weights.shape[1];
  const int64_t depth_per_step = 128 / dtype_bytes(dtype);
  const int64_t columns_per_tile = product.is_gated ? 128 : 256;
  GroupedLaunch launch{};
  if (!product.is_gated) launch.in = map_of(product.in.data, dtype, product.in.shape[0], depth);
  launch.weights = map_of(product.weights.data, dtype, product.weights.shape[0], depth);
  launch.num_ctas = num_multiprocessors(context.device.index);
  launch.stream = stream_of(context);
  GroupedParams& p = launch.params;
  p.first_tile = tiles.first_tile;
  p.expert_of_tile = tiles.expert_of_tile;
  p.rows_of_expert = tiles.rows_of_expert;
  p.next_tile = product.next_tile;
  p.num_experts = static_cast<int>(tiles.num_experts);
  p.row_tiles = static_cast<int>(ceil_div(tiles.rows, kRowsPerTile));
  p.rows = static_cast<int>(tiles.rows);
  p.columns = static_cast<int>(product.columns);
  p.weight_rows = static_cast<int>(product.weights.shape[0] / tiles.num_experts);
  p.column_tiles = static_cast<int>(ceil_div(product.columns, columns_per_tile));
  p.columns_per_tile = static_cast<int>(columns_per_tile);
  p.second_half = product.is_gated ? p.columns : 128;
  p.depth_per_step = static_cast<int>(depth_per_step);
  p.num_steps = static_cast<int>(ceil_div(depth, depth_per_step));
  p.in = product.in.data;
  p.in_stride_bytes = product.in.stride[0] * dtype_bytes(dtype);
  p.depth_bytes = static_cast<int>(depth * dtype_bytes(dtype));
  p.in_rows = product.in_rows;
  p.out = product.out;
  p.out_stride = product.out_stride;
  p.bias = product.bias;
  p.in_scales = product.in_scales;
  p.weight_scales = product.weight_scales;
  p.out_scales = product.out_scales;
  p.in_scale_stride = scale_rows(product.in.shape[0]);
  p.out_scale_stride = scale_rows(tiles.rows);

  const bool is_f8 = dtype == DType::kF8E4M3;
  if (product.is_gated) {
    check_argument(!is_f8 || product.in.shape[0] <= (int64_t{1} << 32) / p.in_stride_bytes,
                   "{} rows of {} bytes are too many for experts in f8e4m3", product.in.shape[0],
                   p.in_stride_bytes);
    (is_f8 ? launch_grouped_f8_gated : launch_grouped_bf16_gated)(launch, product.function);
  } else if (!is_f8) {
    launch_grouped_bf16(launch);
  } else {
    launch_grouped_f8(launch, product.out_dtype == DType::kBF16 ? GroupedOutput::kBf16
                              : product.add                     ? GroupedOutput::kAddF32
                                                                : GroupedOutput::kF32);
  }
}

}  // namespace fovea::cuda
