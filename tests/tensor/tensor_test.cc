#include "fovea/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "fovea/base/error.h"

namespace fovea {
namespace {

TEST(Tensor, IsDenseZeroedAndAligned) {
  const Tensor tensor(DType::kBF16, {3, 5, 7});
  EXPECT_EQ(tensor.view().describe(), "bf16[3, 5, 7]");
  EXPECT_EQ(tensor.size_bytes(), 3 * 5 * 7 * 2);
  EXPECT_EQ(tensor.view().stride[0], 35);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.as<void>()) % 64, 0u);
  for (int i = 0; i < 105; ++i) EXPECT_EQ(tensor.as<uint16_t>()[i], 0);
}

TEST(Tensor, RefusesSizesThatWrapOrCannotBeHad) {
  EXPECT_THROW(Tensor(DType::kF32, {(1LL << 42) + 1, 1LL << 42}), Error);
  EXPECT_THROW(Tensor(DType::kF32, {-1}), Error);
  try {
    Tensor(DType::kF32, {1LL << 55});
    FAIL() << "allocated 128 PiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  }
}

}  // namespace
}  // namespace fovea
