// Bugs that other libraries of GPU attention shipped, as tests; docs/kernels.md has the list.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>

#include "fovea/attention/cuda/cuda_backend.h"
#include "fovea/attention/reference/reference_attention.h"
#include "fovea/tensor/cuda/device.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/fill_random.h"
#include "tests/attention/cuda_mirror.h"
#include "tests/cases/attention_cases.h"

namespace fovea {
namespace {

using cases::AttentionCase;
using cases::AttentionData;
using cases::DeviceBuffer;
using cases::DeviceMirror;
using cases::Lists;
using cases::row_difference;
using cuda::check_cuda;

class CudaAttentionBug : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = cases::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

// Ends the process when a kernel hangs: nothing else can.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit)
      : thread_([this, limit] {
          std::unique_lock lock(mutex_);
          if (is_done_.wait_for(lock, limit, [this] { return done_; })) return;
          std::fprintf(stderr, "the GPU did not finish in %d s\n", static_cast<int>(limit.count()));
          std::_Exit(1);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    is_done_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable is_done_;
  bool done_ = false;
  std::thread thread_;  // last: it uses the others
};

Tensor random_rows(std::initializer_list<int64_t> shape, uint64_t seed) {
  Tensor tensor(DType::kBF16, shape, DeviceMirror::context().device);
  fill_random(tensor.view(), 1, seed, 0, DeviceMirror::context());
  return tensor;
}

std::vector<uint16_t> download(const void* from, int64_t count) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  check_cuda(cudaMemcpy(values.data(), from, static_cast<size_t>(count) * 2, cudaMemcpyDefault),
             "downloading rows");
  return values;
}

// Bug 1: more than 2^31 elements of q and out. Every row sees only its own key.
TEST_F(CudaAttentionBug, Number1OffsetsBeyond31Bits) {
  constexpr int64_t kRows = 550000, kHeads = 32, kKvHeads = 4, kHeadDim = 128;
  static_assert(kRows * kHeads * kHeadDim > INT32_MAX);
  const Tensor q = random_rows({kRows, kHeads, kHeadDim}, 1);
  const Tensor k = random_rows({kRows, kKvHeads, kHeadDim}, 2);
  const Tensor v = random_rows({kRows, kKvHeads, kHeadDim}, 3);
  const Tensor out(DType::kBF16, {kRows, kHeads, kHeadDim}, DeviceMirror::context().device);
  const std::array<int64_t, 4> numbers = {0, kRows, kRows, 0};  // q_offsets, kv_lens, kv_offsets
  const DeviceBuffer on_gpu = DeviceBuffer::copy_of(numbers.data(), 4);
  AttentionParams params;
  params.q = q.view();
  params.kv = {k.view(), v.view(), on_gpu.as<int64_t>() + 3, nullptr, 0, 0};
  params.batch = {1, on_gpu.as<int64_t>(), on_gpu.as<int64_t>() + 2};
  params.out = out.view();
  params.window_left = 0;
  cuda_attention_backend().run(params, DeviceMirror::context());
  constexpr int64_t kEdge = (int64_t{1} << 31) / (kHeads * kHeadDim);
  for (const int64_t row : {int64_t{0}, kEdge - 1, kEdge, kRows - 1}) {
    const auto values = download(v.as<uint16_t>() + row * kKvHeads * kHeadDim, kKvHeads * kHeadDim);
    const auto results = download(out.as<uint16_t>() + row * kHeads * kHeadDim, kHeads * kHeadDim);
    for (int64_t i = 0; i < kHeads * kHeadDim; ++i) {
      const int64_t kv_head = i / kHeadDim / (kHeads / kKvHeads);
      ASSERT_EQ(results[static_cast<size_t>(i)],
                values[static_cast<size_t>(kv_head * kHeadDim + i % kHeadDim)])
          << "row " << row << ", element " << i;
    }
  }
}

// A tensor like `dense` with other distances between its entries along the first dimension.
class Spread {
 public:
  Spread(const TensorView& dense, int64_t stride)
      : buffer_(dense.dtype, {(dense.shape[0] - 1) * stride + dense.stride[0]},
                DeviceMirror::context().device),
        view_(dense) {
    view_.data = buffer_.view().data;
    view_.stride[0] = stride;
    copy(dense, view_);
  }
  const TensorView& view() const { return view_; }
  /// Copies entry by entry; one of the two is dense.
  static void copy(const TensorView& from, const TensorView& to) {
    const auto row_bytes = static_cast<size_t>(std::min(from.stride[0], to.stride[0]) * 2);
    check_cuda(cudaMemcpy2D(to.data, static_cast<size_t>(to.stride[0] * 2), from.data,
                            static_cast<size_t>(from.stride[0] * 2), row_bytes,
                            static_cast<size_t>(from.shape[0]), cudaMemcpyDefault),
               "copying rows");
  }

