#include "fovea/engine/step_input.h"

#include <algorithm>

#include "fovea/base/checked_math.h"
#include "fovea/tensor/device_memory.h"

namespace fovea {
namespace {

/// Makes `staged` and `tensor` hold at least `count` elements; returns whether they were replaced.
bool grow(DType dtype, int64_t count, Device device, Tensor& staged, Tensor& tensor) {
  if (!staged.empty() && staged.view().shape[0] >= count) return false;
  staged = Tensor(dtype, {count});
  tensor = Tensor(dtype, {count}, device);
  return true;
}

void upload(const Tensor& staged, const Tensor& tensor, int64_t count, const Context& context) {
  const auto part = [&](const Tensor& whole) {
    TensorView view = whole.view();
    view.shape[0] = count;
    return view;
  };
  copy_tensor(part(staged), part(tensor), context);
}

}  // namespace

void StepInput::set(std::span<const int32_t> tokens, int64_t position,
                    std::span<const int32_t> page_table, int64_t page_table_stride,
                    int64_t prompt_len, int64_t rows_per_piece, const Context& context) {
  num_tokens_ = static_cast<int64_t>(tokens.size());
  num_pages_ = page_table_stride;
  num_pieces_ = ceil_div(num_tokens_, rows_per_piece);

  if (grow(DType::kI32, num_tokens_ + num_pages_, device_, staged_ids_, ids_)) ++generation_;
  int32_t* ids = std::copy(tokens.begin(), tokens.end(), staged_ids_.as<int32_t>());
  std::fill(std::copy(page_table.begin(), page_table.end(), ids), ids + num_pages_, 0);
  upload(staged_ids_, ids_, num_tokens_ + num_pages_, context);

  const int64_t num_numbers = 5 + 3 * num_pieces_;
  if (grow(DType::kI64, num_numbers, device_, staged_numbers_, numbers_)) ++generation_;
  auto* numbers = staged_numbers_.as<int64_t>();
  *numbers++ = position;
  *numbers++ = prompt_len;
  const auto add_sequence = [&](int64_t rows, int64_t end_row) {
    *numbers++ = 0;
    *numbers++ = rows;
    *numbers++ = position + end_row;
  };
  add_sequence(num_tokens_, num_tokens_);
  for (int64_t row = 0; row < num_tokens_; row += rows_per_piece) {
    const int64_t rows = std::min(rows_per_piece, num_tokens_ - row);
    add_sequence(rows, row + rows);
  }
  upload(staged_numbers_, numbers_, num_numbers, context);
}

}  // namespace fovea
