// Dense is a selection: attention through `all` is attention without one, through pages that lie in
// shuffled order.
#include <gtest/gtest.h>

#include "fovea/attention/attention.h"
#include "tests/selector/selector_case.h"

namespace fovea {
namespace {

using testing::CaseShape;
using testing::make_prompt;
using testing::WholePrompt;

TEST(SelectedAttention, AllEqualsDense) {
  CaseShape shape;
  shape.head_dim = 64;
  shape.block_size = 128;
  SelectorSettings settings;
  settings.method = SelectorMethod::kAll;
  WholePrompt whole(shape, make_prompt(shape, 5 * 128 + 17, 3), settings);
  BlockSelection selection;
  select_blocks(whole.call.params, {}, selection);
  const BlockSelectionView view = selection.view();

  const int64_t rows = whole.prompt.len;
  Tensor dense(DType::kF32, {rows, shape.num_q_heads, shape.head_dim});
  Tensor sparse(DType::kF32, {rows, shape.num_q_heads, shape.head_dim});
  AttentionParams params;
  params.q = whole.call.params.q;
  params.kv = whole.call.params.kv;
  params.batch = whole.call.params.batch;
  params.out = dense.view();
  attend(params, {});
  params.out = sparse.view();
  params.selection = &view;
  attend(params, {});
  // The two may walk the keys in other tiles; values are means of standard normals.
  for (int64_t i = 0; i < rows * shape.num_q_heads * shape.head_dim; ++i) {
    ASSERT_NEAR(sparse.as<float>()[i], dense.as<float>()[i], 2e-6f) << "element " << i;
  }
}

TEST(SelectedAttention, RescueAtFullDensityEqualsAll) {
  const CaseShape shape;
  SelectorSettings settings;
  settings.density = 1;
  WholePrompt whole(shape, make_prompt(shape, 9 * shape.block_size + 3, 3), settings);
  BlockSelection full, all;
  select_blocks(whole.call.params, {}, full);
  whole.call.params.settings.method = SelectorMethod::kAll;
  select_blocks(whole.call.params, {}, all);
  EXPECT_EQ(full.blocks, all.blocks);
  EXPECT_EQ(full.len, all.len);
}

}  // namespace
}  // namespace fovea
