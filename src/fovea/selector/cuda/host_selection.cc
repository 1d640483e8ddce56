#include "fovea/selector/cuda/host_selection.h"

#include "fovea/tensor/device_memory.h"

namespace fovea {
namespace {

/// Makes `on_gpu` hold `values` and returns their address there.
template <typename T>
const T* upload(const std::vector<T>& values, Tensor& on_gpu, const Context& context) {
  constexpr DType kDtype = sizeof(T) == sizeof(int64_t) ? DType::kI64 : DType::kI32;
  const auto count = static_cast<int64_t>(values.size());
  if (on_gpu.size_bytes() < count * dtype_bytes(kDtype)) {
    on_gpu = Tensor(kDtype, {count + count / 4}, context.device);
  }
  if (count > 0) {
    copy_tensor(make_view(const_cast<T*>(values.data()), kDtype, {count}),
                make_view(on_gpu.as<T>(), kDtype, {count}, context.device), context);
  }
  return on_gpu.as<T>();
}

}  // namespace

SelectorParams HostSelection::copy_to_cpu(const SelectorParams& params) {
  const auto tensor = [&](const TensorView& on_gpu, Tensor& buffer) {
    return on_gpu.empty() ? on_gpu : readable_on_cpu(on_gpu, buffer, context_);
  };
  const auto numbers = [&](auto*& pointer, int64_t count, Tensor& buffer) {
    if (pointer == nullptr) return;
    using Number =
        std::remove_cv_t<std::remove_pointer_t<std::remove_reference_t<decltype(pointer)>>>;
    const DType dtype = sizeof(Number) == sizeof(int64_t) ? DType::kI64 : DType::kI32;
    const TensorView on_gpu =
        make_view(const_cast<Number*>(pointer), dtype, {count}, context_.device);
    pointer = tensor(on_gpu, buffer).template as<Number>();
  };
  SelectorParams on_cpu = params;
  on_cpu.q = tensor(params.q, q_);
  on_cpu.kv.k = tensor(params.kv.k, k_);
  on_cpu.kv.v = {};  // no selector reads values
  const int64_t batch_size = params.batch.batch_size;
  numbers(on_cpu.batch.q_offsets, batch_size + 1, q_offsets_);
  numbers(on_cpu.batch.kv_lens, batch_size, kv_lens_);
  numbers(on_cpu.prompt_lens, batch_size, prompt_lens_);
  numbers(on_cpu.kv.page_table, batch_size * params.kv.page_table_stride, page_table_);
  numbers(on_cpu.kv.kv_offsets, batch_size, kv_offsets_);
  numbers(on_cpu.block_offsets, batch_size, block_offsets_);
  BlockStatsView& stats = on_cpu.stats;
  stats.centroid = tensor(stats.centroid, centroid_);
  stats.radius = tensor(stats.radius, radius_);
  stats.v_mean = {};
  stats.witness = tensor(stats.witness, witness_);
  stats.rest_mean = tensor(stats.rest_mean, rest_mean_);
  stats.non_finite = tensor(stats.non_finite, non_finite_);
  return on_cpu;
}

const BlockSelectionView& HostSelection::select(const SelectorParams& params) {
  Context cpu;
  cpu.num_threads = context_.num_threads;
  select_blocks(copy_to_cpu(params), cpu, selection_);
  view_ = selection_.view();
  view_.q_block_offsets = upload(selection_.q_block_offsets, list_q_block_offsets_, context_);
  view_.begin = upload(selection_.begin, list_begin_, context_);
  view_.len = upload(selection_.len, list_len_, context_);
  view_.blocks = upload(selection_.blocks, list_blocks_, context_);
  return view_;
}

int64_t HostSelection::size_bytes() const {
  return list_q_block_offsets_.size_bytes() + list_begin_.size_bytes() + list_len_.size_bytes() +
         list_blocks_.size_bytes();
}

}  // namespace fovea
