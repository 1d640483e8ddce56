// The Hopper backend against the double-precision reference, and the properties it promises.
#include <gtest/gtest.h>

#include <cmath>

#include "fovea/attention/cuda/cuda_backend.h"
#include "fovea/attention/reference/reference_attention.h"
#include "tests/attention/cuda_mirror.h"
#include "tests/cases/attention_cases.h"
#include "tests/cases/tolerances.h"

namespace fovea {
namespace {

using cases::AttentionCase;
using cases::AttentionData;
using cases::DeviceMirror;
using cases::Lists;
using cases::row_difference;

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cases::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

/// What the backend says it can do, so that no case drops out unseen.
bool is_supported(const AttentionCase& c) {
  const bool has_blocks_of_64 = c.lists != Lists::kNone && c.block_size == 64;
  const int64_t tile = c.head_dim == 256 || has_blocks_of_64 ? 64 : 128;
  const bool has_head_dim = c.head_dim == 64 || c.head_dim == 128 || c.head_dim == 256;
  const bool has_pages =
      c.page_size == 0 || c.page_size % tile == 0 || (c.page_size >= 8 && tile % c.page_size == 0);
  const bool has_lists = c.lists == Lists::kNone || has_blocks_of_64 || c.block_size % 128 == 0;
  return has_head_dim && has_pages && has_lists;
}

/// Shapes that the shared table has no reason to hold: many tiles, every head_dim, mixed options.
std::vector<AttentionCase> larger_cases() {
  std::vector<AttentionCase> all;
  for (const int64_t head_dim : {64, 128, 256}) {
    const auto add = [&](const char* name, AttentionCase c) {
      c.name = fmt::format("{}_{}", name, head_dim);
      c.head_dim = head_dim;
      all.push_back(std::move(c));
    };
    add("long", {.q_lens = {1500}, .kv_lens = {1500}, .num_q_heads = 4, .num_kv_heads = 2});
    add("group_of_7", {.q_lens = {400}, .kv_lens = {900}, .num_q_heads = 7, .num_kv_heads = 1});
    add("full", {.q_lens = {300, 128}, .kv_lens = {1000, 512}, .causal = false});
    add("ragged_long", {.q_lens = {129, 0, 640, 1, 127, 256},
                        .kv_lens = {1000, 300, 640, 2000, 127, 384},
                        .num_q_heads = 4,
                        .num_kv_heads = 2});
    for (const int64_t page_size : {8, 32, 64, 128, 256}) {
      add(fmt::format("pages_{}", page_size).c_str(), {.q_lens = {700, 100, 1},
                                                       .kv_lens = {700, 1111, 257},
                                                       .num_q_heads = 4,
                                                       .num_kv_heads = 2,
                                                       .page_size = page_size});
    }
    for (const int64_t window : {0, 127, 128, 129, 500}) {
      add(fmt::format("window_{}", window).c_str(),
          {.q_lens = {900, 70}, .kv_lens = {900, 1234}, .window_left = window});
    }
    add("sinks", {.q_lens = {333}, .kv_lens = {777}, .num_q_heads = 3, .has_sinks = true});
    for (const Lists lists : {Lists::kAll, Lists::kRandom, Lists::kNoDiagonal, Lists::kSomeEmpty}) {
      for (const int64_t block_size : {64, 128, 256}) {
        add(fmt::format("lists_{}_{}", static_cast<int>(lists), block_size).c_str(),
            {.q_lens = {1500, 0, 200, 1},
             .kv_lens = {1500, 40, 1777, 3000},
             .num_q_heads = 4,
             .num_kv_heads = 2,
             .lists = lists,
             .block_size = block_size});
      }
    }
    add("lists_paged_window_sinks", {.q_lens = {1000, 300},
                                     .kv_lens = {1500, 5600},
                                     .num_q_heads = 6,
                                     .num_kv_heads = 2,
                                     .window_left = 700,
                                     .has_sinks = true,
                                     .page_size = 64,
                                     .lists = Lists::kRandom,
                                     .density = 0.5});
    for (const Lists lists : {Lists::kAll, Lists::kRandom, Lists::kNoDiagonal, Lists::kSomeEmpty}) {
      for (const int64_t block_size : {64, 128, 256}) {
        add(fmt::format("periphery_{}_{}", static_cast<int>(lists), block_size).c_str(),
            {.q_lens = {1500, 0, 200, 1},
             .kv_lens = {1500, 40, 1777, 3000},
             .num_q_heads = 4,
             .num_kv_heads = 2,
             .has_sinks = lists == Lists::kSomeEmpty,
             .lists = lists,
             .block_size = block_size,
             .has_periphery = true});
      }
    }
    add("periphery_paged_window", {.q_lens = {900, 130, 1},
                                   .kv_lens = {1500, 2600, 700},
                                   .num_q_heads = 6,
                                   .num_kv_heads = 2,
                                   .window_left = 600,
                                   .page_size = 128,
                                   .lists = Lists::kRandom,
                                   .has_periphery = true});
    add("periphery_of_several_tiles", {.q_lens = {60, 20},
                                       .kv_lens = {128 * 150 + 30, 128 * 140},
                                       .num_q_heads = 1,
                                       .num_kv_heads = 1,
                                       .lists = Lists::kRandom,
                                       .density = 0.03,
                                       .has_periphery = true,
                                       .is_strided = true});
    // The diagonal is the first block past a whole tile of means.
    add("periphery_behind_a_tile", {.q_lens = {20},
                                    .kv_lens = {128 * 128 + 20},
                                    .num_q_heads = 1,
                                    .num_kv_heads = 1,
                                    .lists = Lists::kRandom,
                                    .density = 0.05,
                                    .has_periphery = true});
    add("decode", {.q_lens = std::vector<int64_t>(12, 1),
                   .kv_lens = {1, 5000, 128, 129, 0, 3333, 64, 1000, 7, 256, 2000, 127},
                   .num_q_heads = 14,
                   .num_kv_heads = 2});
    add("decode_paged_window_sinks", {.q_lens = {1, 0, 8, 3, 0, 1},
                                      .kv_lens = {4000, 300, 2050, 3, 5, 1},
                                      .num_q_heads = 8,
                                      .num_kv_heads = 1,
                                      .window_left = 1500,
                                      .has_sinks = true,
                                      .page_size = 64});
    add("padded", {.q_lens = {300, 64}, .kv_lens = {300, 800}, .is_strided = true});
  }
  return all;
}

void expect_like_reference(const AttentionCase& shape, DType dtype) {
  SCOPED_TRACE(fmt::format("{} {}", shape.name, dtype_name(dtype)));
  AttentionData data(shape, DType::kF32, 7);
  cases::round_inputs(data, dtype);
  DeviceMirror mirror(data, dtype, shape.is_strided);
  const AttentionBackend& backend = cuda_attention_backend();
  const std::string reason = backend.why_unsupported(mirror.params(), DeviceMirror::context());
  ASSERT_EQ(reason.empty(), is_supported(shape)) << reason;
  if (!reason.empty()) return;
  check_attention_params(mirror.params(), DeviceMirror::context());
  mirror.run(backend);
  reference_attention_backend().run(data.params(), {});
  EXPECT_EQ(row_difference(mirror.out(), data.out(), shape.head_dim, dtype), "");
  cases::expect_lse(mirror.lse(), data.lse(), cases::kLseTolerance);
  EXPECT_TRUE(mirror.is_untouched());
}

TEST_F(CudaAttention, EqualsTheReferenceOverTheTableInBf16) {
  for (const AttentionCase& shape : cases::attention_cases()) {
    expect_like_reference(shape, DType::kBF16);
  }
}

TEST_F(CudaAttention, EqualsTheReferenceOverTheTableInF16) {
  for (const AttentionCase& shape : cases::attention_cases()) {
    expect_like_reference(shape, DType::kF16);
  }
}

TEST_F(CudaAttention, EqualsTheReferenceOnLargerShapesInBf16) {
  for (const AttentionCase& shape : larger_cases()) expect_like_reference(shape, DType::kBF16);
}

TEST_F(CudaAttention, EqualsTheReferenceOnLargerShapesInF16) {
  for (const AttentionCase& shape : larger_cases()) expect_like_reference(shape, DType::kF16);
}

/// Rows of `all` (order of a [rows, heads, head_dim] view) that belong to query rows [begin, end).
std::vector<float> rows_of(const std::vector<float>& all, const AttentionParams& params,
                           int64_t begin, int64_t end) {
  const int64_t width = params.num_q_heads() * params.head_dim();
  return {all.begin() + begin * width, all.begin() + end * width};
}

TEST_F(CudaAttention, ARowsBitsDependOnNeitherChunksNorBatchMates) {
  const AttentionCase whole{
      .q_lens = {777}, .kv_lens = {777}, .head_dim = 128, .num_q_heads = 4, .num_kv_heads = 2};
  AttentionData data(whole, DType::kF32, 3);
  DeviceMirror one(data, DType::kBF16, false);
  one.run(cuda_attention_backend());
  for (const int64_t split : {1, 100, 128, 500}) {
    // The same K and V; the rows before `split` are another sequence of their own keys.
    const int64_t q_offsets[] = {0, split, 777};
    const int64_t kv_lens[] = {split, 777};
    const int64_t kv_offsets[] = {data.params().kv.kv_offsets[0], data.params().kv.kv_offsets[0]};
    DeviceMirror two(data, DType::kBF16, false);
    const auto q = cases::DeviceBuffer::copy_of(q_offsets, 3);
    const auto lens = cases::DeviceBuffer::copy_of(kv_lens, 2);
    const auto offsets = cases::DeviceBuffer::copy_of(kv_offsets, 2);
    two.params().batch = {2, q.as<int64_t>(), lens.as<int64_t>()};
    two.params().kv.kv_offsets = offsets.as<int64_t>();
    two.run(cuda_attention_backend());
    EXPECT_EQ(two.out(), one.out()) << "split at " << split;
    EXPECT_EQ(two.lse(), one.lse()) << "split at " << split;
  }
}

TEST_F(CudaAttention, ARowsBitsDependOnNoChunkWithPeriphery) {
  const AttentionCase whole{.q_lens = {900},
                            .kv_lens = {900},
                            .head_dim = 128,
                            .num_q_heads = 4,
                            .num_kv_heads = 2,
                            .lists = Lists::kRandom,
                            .has_periphery = true};
  AttentionData data(whole, DType::kF32, 3);
  DeviceMirror one(data, DType::kBF16, false);
  one.run(cuda_attention_backend());
  // The last query blocks alone: the lists of a chunk are the last ones of every head.
  const int64_t first_block = 4, q_len = 900 - first_block * 128;
  BlockSelectionView lists = *data.params().selection;
  std::vector<int64_t> begin;
  std::vector<int32_t> len;
  for (int64_t h = 0; h < lists.num_q_heads; ++h) {
    for (int64_t i = first_block; i < lists.num_q_blocks; ++i) {
      begin.push_back(lists.begin[h * lists.num_q_blocks + i]);
      len.push_back(lists.len[h * lists.num_q_blocks + i]);
    }
  }
  const int64_t num_q_blocks = lists.num_q_blocks - first_block;
  const int64_t q_offsets[] = {0, q_len}, q_block_offsets[] = {0, num_q_blocks};
  DeviceMirror two(data, DType::kBF16, false);
  const auto q = cases::DeviceBuffer::copy_of(q_offsets, 2);
  const auto blocks = cases::DeviceBuffer::copy_of(q_block_offsets, 2);
  const auto begins = cases::DeviceBuffer::copy_of(begin.data(), std::ssize(begin));
  const auto lens = cases::DeviceBuffer::copy_of(len.data(), std::ssize(len));
  BlockSelectionView part = *two.params().selection;
  part.num_q_blocks = num_q_blocks;
  part.q_block_offsets = blocks.as<int64_t>();
  part.begin = begins.as<int64_t>();
  part.len = lens.as<int32_t>();
  two.params().selection = &part;
  two.params().batch.q_offsets = q.as<int64_t>();
  const int64_t first_row = first_block * 128;
  two.params().q.data = two.params().q.as<uint16_t>() + first_row * two.params().q.stride[0];
  two.params().q.shape[0] = two.params().out.shape[0] = two.params().lse.shape[1] = q_len;
  two.run(cuda_attention_backend());
  EXPECT_EQ(two.out(), rows_of(one.out(), one.params(), first_row, 900));
}

TEST_F(CudaAttention, ADecodedRowsBitsDependOnNoBatchMatesInItsMode) {
  // bug 13
  const AttentionCase batch{.q_lens = {1, 1, 4, 1, 0, 1},
                            .kv_lens = {5000, 1, 900, 20000, 7, 256},
                            .head_dim = 128,
                            .num_q_heads = 8,
                            .num_kv_heads = 2,
                            .has_sinks = true,
                            .page_size = 128};
  AttentionData data(batch, DType::kF32, 3);
  DeviceMirror all(data, DType::kBF16, false);
  all.params().batch_invariant = true;
  all.run(cuda_attention_backend());
  reference_attention_backend().run(data.params(), {});
  EXPECT_EQ(row_difference(all.out(), data.out(), batch.head_dim, DType::kBF16), "");
  int64_t first_row = 0;
  for (size_t s = 0; s < batch.q_lens.size(); first_row += batch.q_lens[s++]) {
    const int64_t q_len = batch.q_lens[s];
    if (q_len == 0) continue;
    DeviceMirror one(data, DType::kBF16, false);
    AttentionParams& params = one.params();
    params.batch_invariant = true;
    const int64_t q_offsets[] = {0, q_len};
    const auto offsets = cases::DeviceBuffer::copy_of(q_offsets, 2);
    params.batch = {1, offsets.as<int64_t>(), params.batch.kv_lens + s};
    params.kv.page_table += static_cast<int64_t>(s) * params.kv.page_table_stride;
    params.q.data = params.q.as<uint16_t>() + first_row * params.q.stride[0];
    params.q.shape[0] = params.out.shape[0] = params.lse.shape[1] = q_len;
    one.run(cuda_attention_backend());
    EXPECT_EQ(one.out(), rows_of(all.out(), all.params(), first_row, first_row + q_len))
        << "sequence " << s;
  }
}

TEST_F(CudaAttention, DecodeThatReadsOldKeysEarlyGivesTheSameBits) {
  for (const int64_t kv_len : {1, 16, 17, 272, 2049, 20000}) {
    SCOPED_TRACE(kv_len);
    const AttentionCase shape{.q_lens = {1},
                              .kv_lens = {kv_len},
                              .head_dim = 128,
                              .num_q_heads = 8,
                              .num_kv_heads = 2,
                              .page_size = 64};
    const AttentionData data(shape, DType::kF32, 3);
    DeviceMirror late(data, DType::kBF16, false), early(data, DType::kBF16, false);
    late.run(cuda_attention_backend());
    early.params().only_last_key_is_new = true;
    early.run(cuda_attention_backend());
    EXPECT_EQ(early.out(), late.out());
    EXPECT_EQ(early.lse(), late.lse());
  }
}

/// Weights are taken relative to a maximum that is found out to be too small only afterwards, up to
/// the point where they leave the range of f32. Rows rise from tile to tile as the sum of their q.
TEST_F(CudaAttention, AMaximumMayJumpByAnyAmount) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      for (const float growth : {0.3f, 2.f, 10.f, 40.f, 150.f}) {
        SCOPED_TRACE(fmt::format("head_dim {}, growth {}", head_dim, growth));
        AttentionData data({.q_lens = {300}, .kv_lens = {1100}, .head_dim = head_dim}, DType::kF32,
                           3);
        for (int64_t t = 0; t < 1100; ++t) {
          data.set_key(
              0, t, 0,
              growth * static_cast<float>(8 - t / 128) + static_cast<float>(t * 37 % 16) / 16);
        }
        cases::round_inputs(data, dtype);
        DeviceMirror mirror(data, dtype, false);
        mirror.run(cuda_attention_backend());
        reference_attention_backend().run(data.params(), {});
        EXPECT_EQ(row_difference(mirror.out(), data.out(), head_dim, dtype), "");
      }
    }
  }
}

