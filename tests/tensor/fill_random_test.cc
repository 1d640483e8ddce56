#include "fovea/tensor/fill_random.h"

#include <gtest/gtest.h>

#include <cmath>

#include "fovea/base/error.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/device_memory.h"
#include "fovea/tensor/random_value.h"

namespace fovea {
namespace {

TEST(FillRandom, IsUniformBetweenItsBounds) {
  const Tensor tensor(DType::kF32, {100, 1000});
  fill_random(tensor.view(), 2.0f, 7, 0, {});
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < 100000; ++i) {
    const double value = tensor.as<float>()[i];
    ASSERT_LT(std::abs(value), 2.0 + 1e-6);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 0.02);
  EXPECT_NEAR(squares / 1e5, 4.0 / 3.0, 0.02);
}

TEST(FillRandom, PartsFilledApartAreTheWhole) {
  const Tensor whole(DType::kBF16, {64});
  fill_random(whole.view(), 1.0f, 3, 0, {});
  const Tensor part(DType::kBF16, {16});
  fill_random(part.view(), 1.0f, 3, 32, {});
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(part.as<BFloat16>()[i], whole.as<BFloat16>()[32 + i]) << i;
    EXPECT_EQ(part.as<BFloat16>()[i], to_bfloat16(random_value(3, static_cast<uint64_t>(32 + i))));
  }
}

TEST(FillRandom, OtherTypesAndStridesAreRefused) {
  const Tensor ints(DType::kI32, {4});
  EXPECT_THROW(fill_random(ints.view(), 1.0f, 0, 0, {}), Error);
  const Tensor floats(DType::kF32, {4, 4});
  TensorView column = floats.view();
  column.shape[1] = 1;
  EXPECT_THROW(fill_random(column, 1.0f, 0, 0, {}), Error);
}

TEST(FillRandom, AGpuWritesTheSameNumbers) {
  const Device gpu{DeviceType::kCuda, 0};
  if (const std::string reason = why_unusable(gpu); !reason.empty()) GTEST_SKIP() << reason;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor here(dtype, {3, 1001});
    const Tensor there(dtype, {3, 1001}, gpu);
    const Tensor back(dtype, {3, 1001});
    fill_random(here.view(), 0.3f, 11, 5, {});
    fill_random(there.view(), 0.3f, 11, 5, {gpu});
    copy_tensor(there.view(), back.view(), {gpu});
    for (int64_t i = 0; i < here.size_bytes(); ++i) {
      ASSERT_EQ(here.as<char>()[i], back.as<char>()[i]) << dtype_name(dtype) << " byte " << i;
    }
  }
}

}  // namespace
}  // namespace fovea
