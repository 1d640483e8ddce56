#include "apps/cli/selection_timing.h"

#include <numeric>
#include <vector>

#include "fovea/tensor/device_memory.h"

namespace fovea::cli {
namespace {

KernelShape dense_contiguous(KernelShape shape) {
  shape.density = 1;
  shape.page_size = 0;
  return shape;
}

int64_t witnesses_kept(const SelectorSettings& settings) {
  return reads_witnesses(settings.method) ? settings.num_witnesses : 0;
}

}  // namespace

SelectionWork::SelectionWork(const KernelShape& shape, const SelectorSettings& settings,
                             const Context& context)
    : context_(context),
      attention_(dense_contiguous(shape), context),
      stats_(shape.dtype, shape.kv_len / settings.block_size, shape.num_kv_heads, shape.head_dim,
             settings.block_size, witnesses_kept(settings), context.device),
      zero_(DType::kI64, {1}, context.device),
      buffer_(make_selection_buffer(context)) {
  const AttentionParams& attention = attention_.params();
  params_.q = attention.q;
  params_.kv = attention.kv;
  params_.batch = attention.batch;
  params_.stats = stats_.view();
  params_.block_offsets = zero_.as<int64_t>();
  params_.settings = settings;
  compute_statistics();
}

void SelectionWork::compute_statistics() const {
  compute_block_stats(params_.kv, 0, 0, stats_.view().centroid.shape[0], 0, stats_.view(),
                      context_);
}

void SelectionWork::select() { selection_ = &buffer_->select(params_); }

void SelectionWork::attend(bool has_periphery) const {
  AttentionParams attention = attention_.params();
  attention.selection = selection_;
  if (has_periphery) {
    attention.periphery = {stats_.view().centroid, stats_.view().v_mean, params_.block_offsets};
  }
  fovea::attend(attention, context_);
}

SelectionWork::Lists SelectionWork::measure_lists() {
  for (int i = 0; i < 2; ++i) select();  // the buffer keeps room for the lengths of as many
  std::vector<SelectionLengths> all = buffer_->take_lengths();
  const SelectionLengths& last = all.back();
  const int64_t blocks = ceil_div(attention_.params().q.shape[0], params_.settings.block_size);
  int64_t kept = 0;
  for (int64_t head = 0; head < last.num_q_heads; ++head) {
    const auto first = last.len.begin() + head * last.num_q_blocks;
    kept = std::accumulate(first, first + blocks, kept);
  }
  constexpr auto kListBytes = static_cast<int64_t>(sizeof(int32_t) + sizeof(int64_t));
  return {kept_share(kept, last.num_q_heads * blocks * (blocks + 1) / 2),
          kept * static_cast<int64_t>(sizeof(int32_t)) + last.num_q_heads * blocks * kListBytes};
}

SelectionMeasurement measure_selection(SelectionWork& work, const Timer& timer) {
  SelectionMeasurement measured;
  measured.statistics = timer([&] { work.compute_statistics(); });
  measured.lists = work.measure_lists();
  measured.selection = timer([&] { work.select(); });
  return measured;
}

}  // namespace fovea::cli