TEST_F(CudaAttention, SelectingEverythingIsDense) {
  AttentionCase shape{.q_lens = {600, 100},
                      .kv_lens = {600, 900},
                      .head_dim = 128,
                      .num_q_heads = 4,
                      .num_kv_heads = 2,
                      .lists = Lists::kAll};
  AttentionData data(shape, DType::kF32, 3);
  DeviceMirror sparse(data, DType::kBF16, false);
  sparse.run(cuda_attention_backend());
  DeviceMirror dense(data, DType::kBF16, false);
  dense.params().selection = nullptr;
  dense.run(cuda_attention_backend());
  EXPECT_EQ(sparse.out(), dense.out());
  EXPECT_EQ(sparse.lse(), dense.lse());
}

TEST_F(CudaAttention, NanStaysInItsRowAndInfinityBehavesAsInTheReference) {
  const AttentionCase shape{.q_lens = {300}, .kv_lens = {300}, .num_q_heads = 1};
  AttentionData data(shape, DType::kF32, 3);
  cases::set(data.params().q, 250 * data.params().q.stride[0] + 5, NAN);
  data.set_key(0, 10, 0, INFINITY);
  cases::round_inputs(data, DType::kBF16);
  DeviceMirror mirror(data, DType::kBF16, false);
  mirror.run(cuda_attention_backend());
  const std::vector<float> row = rows_of(mirror.out(), mirror.params(), 250, 251);
  for (const float value : row) EXPECT_TRUE(std::isnan(value));
  reference_attention_backend().run(data.params(), {});
  EXPECT_EQ(row_difference(mirror.out(), data.out(), shape.head_dim, DType::kBF16), "");
}