 private:
  Tensor buffer_;
  TensorView view_;
};

// Bugs 3 and 4: a row's or a page's number times a large stride. Same bits as without.
TEST_F(CudaAttentionBug, Number3And4LargeStrides) {
  for (const bool is_paged : {false, true}) {
    const AttentionCase shape{.q_lens = {700},
                              .kv_lens = {700},
                              .head_dim = 128,
                              .num_q_heads = 2,
                              .page_size = is_paged ? 8 : 0};
    AttentionData data(shape, DType::kF32, 3);
    DeviceMirror dense(data, DType::kBF16, false);
    dense.run(cuda_attention_backend());
    DeviceMirror far(data, DType::kBF16, false);
    AttentionParams& params = far.params();
    // 87 pages, or 700 rows, end beyond 2^32 elements.
    const int64_t stride = is_paged ? int64_t{1} << 26 : int64_t{1} << 23;
    {
      const Spread k(params.kv.k, stride), v(params.kv.v, stride);
      params.kv.k = k.view();
      params.kv.v = v.view();
      far.run(cuda_attention_backend());
      EXPECT_EQ(far.out(), dense.out()) << "keys, paged " << is_paged;
    }
    if (is_paged) continue;
    DeviceMirror far_rows(data, DType::kBF16, false);
    AttentionParams& rows = far_rows.params();
    const TensorView q = rows.q, out = rows.out;
    const Spread far_q(q, stride), far_out(out, stride);
    far_rows.run([&] {
      rows.q = far_q.view();
      rows.out = far_out.view();
      cuda_attention_backend().run(rows, DeviceMirror::context());
      Spread::copy(far_out.view(), out);
      rows.q = q;
      rows.out = out;
    });
    EXPECT_EQ(far_rows.out(), dense.out()) << "rows";
  }
}

// Bug 6: logits below what others took for minus infinity (-5e4 and the like) still count.
TEST_F(CudaAttentionBug, Number6LogitsFarBelow) {
  for (const int64_t q_len : {1, 5}) {
    AttentionData data({.q_lens = {q_len}, .kv_lens = {5}, .softmax_scale = 1}, DType::kF32, 3);
    for (int64_t t = 0; t < 5; ++t) data.set_key(0, t, 0, 1e3f);
    for (int64_t i = 0; i < data.params().q.num_elements(); ++i) {
      cases::set(data.params().q, i, -1e3f);
    }
    cases::round_inputs(data, DType::kBF16);
    DeviceMirror mirror(data, DType::kBF16, false);
    mirror.run(cuda_attention_backend());
    reference_attention_backend().run(data.params(), {});
    EXPECT_EQ(row_difference(mirror.out(), data.out(), 64, DType::kBF16), "");
  }
}

// Bug 9: hangs on runs of empty tiles. Random batches, under a watchdog.
TEST_F(CudaAttentionBug, Number9RandomBatchesEnd) {
  const Watchdog watchdog(std::chrono::seconds(60));
  std::mt19937 random(5);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % bound); };
  const int64_t lengths[] = {0, 0, 1, 2, 63, 64, 127, 128, 129, 300, 513};
  for (int round = 0; round < 60; ++round) {
    AttentionCase shape{.name = fmt::format("round {}", round)};
    const bool is_decode = below(3) == 0;
    shape.lists = is_decode ? Lists::kNone : static_cast<Lists>(below(5));
    for (int64_t s = below(12); s >= 0; --s) {
      const int64_t kv_len = lengths[below(11)] + (is_decode ? 7 * below(200) : 0);
      const int64_t q_len = is_decode ? below(4) : lengths[below(11)];
      shape.kv_lens.push_back(kv_len);
      shape.q_lens.push_back(shape.lists == Lists::kNone ? q_len : std::min(q_len, kv_len));
    }
    shape.head_dim = std::array{64, 128, 256}[static_cast<size_t>(below(3))];
    shape.num_kv_heads = 1 + below(2);
    shape.num_q_heads = shape.num_kv_heads * (1 + below(4));
    shape.block_size = std::array{64, 128, 256}[static_cast<size_t>(below(3))];
    shape.density = below(2) == 0 ? 0.02 : 0.5;
    shape.window_left = below(2) == 0 ? below(300) : -1;
    shape.page_size = below(2) == 0 ? 64 : 0;
    shape.has_sinks = below(2) == 0;
    SCOPED_TRACE(shape.name);
    AttentionData data(shape, DType::kF32, static_cast<uint64_t>(round));
    cases::round_inputs(data, DType::kBF16);
    DeviceMirror mirror(data, DType::kBF16, false);
    mirror.params().batch_invariant = below(2) == 0;
    check_attention_params(mirror.params(), DeviceMirror::context());
    mirror.run(cuda_attention_backend());
    reference_attention_backend().run(data.params(), {});
    ASSERT_EQ(row_difference(mirror.out(), data.out(), shape.head_dim, DType::kBF16), "");
  }
}

