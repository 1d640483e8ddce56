#include "fovea/tensor/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "fovea/base/error.h"

namespace fovea {
namespace {

using testing::HasSubstr;

constexpr Device kGpu{DeviceType::kCuda, 0};

TEST(DeviceMemory, TheCpuCanAlwaysBeUsed) {
  EXPECT_EQ(why_unusable({}), "");
  EXPECT_NO_THROW(check_usable({}));
  EXPECT_NO_THROW(synchronize({}));
}

TEST(DeviceMemory, AGpuThatIsNotThereIsAnErrorInOneLine) {
  const Device absent{DeviceType::kCuda, 63};
  const std::string reason = why_unusable(absent);
  ASSERT_NE(reason, "");
  EXPECT_EQ(reason.find('\n'), std::string::npos);
  EXPECT_THROW(check_usable(absent), Error);
  EXPECT_THROW(Tensor(DType::kF32, {4}, absent), Error);
  EXPECT_THROW(device_memory(absent), Error);
}

TEST(DeviceMemory, CopiesOnTheCpu) {
  const std::vector<float> from = {1, 2, 3, 4, 5, 6};
  std::vector<float> to(6);
  copy_tensor(make_view(const_cast<float*>(from.data()), DType::kF32, {2, 3}),
              make_view(to.data(), DType::kF32, {6}), {});
  EXPECT_EQ(to, from);
}

TEST(DeviceMemory, CopiesThatDoNotFitAreRefused) {
  const Tensor six(DType::kF32, {6});
  const Tensor five(DType::kF32, {5});
  const Tensor bits(DType::kI32, {6});
  EXPECT_THROW(copy_tensor(six.view(), five.view(), {}), Error);
  EXPECT_THROW(copy_tensor(six.view(), bits.view(), {}), Error);
  TensorView sparse = six.view();
  sparse.shape[0] = 3;
  sparse.stride[0] = 2;
  const Tensor three(DType::kF32, {3});
  EXPECT_THROW(copy_tensor(sparse, three.view(), {}), Error);
}

TEST(DeviceMemory, WhatTheCpuCanReadIsNotCopied) {
  const Tensor tensor(DType::kF32, {8});
  Tensor buffer;
  EXPECT_EQ(readable_on_cpu(tensor.view(), buffer, {}).data, tensor.view().data);
  EXPECT_TRUE(buffer.empty());
}

TEST(DeviceMemory, ATensorThereAndBack) {
  if (const std::string reason = why_unusable(kGpu); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<float> numbers(1000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  const Tensor there(DType::kF32, {10, 100}, kGpu);
  Tensor buffer;
  const float* zeros = readable_on_cpu(there.view(), buffer, {kGpu}).as<float>();
  EXPECT_EQ(std::vector<float>(zeros, zeros + 1000), std::vector<float>(1000));
  copy_tensor(make_view(numbers.data(), DType::kF32, {1000}), there.view(), {kGpu});
  const float* back = readable_on_cpu(there.view(), buffer, {kGpu}).as<float>();
  EXPECT_EQ(std::vector<float>(back, back + 1000), numbers);
  EXPECT_GT(device_memory(kGpu).total_bytes, device_memory(kGpu).free_bytes);
}

TEST(DeviceMemory, MoreThanAGpuHasIsRefusedWithItsNumbers) {
  if (const std::string reason = why_unusable(kGpu); !reason.empty()) GTEST_SKIP() << reason;
  try {
    const Tensor tensor(DType::kF32, {int64_t{1} << 40}, kGpu);
    FAIL() << "allocated 4 TiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("4398046511104 bytes"));
  }
}

}  // namespace
}  // namespace fovea
