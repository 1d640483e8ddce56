// Where a step's tokens sit, in memory of the device that computes it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "fovea/attention/kv_view.h"
#include "fovea/base/context.h"
#include "fovea/ops/sampling_rule.h"
#include "fovea/tensor/tensor.h"

namespace fovea {

/// Its addresses change with generation() only, when a step is larger than any before.
class StepInput {
 public:
  explicit StepInput(Device device) : device_(device) {}

  /// Rows of `tokens` sit at `position` and after it. They are also cut into pieces of
  /// `rows_per_piece` rows, each a sequence that ends with the piece. Kernels are told that the
  /// page table has room for `page_table_stride` pages. A token is drawn by `draw`, if any is.
  void set(std::span<const int32_t> tokens, int64_t position, std::span<const int32_t> page_table,
           int64_t page_table_stride, int64_t prompt_len, int64_t rows_per_piece,
           const Context& context, const Draw& draw = {});

  const int32_t* tokens() const { return reinterpret_cast<const int32_t*>(numbers(num_numbers_)); }
  const int32_t* page_table() const { return tokens() + num_tokens_; }
  int64_t page_table_stride() const { return num_pages_; }
  int64_t generation() const { return generation_; }
  const int64_t* position() const { return numbers(0); }
  const int64_t* prompt_len() const { return numbers(1); }
  const Draw* draw() const { return reinterpret_cast<const Draw*>(numbers(2)); }

  /// All rows.
  RaggedBatch batch() const { return {1, numbers(kBatch), numbers(kBatch + 2)}; }
  int64_t num_pieces() const { return num_pieces_; }
  RaggedBatch piece(int64_t i) const {
    return {1, numbers(kPieces + 3 * i), numbers(kPieces + 3 * i + 2)};
  }

 private:
  // Where these begin, see memory_.
  static constexpr int64_t kBatch = 2 + sizeof(Draw) / sizeof(int64_t), kPieces = kBatch + 3;

  const int64_t* numbers(int64_t first) const { return memory_.as<int64_t>() + first; }
  /// Makes room for `count` elements.
  void grow(int64_t count);

  Device device_;
  std::shared_ptr<void> staged_;
  /// i64: position, prompt length, draw, q_offsets and kv_len of all and of each piece; after them
  /// i32: tokens, page table.
  Tensor memory_;
  int64_t num_numbers_ = 0, num_tokens_ = 0, num_pages_ = 0, num_pieces_ = 0;
  int64_t generation_ = 0;
};

}  // namespace fovea
