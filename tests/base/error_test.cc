#include "fovea/base/error.h"

#include <gtest/gtest.h>

#include "fovea/base/checked_math.h"

namespace fovea {
namespace {

TEST(Error, CarriesCodeAndOneLine) {
  try {
    check_argument(false, "head_dim must be at most {}, got {}", 256, 512);
    FAIL() << "check_argument did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "head_dim must be at most 256, got 512");
  }
}

TEST(CheckedMath, RefusesProductsThatWrap) {
  EXPECT_EQ(checked_mul(1LL << 31, 1LL << 31, "size"), 1LL << 62);
  EXPECT_THROW(checked_mul((1LL << 42) + 1, 1LL << 22, "size"), Error);
  EXPECT_THROW(checked_add(INT64_MAX, 1, "size"), Error);
}

}  // namespace
}  // namespace fovea
