#include "fovea/engine/work_count.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fovea {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.num_q_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  return config;
}

/// Pairs of one head, one by one.
int64_t dense_pairs(const StepRows& rows, int64_t window_left) {
  int64_t pairs = 0;
  for (int64_t q = rows.position; q < rows.position + rows.num_rows; ++q) {
    for (int64_t k = 0; k <= q; ++k) pairs += window_left < 0 || k >= q - window_left;
  }
  return pairs;
}

TEST(WorkCount, DenseAttentionIsItsPairsOneByOne) {
  const ModelConfig config = small_config();
  for (const int64_t position : {0, 1, 63, 200}) {
    for (const int64_t num_rows : {1, 2, 100}) {
      for (const int64_t window_left : {-1, 0, 5, 63, 1000}) {
        const StepRows rows{position, num_rows};
        WorkDone work;
        count_dense_attention(config, rows, window_left, 2, &work);
        EXPECT_EQ(work.attention_flops, 4 * 6 * 16 * dense_pairs(rows, window_left))
            << position << " " << num_rows << " " << window_left;
        // The first row reaches furthest back, the last row furthest on.
        const int64_t first_key =
            window_left < 0 ? 0 : std::max<int64_t>(position - window_left, 0);
        EXPECT_EQ(work.kv_bytes, 2 * 2 * 16 * 2 * (position + num_rows - first_key))
            << position << " " << num_rows << " " << window_left;
      }
    }
  }
}

TEST(WorkCount, ListsOfEverythingAreDense) {
  const ModelConfig config = small_config();
  constexpr int64_t kBlock = 32;
  for (const StepRows rows : {StepRows{0, 100}, StepRows{64, 33}, StepRows{70, 1}}) {
    SelectionLengths lengths;
    lengths.num_q_heads = config.num_q_heads;
    const int64_t first = rows.position / kBlock;
    const int64_t end = (rows.position + rows.num_rows + kBlock - 1) / kBlock;
    lengths.num_q_blocks = end - first + 1;  // a GPU's view may have room for more than there are
    for (int64_t head = 0; head < lengths.num_q_heads; ++head) {
      for (int64_t i = 0; i < lengths.num_q_blocks; ++i) {
        lengths.len.push_back(static_cast<int32_t>(first + i + 1));
      }
    }
    WorkDone sparse, dense;
    count_sparse_attention(config, rows, kBlock, lengths, 2, &sparse);
    count_dense_attention(config, rows, -1, 2, &dense);
    EXPECT_EQ(sparse.attention_flops, dense.attention_flops) << rows.position;
    EXPECT_EQ(sparse.kv_bytes, dense.kv_bytes) << rows.position;
  }
}

TEST(WorkCount, AnEmptyListIsNoWork) {
  SelectionLengths lengths{6, 1, std::vector<int32_t>(6, 0), 0, 0};
  WorkDone work;
  count_sparse_attention(small_config(), {0, 32}, 32, lengths, 2, &work);
  EXPECT_EQ(work.attention_flops, 0);
}

}  // namespace
}  // namespace fovea
