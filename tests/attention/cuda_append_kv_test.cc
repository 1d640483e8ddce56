// An f8 cache that grows on a GPU: the codes and scales of the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

#include "fovea/attention/append_kv.h"
#include "fovea/attention/attention.h"
#include "fovea/attention/cuda/cuda_backend.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/device_memory.h"
#include "tests/attention/cuda_mirror.h"

namespace fovea {
namespace {

constexpr Device kGpu{DeviceType::kCuda, 0};
constexpr int64_t kRows = 300, kHeads = 3, kHeadDim = 128, kPageSize = 128, kPages = 4;

template <typename T>
Tensor on_gpu(const std::vector<T>& values, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor tensor(dtype, shape, kGpu);
  copy_tensor(make_view(const_cast<T*>(values.data()), dtype, shape), tensor.view(), {kGpu});
  return tensor;
}

template <typename T>
std::vector<T> download(const Tensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.view().num_elements()));
  TensorView view = tensor.view();
  view.data = values.data();
  view.device = {};
  copy_tensor(tensor.view(), view, {kGpu});
  return values;
}

std::vector<BFloat16> random_rows(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<BFloat16> rows(kRows * kHeads * kHeadDim);
  for (size_t i = 0; i < rows.size(); ++i) {
    // Later rows are larger: scales grow within a page.
    rows[i] =
        to_bfloat16(normal(random) * (1.f + static_cast<float>(i / (kHeads * kHeadDim)) / 20));
  }
  return rows;
}

