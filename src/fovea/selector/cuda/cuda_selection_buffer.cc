#include "fovea/selector/cuda/cuda_selection_buffer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/selector/cuda/cuda_selector.h"
#include "fovea/selector/cuda/host_selection.h"
#include "fovea/selector/selection_rules.h"
#include "fovea/tensor/device_memory.h"

namespace fovea {
namespace {

/// Lists that keep everything take no room; where pages that are not finite make others longer than
/// the settings allow, those that find none keep everything too.
int64_t pool_entries(const SelectorSettings& settings, const DeviceSelection::Sizes& sizes) {
  return checked_mul(sizes.num_q_heads * sizes.max_q_blocks,
                     most_kept_blocks(settings, sizes.max_kv_blocks), "entries of lists");
}

DeviceSelection::Sizes sizes_of(const SelectorParams& params) {
  DeviceSelection::Sizes sizes = CudaSelector::sizes_for(params, 0);
  sizes.pool_entries = pool_entries(params.settings, sizes);
  return sizes;
}

class CudaSelectionBuffer final : public SelectionBuffer {
 public:
  explicit CudaSelectionBuffer(const Context& context) : context_(context), on_host_(context) {}

  const BlockSelectionView& select(const SelectorParams& params) override {
    check_selector_params(params, context_);
    if (num_taken_ == logs_.size()) logs_.emplace_back();
    Log& log = logs_[num_taken_++];
    const std::string reason = cuda_selector().why_unsupported(params, context_);
    log.is_on_gpu = reason.empty();
    if (!reason.empty()) {
      note_ = fmt::format("blocks were selected on the CPU, which is slow: {} {}",
                          cuda_selector().name(), reason);
      const BlockSelectionView& view = on_host_.select(params);
      log.on_cpu = lengths_of(on_host_.on_cpu());
      return view;
    }
    note_.clear();
    make_room(sizes_of(params));
    cuda_selector().run(params, context_, *selection_);
    const BlockSelectionView& view = selection_->view();
    log.num_q_heads = view.num_q_heads;
    log.num_q_blocks = view.num_q_blocks;
    const int64_t lists = view.num_q_heads * view.num_q_blocks;
    if (log.lengths.size_bytes() < lists * dtype_bytes(DType::kI32)) {
      log.lengths = Tensor(DType::kI32, {lists}, context_.device);
      log.pairs = Tensor(DType::kI64, {2}, context_.device);
    }
    selection_->copy_lengths(log.lengths.as<int32_t>(), log.pairs.as<int64_t>());
    return view;
  }

  std::vector<SelectionLengths> take_lengths() override {
    std::vector<SelectionLengths> all(num_taken_);
    for (size_t i = 0; i < num_taken_; ++i) {
      Log& log = logs_[i];
      SelectionLengths& lengths = all[i];
      if (!log.is_on_gpu) {
        lengths = std::move(log.on_cpu);
        continue;
      }
      lengths.num_q_heads = log.num_q_heads;
      lengths.num_q_blocks = log.num_q_blocks;
      const int64_t lists = log.num_q_heads * log.num_q_blocks;
      lengths.len.resize(static_cast<size_t>(lists));
      TensorView on_gpu = log.lengths.view();
      on_gpu.shape[0] = lists;
      copy_tensor(on_gpu, make_view(lengths.len.data(), DType::kI32, {lists}), context_);
      int64_t pairs[2];
      copy_tensor(log.pairs.view(), make_view(pairs, DType::kI64, {2}), context_);
      lengths.forced_pairs = pairs[0];
      lengths.non_finite_pairs = pairs[1];
    }
    num_taken_ = 0;
    return all;
  }

  int64_t size_bytes() const override {
    return (selection_ ? selection_->size_bytes() : 0) + on_host_.size_bytes();
  }

  const std::string& note() const override { return note_; }

 private:
  /// Lengths of one selection, where it was made.
  struct Log {
    bool is_on_gpu = true;
    SelectionLengths on_cpu;
    int64_t num_q_heads = 0, num_q_blocks = 0;
    Tensor lengths, pairs;
  };

  void make_room(const DeviceSelection::Sizes& needed) {
    DeviceSelection::Sizes& has = sizes_;
    if (selection_ && has.num_q_heads == needed.num_q_heads &&
        has.batch_size >= needed.batch_size && has.max_q_blocks >= needed.max_q_blocks &&
        has.max_kv_blocks >= needed.max_kv_blocks && has.pool_entries >= needed.pool_entries) {
      return;
    }
    has.num_q_heads = needed.num_q_heads;
    has.batch_size = std::max(has.batch_size, needed.batch_size);
    has.max_q_blocks = std::max(has.max_q_blocks, needed.max_q_blocks);
    has.max_kv_blocks = std::max(has.max_kv_blocks, needed.max_kv_blocks);
    has.pool_entries = std::max(has.pool_entries, needed.pool_entries);
    synchronize(context_);  // the lists in use
    selection_.reset();
    selection_.emplace(has, context_);
  }

  Context context_;
  DeviceSelection::Sizes sizes_;
  std::optional<DeviceSelection> selection_;
  HostSelection on_host_;
  std::string note_;
  std::vector<Log> logs_;
  size_t num_taken_ = 0;
};

}  // namespace

int64_t planned_cuda_selection_bytes(const SelectorSettings& settings,
                                     const SelectionShape& shape) {
  constexpr int64_t kPairBytes = 256;  // of a selection's log: two numbers, as they are allocated
  DeviceSelection::Sizes sizes;
  sizes.num_q_heads = shape.num_q_heads;
  sizes.batch_size = 1;
  sizes.max_q_blocks = ceil_div(shape.rows, settings.block_size) + 1;
  sizes.max_kv_blocks = ceil_div(shape.kv_len, settings.block_size);
  sizes.pool_entries = pool_entries(settings, sizes);
  const int64_t lengths =
      checked_mul(sizes.num_q_heads * sizes.max_q_blocks, dtype_bytes(DType::kI32), "list bytes");
  return DeviceSelection::bytes_for(sizes) + shape.num_selections * (lengths + kPairBytes) +
         CudaSelector::scratch_bytes(settings, shape.num_kv_heads, shape.head_dim, sizes);
}

std::unique_ptr<SelectionBuffer> make_cuda_selection_buffer(const Context& context) {
  return std::make_unique<CudaSelectionBuffer>(context);
}

}  // namespace fovea
