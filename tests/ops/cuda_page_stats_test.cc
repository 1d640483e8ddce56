// Statistics computed by what writes K and V, against the pass over the pages: the same bits,
// however a prompt is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/ops/row_ops.h"
#include "fovea/selector/block_stats.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/slices.h"
#include "tests/ops/gpu_rows.h"

namespace fovea {
namespace {

using test::download;
using test::kGpu;
using test::kNaN;
using test::PaddedRows;
using test::random_values;
using test::upload;
using test::upload_integers;

class CudaPageStats : public test::GpuRowOps {};

struct StatsCase {
  int64_t head_dim = 128, page_size = 128, num_witnesses = 0;
  bool has_bias = true, has_norms = true;
  int64_t num_q_heads = 6, num_kv_heads = 2, position = 0, rows = 600;

  int64_t num_heads() const { return num_q_heads + 2 * num_kv_heads; }
  int64_t num_pages() const { return (position + rows) / page_size + 2; }
};

/// The bytes of a tensor without gaps.
std::vector<uint8_t> bits(const TensorView& view) {
  const int64_t count = view.num_elements();
  std::vector<uint8_t> bytes(static_cast<size_t>(count * dtype_bytes(view.dtype)));
  copy_tensor(view, make_view(bytes.data(), view.dtype, {count}), kGpu);
  return bytes;
}

/// Pages and statistics full of bytes of 0xff: NaN, and a number that no flag has.
class Pages {
 public:
  explicit Pages(const StatsCase& c)
      : q_(DType::kBF16, {c.rows, c.num_q_heads, c.head_dim}, kGpu.device),
        k_(DType::kBF16, {c.num_pages(), c.num_kv_heads, c.page_size, c.head_dim}, kGpu.device),
        v_(DType::kBF16, {c.num_pages(), c.num_kv_heads, c.page_size, c.head_dim}, kGpu.device),
        stats_(DType::kBF16, c.num_pages(), c.num_kv_heads, c.head_dim, c.page_size,
               c.num_witnesses, kGpu.device) {
    for (const TensorView& view : arrays()) {
      std::vector<uint8_t> poison(
          static_cast<size_t>(view.num_elements() * dtype_bytes(view.dtype)), 0xff);
      copy_tensor(make_view(poison.data(), view.dtype, {view.num_elements()}), view, kGpu);
    }
  }

  std::vector<TensorView> arrays() const {
    const BlockStatsView& s = stats_.view();
    std::vector<TensorView> all = {q_.view(), k_.view(), v_.view(),   s.centroid,
                                   s.radius,  s.v_mean,  s.non_finite};
    if (s.num_witnesses > 0) all.insert(all.end(), {s.witness, s.rest_mean});
    return all;
  }
  const TensorView q() const { return q_.view(); }
  const TensorView k() const { return k_.view(); }
  const TensorView v() const { return v_.view(); }
  const BlockStatsView& stats() const { return stats_.view(); }

 private:
  Tensor q_, k_, v_;
  BlockStats stats_;
};

class StatsRun {
 public:
  StatsRun(const StatsCase& c, RowOps& ops)
      : c_(c),
        ops_(ops),
        values_(random_values(c.rows * c.num_heads() * c.head_dim, DType::kBF16, 20)),
        bias_(upload(random_values(c.num_heads() * c.head_dim, DType::kF32, 21), DType::kF32,
                     {c.num_heads() * c.head_dim})),
        q_norm_(upload(random_values(c.head_dim, DType::kF32, 22), DType::kF32, {c.head_dim})),
        k_norm_(upload(random_values(c.head_dim, DType::kF32, 23), DType::kF32, {c.head_dim})),
        table_(c.head_dim, 1e4, {}, kGpu.device) {
    std::vector<int32_t> pages(static_cast<size_t>(c.num_pages()));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(24));
    page_table_ = upload_integers(pages);
  }

  std::vector<float>& values() { return values_; }

  /// Rows in launches of so many, each a step of its own.
  void write(const Pages& to, const std::vector<int64_t>& cuts, bool with_stats) {
    const PaddedRows qkv(DType::kBF16, c_.rows, c_.num_heads() * c_.head_dim, values_);
    int64_t first = 0;
    for (const int64_t count : cuts) {
      const Tensor position = upload_integers(std::vector<int64_t>{c_.position + first});
      table_.fill(position.as<int64_t>(), count, kGpu);
      QkvTask task;
      task.qkv = rows_of(qkv.view(), first, count);
      if (c_.has_bias) task.bias = bias_.view();
      if (c_.has_norms) task.q_norm = q_norm_.view();
      if (c_.has_norms) task.k_norm = k_norm_.view();
      task.eps = 1e-6f;
      task.table = &table_;
      task.q = rows_of(to.q(), first, count);
      task.k = to.k();
      task.v = to.v();
      task.page_table = page_table_.as<int32_t>();
      task.position = position.as<int64_t>();
      if (with_stats) task.stats = &to.stats();
      ops_.finish_qkv(task);
      synchronize(kGpu);
      first += count;
    }
    ASSERT_EQ(first, c_.rows);
  }