TEST(CudaAppendKv, HoldsWhatTheCpuHolds) {
  if (const std::string reason = cases::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<BFloat16> k = random_rows(1), v = random_rows(2);
  const std::vector<int32_t> pages = {2, 0, 3, 1};

  const Tensor k_here(DType::kF8E4M3, {kPages, kHeads, kPageSize, kHeadDim});
  const Tensor v_here(DType::kF8E4M3, {kPages, kHeads, kHeadDim, kPageSize});
  const Tensor k_scale_here(DType::kF32, {kPages, kHeads});
  const Tensor v_scale_here(DType::kF32, {kPages, kHeads});
  KvView here;
  here.k = k_here.view();
  here.v = v_here.view();
  here.page_size = kPageSize;
  here.page_table = pages.data();
  here.page_table_stride = kPages;
  here.k_scale = k_scale_here.view();
  here.v_scale = v_scale_here.view();

  const Tensor k_there(DType::kF8E4M3, {kPages, kHeads, kPageSize, kHeadDim}, kGpu);
  const Tensor v_there(DType::kF8E4M3, {kPages, kHeads, kHeadDim, kPageSize}, kGpu);
  const Tensor k_scale_there(DType::kF32, {kPages, kHeads}, kGpu);
  const Tensor v_scale_there(DType::kF32, {kPages, kHeads}, kGpu);
  const Tensor pages_there = on_gpu(pages, DType::kI32, {kPages});
  KvView there = here;
  there.k = k_there.view();
  there.v = v_there.view();
  there.page_table = pages_there.as<int32_t>();
  there.k_scale = k_scale_there.view();
  there.v_scale = v_scale_there.view();

  int64_t position = 0;
  for (const int64_t rows : {128, 1, 1, 50, 76, 40, 3, 1}) {
    const auto part = [&](std::vector<BFloat16>& all) {
      return make_view(all.data() + position * kHeads * kHeadDim, DType::kBF16,
                       {rows, kHeads, kHeadDim});
    };
    append_kv({part(k), part(v), &position, here}, {});
    Tensor k_part(DType::kBF16, {rows, kHeads, kHeadDim}, kGpu);
    Tensor v_part(DType::kBF16, {rows, kHeads, kHeadDim}, kGpu);
    copy_tensor(part(k), k_part.view(), {kGpu});
    copy_tensor(part(v), v_part.view(), {kGpu});
    const Tensor position_there = on_gpu<int64_t>({position}, DType::kI64, {1});
    append_kv({k_part.view(), v_part.view(), position_there.as<int64_t>(), there}, {kGpu});
    synchronize({kGpu});
    position += rows;
  }
  ASSERT_EQ(position, kRows);

  const auto k_codes = download<Float8E4M3>(k_there), v_codes = download<Float8E4M3>(v_there);
  const auto k_scales = download<float>(k_scale_there), v_scales = download<float>(v_scale_there);
  for (int64_t token = 0; token < kRows; ++token) {
    const int64_t page = pages[static_cast<size_t>(token / kPageSize)], slot = token % kPageSize;
    for (int64_t head = 0; head < kHeads; ++head) {
      const auto scale = static_cast<size_t>(page * kHeads + head);
      ASSERT_EQ(k_scales[scale], k_scale_here.as<float>()[scale]);
      ASSERT_EQ(v_scales[scale], v_scale_here.as<float>()[scale]);
      for (int64_t d = 0; d < kHeadDim; ++d) {
        const int64_t start = (page * kHeads + head) * kPageSize * kHeadDim;
        const auto upright = static_cast<size_t>(start + slot * kHeadDim + d);
        const auto turned = static_cast<size_t>(start + d * kPageSize + f8_value_slot(slot));
        ASSERT_EQ(k_codes[upright], k_here.as<Float8E4M3>()[upright])
            << "key " << token << ", " << d;
        ASSERT_EQ(v_codes[turned], v_here.as<Float8E4M3>()[turned])
            << "value " << token << ", " << d;
      }
    }
  }
}

/// Pages on the GPU and how a row joins them.
struct Cache {
  Tensor k{DType::kF8E4M3, {kPages, kHeads, kPageSize, kHeadDim}, kGpu};
  Tensor v{DType::kF8E4M3, {kPages, kHeads, kHeadDim, kPageSize}, kGpu};
  Tensor k_scale{DType::kF32, {kPages, kHeads}, kGpu};
  Tensor v_scale{DType::kF32, {kPages, kHeads}, kGpu};
  Tensor pages = on_gpu<int32_t>({2, 0, 3, 1}, DType::kI32, {kPages});

  KvView view() const {
    return {.k = k.view(),
            .v = v.view(),
            .page_table = pages.as<int32_t>(),
            .page_table_stride = kPages,
            .page_size = kPageSize,
            .k_scale = k_scale.view(),
            .v_scale = v_scale.view()};
  }
};

std::vector<float> as_floats(const Tensor& tensor) {
  std::vector<float> floats;
  for (const BFloat16 value : download<BFloat16>(tensor)) floats.push_back(to_float(value));
  return floats;
}

TEST(CudaAppendKv, AttentionOfOneRowAppendsItAsAppendKvDoes) {
  if (const std::string reason = cases::why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  constexpr int64_t kQHeads = 2 * kHeads;
  std::vector<BFloat16> k = random_rows(1), v = random_rows(2), queries = random_rows(3);
  const Tensor q = on_gpu(std::vector(queries.begin(), queries.begin() + kQHeads * kHeadDim),
                          DType::kBF16, {1, kQHeads, kHeadDim});
  const Tensor out(DType::kBF16, {1, kQHeads, kHeadDim}, kGpu);
  const Cache before, within;  // is appended to before attention, and by it
  for (int64_t position = 0; position < kRows;) {
    const int64_t rows = position % 100 == 0 ? 20 : 1;  // the others join one by one
    const auto part = [&](const std::vector<BFloat16>& all) {
      const auto first = all.begin() + position * kHeads * kHeadDim;
      return on_gpu(std::vector(first, first + rows * kHeads * kHeadDim), DType::kBF16,
                    {rows, kHeads, kHeadDim});
    };
    const Tensor k_part = part(k), v_part = part(v);
    const Tensor numbers = on_gpu<int64_t>({position, 0, 1, position + rows}, DType::kI64, {4});
    AppendKvTask task{k_part.view(), v_part.view(), numbers.as<int64_t>(), before.view()};
    append_kv(task, {kGpu});
    if (rows > 1) {
      task.to = within.view();
      append_kv(task, {kGpu});
    } else {
      AttentionParams params;
      params.q = q.view();
      params.out = out.view();
      params.kv = before.view();
      params.batch = {1, numbers.as<int64_t>() + 1, numbers.as<int64_t>() + 3};
      attend(params, {kGpu});
      const std::vector<float> expected = as_floats(out);
      params.kv = task.to = within.view();
      params.append = &task;
      ASSERT_TRUE(cuda_attention_backend().appends(params, {kGpu}));
      attend(params, {kGpu});
      EXPECT_EQ(cases::row_difference(as_floats(out), expected, kHeadDim, DType::kBF16), "")
          << position;
    }
    position += rows;
  }
  EXPECT_EQ(download<float>(within.k_scale), download<float>(before.k_scale));
  EXPECT_EQ(download<float>(within.v_scale), download<float>(before.v_scale));
  for (const auto& [actual, expected] : {std::pair{&within.k, &before.k}, {&within.v, &before.v}}) {
    const auto a = download<Float8E4M3>(*actual), b = download<Float8E4M3>(*expected);
    for (int64_t token = 0; token < kRows; ++token) {
      for (int64_t head = 0; head < kHeads; ++head) {
        const int64_t page = token / kPageSize;  // of the table
        const int64_t start =
            (std::array{2, 0, 3}[static_cast<size_t>(page)] * kHeads + head) * kPageSize * kHeadDim;
        for (int64_t d = 0; d < kHeadDim; ++d) {
          const int64_t slot = token % kPageSize;
          const auto at = static_cast<size_t>(start + (actual == &within.k
                                                           ? slot * kHeadDim + d
                                                           : d * kPageSize + f8_value_slot(slot)));
          ASSERT_EQ(a[at].bits, b[at].bits) << "token " << token << ", " << d;
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea
