// Bad arguments: each broken rule is one clear error that names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/cases/attention_cases.h"

namespace fovea {
namespace {

using cases::AttentionCase;
using cases::AttentionData;
using cases::Lists;

void expect_refused(const AttentionCase& shape, const std::function<void(AttentionParams&)>& spoil,
                    const std::string& message) {
  AttentionData data(shape, DType::kF32, 1);
  ASSERT_NO_THROW(check_attention_params(data.params(), {}));
  spoil(data.params());
  try {
    check_attention_params(data.params(), {});
    ADD_FAILURE() << "accepted; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr(message));
  }
}

const AttentionCase kDense{
    .q_lens = {4, 5}, .kv_lens = {10, 5}, .num_q_heads = 4, .num_kv_heads = 2};

AttentionCase paged() {
  AttentionCase shape = kDense;
  shape.page_size = 4;
  return shape;
}

AttentionCase sparse() {
  AttentionCase shape = paged();
  shape.lists = Lists::kAll;
  shape.block_size = 4;
  shape.has_periphery = true;
  return shape;
}

TEST(AttentionChecks, TensorsAgreeWithEachOther) {
  expect_refused(
      kDense, [](AttentionParams& p) { p.q.rank = 2; }, "q must have rank 3");
  expect_refused(
      kDense, [](AttentionParams& p) { p.q.stride[2] = 2; }, "last stride of q");
  expect_refused(
      kDense, [](AttentionParams& p) { p.q.data = nullptr; }, "q has no data");
  expect_refused(
      kDense, [](AttentionParams& p) { p.q.device.type = DeviceType::kCuda; },
      "q must be on the context's device");
  expect_refused(
      kDense, [](AttentionParams& p) { p.kv.k.dtype = DType::kBF16; }, "type of q");
  expect_refused(
      kDense, [](AttentionParams& p) { p.kv.v.shape[0] = 1; }, "same shape");
  expect_refused(
      kDense, [](AttentionParams& p) { p.kv.k.shape[1] = p.kv.v.shape[1] = 3; },
      "multiple of num_kv_heads");
  expect_refused(
      kDense, [](AttentionParams& p) { p.out.shape[0] = 1; }, "out must be like q");
  expect_refused(
      kDense, [](AttentionParams& p) { p.lse.shape[0] = 1; }, "lse must be f32[4, 9]");
  expect_refused(
      kDense, [](AttentionParams& p) { p.sinks = p.lse; }, "sinks must have rank 1");
}

TEST(AttentionChecks, BatchesStayInsideTheirTensors) {
  static const int64_t kDescending[] = {0, 10, 9}, kShort[] = {0, 4, 8}, kNegative[] = {-1, 5},
                       kLong[] = {10, 500}, kFar[] = {0, 1000};
  expect_refused(
      kDense, [](AttentionParams& p) { p.batch.q_offsets = kDescending; }, "ascend");
  expect_refused(
      kDense, [](AttentionParams& p) { p.batch.q_offsets = kShort; }, "must end at");
  expect_refused(
      kDense, [](AttentionParams& p) { p.batch.kv_lens = kNegative; }, "kv_lens[0]");
  expect_refused(
      kDense, [](AttentionParams& p) { p.batch.kv_lens = kLong; }, "lie outside");
  expect_refused(
      kDense, [](AttentionParams& p) { p.kv.kv_offsets = kFar; }, "lie outside");
  expect_refused(
      kDense, [](AttentionParams& p) { p.kv.kv_offsets = nullptr; }, "kv_offsets");
  expect_refused(
      paged(), [](AttentionParams& p) { p.batch.kv_lens = kLong; }, "needs 125 pages");
  expect_refused(
      paged(), [](AttentionParams& p) { p.kv.page_size = 5; }, "pages of 4");
  static const int32_t kPages[] = {0, 1, 99, 2, 3, 4, 5, 6};
  expect_refused(
      paged(), [](AttentionParams& p) { p.kv.page_table = kPages; }, "entry 2 is 99");
}

TEST(AttentionChecks, NumbersAreSensible) {
  expect_refused(
      kDense, [](AttentionParams& p) { p.softmax_scale = -1; }, "softmax_scale");
  expect_refused(
      kDense, [](AttentionParams& p) { p.softmax_scale = std::stof("nan"); }, "softmax_scale");
  expect_refused(
      kDense, [](AttentionParams& p) { p.window_left = -2; }, "window_left");
}

TEST(AttentionChecks, SelectionsNameBlocksThatExist) {
  BlockSelectionView view;
  const auto spoil = [&](const std::function<void(BlockSelectionView&)>& change) {
    return [&view, change](AttentionParams& p) {
      view = *p.selection;
      change(view);
      p.selection = &view;
    };
  };
  expect_refused(sparse(), spoil([](auto& s) { s.block_size = 0; }), "block_size must be");
  expect_refused(sparse(), spoil([](auto& s) { s.num_q_heads = 3; }), "is for 3 q heads");
  expect_refused(sparse(), spoil([](auto& s) { s.num_blocks = 2; }), "outside the pool");
  expect_refused(sparse(), spoil([](auto& s) { s.blocks = nullptr; }), "lacks");
  static std::vector<int32_t> blocks;
  const auto with_block = [&](int32_t block) {
    return spoil([block](auto& s) {
      blocks.assign(s.blocks, s.blocks + s.num_blocks);
      blocks[1] = block;
      s.blocks = blocks.data();
    });
  };
  expect_refused(sparse(), with_block(0), "must ascend");
  expect_refused(sparse(), with_block(77), "stay under");
  static const int64_t kOffsets[] = {0, 1, 2};
  expect_refused(sparse(), spoil([](auto& s) { s.q_block_offsets = kOffsets; }), "must hold");
}

TEST(AttentionChecks, PeripheryNeedsASelectionCausalityAndMeans) {
  expect_refused(
      sparse(), [](AttentionParams& p) { p.selection = nullptr; }, "needs a selection");
  expect_refused(
      sparse(), [](AttentionParams& p) { p.causal = false; }, "causal attention");
  expect_refused(
      sparse(), [](AttentionParams& p) { p.periphery.v_mean.shape[1] = 1; },
      "must be [pages, 2, 64]");
  expect_refused(
      sparse(),
      [](AttentionParams& p) { p.periphery.k_mean.shape[0] = p.periphery.v_mean.shape[0] = 1; },
      "k has");
}

}  // namespace
}  // namespace fovea