  /// The pass, over the pages that the rows fill.
  void pass(const Pages& to) {
    KvView kv;
    kv.k = to.k();
    kv.v = to.v();
    kv.page_size = c_.page_size;
    kv.page_table = page_table_.as<int32_t>();
    kv.page_table_stride = c_.num_pages();
    compute_block_stats(kv, 0, c_.position / c_.page_size, (c_.position + c_.rows) / c_.page_size,
                        0, to.stats(), kGpu);
    synchronize(kGpu);
  }

 private:
  const StatsCase& c_;
  RowOps& ops_;
  std::vector<float> values_;
  Tensor bias_, q_norm_, k_norm_, page_table_;
  RopeTable table_;
};

void expect_same_bits(const Pages& got, const Pages& want) {
  const std::vector<TensorView> a = got.arrays(), b = want.arrays();
  const char* names[] = {"q",      "k",          "v",       "centroid", "radius",
                         "v_mean", "non_finite", "witness", "rest_mean"};
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(bits(a[i]), bits(b[i])) << names[i];
}

TEST_F(CudaPageStats, AreThePassesBitsAndSoAreQAndKAndV) {
  std::vector<StatsCase> cases;
  for (const int64_t head_dim : {64, 128, 256}) {
    for (const int64_t page_size : {64, 128, 256}) {
      if (head_dim == 256 && page_size == 256) continue;
      cases.push_back({.head_dim = head_dim, .page_size = page_size});
      cases.push_back({.head_dim = head_dim,
                       .page_size = page_size,
                       .num_witnesses = 3,
                       .has_bias = false,
                       .has_norms = false});
    }
  }
  cases.push_back({.has_norms = false});
  cases.push_back({.has_bias = false});
  for (const StatsCase& c : cases) {
    SCOPED_TRACE(testing::Message()
                 << "head_dim " << c.head_dim << " page_size " << c.page_size << " witnesses "
                 << c.num_witnesses << " bias " << c.has_bias << " norms " << c.has_norms);
    StatsRun run(c, *ops_);
    const Pages want(c), whole(c), cut(c), rows_in_turn(c);
    run.write(want, {c.rows}, false);
    run.pass(want);
    run.write(whole, {c.rows}, true);
    expect_same_bits(whole, want);
    // Cuts inside pages, at their borders, one short of one, and over several.
    run.write(cut, {c.page_size - 1, 2, 63, c.page_size, 1, c.rows - 2 * c.page_size - 65}, true);
    expect_same_bits(cut, want);
    run.write(rows_in_turn, {1, 1, c.rows - 2}, true);
    expect_same_bits(rows_in_turn, want);
  }
}

/// A page that an earlier step began without statistics, and one whose writer stops short of its
/// end.
TEST_F(CudaPageStats, ReadWhatWasThereAndLeaveWhatDoesNotFill) {
  StatsCase c{.position = 0, .rows = 300};
  StatsRun run(c, *ops_);
  const Pages want(c), got(c);
  run.write(want, {c.rows}, false);
  run.pass(want);
  run.write(got, {100, 200}, true);
  expect_same_bits(got, want);
  const std::vector<float> radius = download(got.stats().radius);
  EXPECT_EQ(std::count_if(radius.begin(), radius.end(), [](float r) { return r == r; }),
            2 * c.num_kv_heads)
      << "two pages of 128 are full";
}

TEST_F(CudaPageStats, FlagKeysThatAreNotFinite) {
  const StatsCase c{.has_norms = false, .rows = 256};
  StatsRun run(c, *ops_);
  const int64_t key = 130, head = 1;
  run.values()[static_cast<size_t>((key * c.num_heads() + c.num_q_heads + head) * c.head_dim + 7)] =
      kNaN;
  const Pages pages(c);
  run.write(pages, {c.rows}, true);
  std::vector<int32_t> flags(static_cast<size_t>(c.num_pages() * c.num_kv_heads));
  copy_tensor(pages.stats().non_finite,
              make_view(flags.data(), DType::kI32, {static_cast<int64_t>(flags.size())}), kGpu);
  EXPECT_EQ(std::count(flags.begin(), flags.end(), 1), 1);
  EXPECT_EQ(std::count(flags.begin(), flags.end(), 0), 3);
}

TEST_F(CudaPageStats, SayWhatIsWrong) {
  const StatsCase c{.head_dim = 72, .page_size = 64, .rows = 64};
  EXPECT_FALSE(ops_->has_page_stats(72, 64));
  EXPECT_FALSE(ops_->has_page_stats(256, 256));
  EXPECT_TRUE(ops_->has_page_stats(128, 128));
  StatsRun run(c, *ops_);
  const Pages pages(c);
  try {
    run.write(pages, {c.rows}, true);
    FAIL() << "heads of 72";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_STREQ(error.what(),
                 "statistics are computed with K and V of head_dim and page_size 64, 128 or 256, "
                 "not both 256; got 72 and 64");
  }
}

}  // namespace
}  // namespace fovea
