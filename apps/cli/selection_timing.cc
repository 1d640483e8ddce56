#include "apps/cli/selection_timing.h"

#include <random>

#include "fovea/tensor/bfloat16.h"

namespace fovea::cli {
namespace {

Tensor normal_tensor(DType dtype, int64_t rows, int64_t heads, int64_t head_dim, uint32_t seed) {
  Tensor tensor(dtype, {rows, heads, head_dim});
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < tensor.view().num_elements(); ++i) {
    if (dtype == DType::kBF16) {
      tensor.as<BFloat16>()[i] = to_bfloat16(normal(generator));
    } else {
      tensor.as<float>()[i] = normal(generator);
    }
  }
  return tensor;
}

}  // namespace

SelectionMeasurement measure_selection(const KernelShape& shape, const SelectorSettings& settings,
                                       const Context& context, double min_seconds) {
  const Tensor q = normal_tensor(shape.dtype, shape.q_len, shape.num_q_heads, shape.head_dim, 1);
  const Tensor k = normal_tensor(shape.dtype, shape.kv_len, shape.num_kv_heads, shape.head_dim, 2);
  const Tensor v = normal_tensor(shape.dtype, shape.kv_len, shape.num_kv_heads, shape.head_dim, 3);
  const int64_t num_blocks = shape.kv_len / settings.block_size;
  const BlockStats stats(shape.dtype, num_blocks, shape.num_kv_heads, shape.head_dim,
                         settings.block_size, settings.num_witnesses);
  const int64_t zero = 0;
  const int64_t q_offsets[2] = {0, shape.q_len};

  SelectorParams params;
  params.q = q.view();
  params.kv.k = k.view();
  params.kv.v = v.view();
  params.kv.kv_offsets = &zero;
  params.batch = {1, q_offsets, &shape.kv_len};
  params.stats = stats.view();
  params.block_offsets = &zero;
  params.settings = settings;

  SelectionMeasurement measured;
  measured.statistics = time_repeatedly(
      [&] { compute_block_stats(params.kv, 0, 0, num_blocks, 0, stats.view(), context); },
      min_seconds);
  BlockSelection selection;
  measured.selection =
      time_repeatedly([&] { select_blocks(params, context, selection); }, min_seconds);
  measured.density = selection.density();
  measured.list_bytes = static_cast<int64_t>(selection.blocks.size() * sizeof(int32_t) +
                                             selection.len.size() * sizeof(int32_t) +
                                             selection.begin.size() * sizeof(int64_t));
  return measured;
}

}  // namespace fovea::cli
