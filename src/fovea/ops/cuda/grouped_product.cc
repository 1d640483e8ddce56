#include "fovea/ops/cuda/grouped_product.h"

#include "fovea/base/checked_math.h"
#include "fovea/ops/cuda/moe.h"
#include "fovea/tensor/cuda/device.h"
#include "fovea/tensor/cuda/tensor_map.h"

namespace fovea::cuda {
namespace {

/// A map of a dense matrix with boxes of 128 rows.
CUtensorMap map_of(const void* data, int64_t rows, int64_t columns, Device device) {
  constexpr int32_t kBoxRows = 128;
  const TensorView view = make_view(const_cast<void*>(data), DType::kBF16, {rows, columns}, device);
  TensorMapShape shape;
  shape.rows = rows;
  shape.row_stride = columns;
  shape.columns = columns;
  shape.heads = 1;
  return make_tensor_map(view, shape, kBoxRows);
}

}  // namespace

void launch_grouped_product(const GroupedProduct& product, const MoeRoutes& routes,
                            const Context& context) {
  constexpr int64_t kDepthPerStep = 64;
  const int64_t columns_per_tile = product.is_gated ? 128 : 256;
  GroupedParams params{};
  params.first_tile = routes.first_tile;
  params.expert_of_tile = routes.expert_of_tile;
  params.num_experts = static_cast<int>(routes.num_experts);
  params.weight_rows = static_cast<int>(product.weights.shape[0] / routes.num_experts);
  params.column_tiles = static_cast<int>(ceil_div(product.columns, columns_per_tile));
  params.columns_per_tile = static_cast<int>(columns_per_tile);
  params.second_half = product.is_gated ? static_cast<int>(product.columns) : 128;
  params.columns = static_cast<int>(product.columns);
  params.num_steps = static_cast<int>(ceil_div(product.depth, kDepthPerStep));
  params.out = static_cast<__nv_bfloat16*>(product.out);
  const CUtensorMap in =
      map_of(product.in, routes.max_tiles() * kRowsPerTile, product.depth, context.device);
  const CUtensorMap weights =
      map_of(product.weights.data, product.weights.shape[0], product.depth, context.device);
  launch_grouped_kernel(in, weights, params, product.is_gated, product.function,
                        num_multiprocessors(context.device.index), stream_of(context));
}

}  // namespace fovea::cuda
