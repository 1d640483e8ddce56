#include "fovea/engine/step_input.h"

#include <algorithm>
#include <cstring>

#include "fovea/base/checked_math.h"
#include "fovea/tensor/device_memory.h"

namespace fovea {

void StepInput::grow(int64_t count) {
  if (memory_.size_bytes() >= count * dtype_bytes(DType::kI64)) return;
  staged_ = make_staging(count * dtype_bytes(DType::kI64), device_);
  memory_ = Tensor(DType::kI64, {count}, device_);
  ++generation_;
}

void StepInput::set(std::span<const int32_t> tokens, int64_t position,
                    std::span<const int32_t> page_table, int64_t page_table_stride,
                    int64_t prompt_len, int64_t rows_per_piece, const Context& context,
                    const Draw& draw) {
  num_tokens_ = static_cast<int64_t>(tokens.size());
  num_pages_ = page_table_stride;
  num_pieces_ = ceil_div(num_tokens_, rows_per_piece);
  num_numbers_ = kPieces + 3 * num_pieces_;
  const int64_t count = num_numbers_ + ceil_div(num_tokens_ + num_pages_, 2);
  synchronize(context);  // a step that was cancelled may still be copying from staged_
  grow(count);

  auto* numbers = static_cast<int64_t*>(staged_.get());
  *numbers++ = position;
  *numbers++ = prompt_len;
  std::memcpy(numbers, &draw, sizeof(draw));
  numbers += sizeof(draw) / sizeof(int64_t);
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
  auto* ids = std::copy(tokens.begin(), tokens.end(), reinterpret_cast<int32_t*>(numbers));
  std::fill(std::copy(page_table.begin(), page_table.end(), ids), ids + num_pages_, 0);

  TensorView to = memory_.view();
  to.shape[0] = count;
  enqueue_copy(make_view(staged_.get(), DType::kI64, {count}), to, context);
}

}  // namespace fovea
