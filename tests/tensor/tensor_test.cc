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

TEST(Tensor, WhatWasMovedFromIsEmpty) {
  Tensor first(DType::kF32, {4});
  first.as<float>()[3] = 5;
  Tensor second(std::move(first));
  EXPECT_EQ(second.as<float>()[3], 5);
  EXPECT_TRUE(first.view().empty());  // NOLINT(bugprone-use-after-move): that is the question
  EXPECT_EQ(first.size_bytes(), 0);
  Tensor third;
  third = std::move(second);
  EXPECT_EQ(third.as<float>()[3], 5);
  EXPECT_TRUE(second.view().empty());  // NOLINT(bugprone-use-after-move)
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