TEST_F(CudaAttention, AMeanThatIsNotFiniteReachesOnlyLaterRows) {
  const AttentionCase shape{.q_lens = {1000},
                            .kv_lens = {1000},
                            .num_q_heads = 2,
                            .lists = Lists::kNoDiagonal,
                            .density = 0.0,
                            .has_periphery = true};
  AttentionData data(shape, DType::kF32, 3);
  const TensorView& v_mean = data.params().periphery.v_mean;
  const int64_t entry = data.params().periphery.block_offsets[0] + 4;
  cases::set(v_mean, entry * v_mean.stride[0] + 9, NAN);
  cases::round_inputs(data, DType::kBF16);
  DeviceMirror mirror(data, DType::kBF16, false);
  mirror.run(cuda_attention_backend());
  reference_attention_backend().run(data.params(), {});
  const std::vector<float> out = data.out();
  EXPECT_FALSE(std::isnan(out[static_cast<size_t>(5 * 128 - 1) * 2 * 64 + 9]));
  EXPECT_TRUE(std::isnan(out[static_cast<size_t>(5 * 128) * 2 * 64 + 9]));
  EXPECT_EQ(row_difference(mirror.out(), out, shape.head_dim, DType::kBF16), "");
}

TEST_F(CudaAttention, SaysWhatItSupports) {
  AttentionData data({.q_lens = {8}, .kv_lens = {8}, .head_dim = 96}, DType::kF32, 1);
  DeviceMirror mirror(data, DType::kBF16, false);
  const auto reason = [&] {
    return cuda_attention_backend().why_unsupported(mirror.params(), DeviceMirror::context());
  };
  EXPECT_EQ(reason(),
            "has bf16 and f16 with head_dim 64, 128, 256, f8e4m3 with 128, got bf16 with 96");
  Context other = DeviceMirror::context();
  other.device.index = 99;
  EXPECT_NE(cuda_attention_backend().why_unsupported(mirror.params(), other), "");
}

/// Without a GPU every binary starts, and says so in one line.
TEST(CudaAttentionAnywhere, AMissingGpuIsOneClearLine) {
  AttentionData data({.q_lens = {8}, .kv_lens = {8}}, DType::kBF16, 1);
  const AttentionBackend& backend = cuda_attention_backend();
  EXPECT_EQ(backend.why_unsupported(data.params(), {}), "runs on CUDA devices only");
  const std::string no_gpu = cases::why_no_gpu();
  if (no_gpu.empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(backend.why_unsupported(data.params(), DeviceMirror::context()), no_gpu);
  EXPECT_EQ(no_gpu.rfind("no GPU", 0), 0u) << no_gpu;
  EXPECT_EQ(no_gpu.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace fovea
