#include "fovea/selector/selection_buffer.h"

#include <utility>

#ifdef FOVEA_WITH_CUDA
#include "fovea/selector/cuda/cuda_selection_buffer.h"
#endif

namespace fovea {
namespace {

class CpuSelectionBuffer final : public SelectionBuffer {
 public:
  explicit CpuSelectionBuffer(const Context& context) : context_(context) {}

  const BlockSelectionView& select(const SelectorParams& params) override {
    select_blocks(params, context_, selection_);
    view_ = selection_.view();
    lengths_.push_back(lengths_of(selection_));
    return view_;
  }

  std::vector<SelectionLengths> take_lengths() override { return std::exchange(lengths_, {}); }

  int64_t size_bytes() const override {
    return static_cast<int64_t>(selection_.begin.capacity() * sizeof(int64_t) +
                                selection_.len.capacity() * sizeof(int32_t) +
                                selection_.blocks.capacity() * sizeof(int32_t));
  }

  const std::string& note() const override { return note_; }

 private:
  Context context_;
  BlockSelection selection_;
  BlockSelectionView view_;
  std::vector<SelectionLengths> lengths_;
  const std::string note_;
};

}  // namespace

SelectionLengths lengths_of(const BlockSelection& selection) {
  return {selection.num_q_heads,  selection.num_q_blocks,     selection.len,
          selection.forced_pairs, selection.non_finite_pairs, selection.skipped_pairs};
}

int64_t planned_selection_bytes([[maybe_unused]] const SelectorSettings& settings,
                                [[maybe_unused]] const SelectionShape& shape,
                                [[maybe_unused]] Device device) {
#ifdef FOVEA_WITH_CUDA
  if (device.type == DeviceType::kCuda) return planned_cuda_selection_bytes(settings, shape);
#endif
  return 0;
}

std::unique_ptr<SelectionBuffer> make_selection_buffer(const Context& context) {
#ifdef FOVEA_WITH_CUDA
  if (context.device.type == DeviceType::kCuda) return make_cuda_selection_buffer(context);
#endif
  return std::make_unique<CpuSelectionBuffer>(context);
}

}  // namespace fovea
