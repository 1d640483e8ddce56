#include "fovea/engine/step_input.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace fovea {
namespace {

TEST(StepInput, SaysWhereTokensAndPagesAre) {
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9};
  const std::vector<int32_t> pages = {3, 1};
  StepInput input{Device{}};
  input.set(tokens, 130, pages, 4, 900, 2, {}, {.random = 0.25, .top_k = 7});
  EXPECT_EQ(std::vector<int32_t>(input.tokens(), input.tokens() + 5), tokens);
  EXPECT_EQ(input.page_table_stride(), 4);
  EXPECT_EQ(std::vector<int32_t>(input.page_table(), input.page_table() + 4),
            (std::vector<int32_t>{3, 1, 0, 0}));
  EXPECT_EQ(*input.position(), 130);
  EXPECT_EQ(*input.prompt_len(), 900);
  EXPECT_EQ(input.draw()->random, 0.25);
  EXPECT_EQ(input.draw()->top_k, 7);
  EXPECT_EQ(input.batch().q_offsets[1], 5);
  EXPECT_EQ(input.batch().kv_lens[0], 135);
}

TEST(StepInput, PiecesFollowEachOtherAndEndWithTheStep) {
  std::vector<int32_t> tokens(7);
  const std::vector<int32_t> pages = {0};
  StepInput input{Device{}};
  input.set(tokens, 10, pages, 1, 17, 3, {});
  ASSERT_EQ(input.num_pieces(), 3);
  int64_t end = 10;
  for (int64_t i = 0; i < 3; ++i) {
    const RaggedBatch piece = input.piece(i);
    EXPECT_EQ(piece.q_offsets[0], 0);
    end += piece.q_offsets[1];
    EXPECT_EQ(piece.kv_lens[0], end) << i;
  }
  EXPECT_EQ(end, 17);
}

TEST(StepInput, KeepsItsAddressesUntilAStepIsLarger) {
  const std::vector<int32_t> tokens(4), more(40), pages = {0, 1};
  StepInput input{Device{}};
  input.set(tokens, 0, pages, 2, 4, 4, {});
  const int32_t* address = input.tokens();
  const int64_t generation = input.generation();
  input.set(std::span(tokens).first(2), 4, pages, 2, 6, 4, {});
  EXPECT_EQ(input.tokens(), address);
  EXPECT_EQ(input.generation(), generation);
  input.set(more, 6, pages, 2, 46, 40, {});
  EXPECT_NE(input.generation(), generation);
}

}  // namespace
}  // namespace fovea
