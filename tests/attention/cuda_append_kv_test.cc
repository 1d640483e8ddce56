// An f8 cache that grows on a GPU: the codes and scales of the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "fovea/attention/append_kv.h"
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

}  // namespace
}  // namespace fovea