// Bug 16: a length beyond the page table touches nothing that is not the table's.
TEST_F(CudaAttentionBug, Number16LengthsBeyondThePageTable) {
  for (const int64_t q_len : {1, 100}) {
    const AttentionCase shape{
        .q_lens = {q_len, q_len}, .kv_lens = {500, 300}, .num_q_heads = 4, .page_size = 64};
    AttentionData data(shape, DType::kF32, 3);
    DeviceMirror right(data, DType::kBF16, false);
    right.run(cuda_attention_backend());
    DeviceMirror wrong(data, DType::kBF16, false);
    const int64_t kv_lens[] = {500, 1000000};
    const DeviceBuffer lens = DeviceBuffer::copy_of(kv_lens, 2);
    wrong.params().batch.kv_lens = lens.as<int64_t>();
    wrong.run(cuda_attention_backend());  // throws when the GPU reports a wrong address
    const auto first = static_cast<std::ptrdiff_t>(right.out().size() / 2);
    EXPECT_TRUE(std::equal(right.out().begin(), right.out().begin() + first, wrong.out().begin()));
    EXPECT_TRUE(wrong.is_untouched());
  }
}

// Bug 19: totals of a ragged batch that cross 16,384 and 65,536 rows.
TEST_F(CudaAttentionBug, Number19RaggedTotals) {
  const AttentionCase shape{.q_lens = {16380, 10, 49140, 5, 3000},
                            .kv_lens = {16380, 40, 49140, 9, 3500},
                            .num_q_heads = 1,
                            .window_left = 5};
  AttentionData data(shape, DType::kF32, 3);
  cases::round_inputs(data, DType::kBF16);
  DeviceMirror mirror(data, DType::kBF16, false);
  mirror.run(cuda_attention_backend());
  reference_attention_backend().run(data.params(), {});
  EXPECT_EQ(row_difference(mirror.out(), data.out(), shape.head_dim, DType::kBF16), "");
}

// Bug 22: the last row of a prefill and the same row decoded differ by rounding only.
TEST_F(CudaAttentionBug, Number22DecodeIsThePrefillsLastRow) {
  const AttentionCase shape{.q_lens = {900}, .kv_lens = {900}, .head_dim = 128, .num_q_heads = 4};
  AttentionData data(shape, DType::kF32, 3);
  DeviceMirror prefill(data, DType::kBF16, false);
  prefill.run(cuda_attention_backend());
  DeviceMirror decode(data, DType::kBF16, false);
  AttentionParams& params = decode.params();
  const int64_t q_offsets[] = {0, 1};
  const DeviceBuffer offsets = DeviceBuffer::copy_of(q_offsets, 2);
  params.batch.q_offsets = offsets.as<int64_t>();
  params.q.data = params.q.as<uint16_t>() + 899 * params.q.stride[0];
  params.q.shape[0] = params.out.shape[0] = params.lse.shape[1] = 1;
  decode.run(cuda_attention_backend());
  const std::vector<float> last(prefill.out().end() - 4 * 128, prefill.out().end());
  EXPECT_EQ(row_difference(decode.out(), last, 128, DType::kBF16), "");
}

// A call, captured on a stream of its own.
class Captured {
 public:
  Captured(const AttentionParams& params) : stream_(make_stream(DeviceMirror::context().device)) {
    Context context = DeviceMirror::context();
    context.stream = stream_.get();
    const auto stream = cuda::stream_of(context);
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
    cuda_attention_backend().run(params, context);
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(stream, &graph), "capturing");
    check_cuda(cudaGraphInstantiate(&graph_, graph, 0), "making a graph");
    cudaGraphDestroy(graph);
  }
  ~Captured() { cudaGraphExecDestroy(graph_); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void launch() {
    check_cuda(cudaGraphLaunch(graph_, static_cast<cudaStream_t>(stream_.get())), "replaying");
  }

 private:
  std::shared_ptr<void> stream_;
  cudaGraphExec_t graph_ = nullptr;
};

// Bugs 14 and 24: graphs of calls with 1 ... 8 rows, replayed at once on two streams. Each has
// workspace of its own.
TEST_F(CudaAttentionBug, Number14And24GraphsOfShortCalls) {
  const Watchdog watchdog(std::chrono::seconds(60));
  for (int64_t q_len = 1; q_len <= 9; ++q_len) {
    SCOPED_TRACE(fmt::format("q_len {}", q_len));
    for (const Lists lists : {Lists::kNone, Lists::kRandom}) {
      const AttentionCase shape{.q_lens = {q_len, q_len},
                                .kv_lens = {3000, 129 + q_len},
                                .head_dim = 128,
                                .num_q_heads = 8,
                                .num_kv_heads = 2,
                                .page_size = 64,
                                .lists = lists};
      AttentionData data(shape, DType::kF32, 3), other_data(shape, DType::kF32, 4);
      DeviceMirror eager(data, DType::kBF16, false), other(other_data, DType::kBF16, false);
      eager.run(cuda_attention_backend());
      other.run(cuda_attention_backend());
      const std::vector<float> expected = eager.out(), other_expected = other.out();
      Captured graph(eager.params()), other_graph(other.params());
      other.run([&] {
        eager.run([&] {
          for (int i = 0; i < 5; ++i) {
            graph.launch();
            other_graph.launch();
          }
        });
      });
      EXPECT_EQ(eager.out(), expected);
      EXPECT_EQ(other.out(), other_expected);
    }
  }
}

}  // namespace
}  // namespace fovea
