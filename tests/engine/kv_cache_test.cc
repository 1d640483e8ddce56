#include "fovea/engine/kv_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "fovea/base/error.h"

namespace fovea {
namespace {

KvCache small_cache(int64_t num_pages) {
  KvCacheShape shape;
  shape.dtype = DType::kF32;
  shape.num_layers = 2;
  shape.num_kv_heads = 1;
  shape.head_dim = 4;
  shape.page_size = 2;
  shape.num_pages = num_pages;
  return KvCache(shape);
}

TEST(KvCache, CountsItsBytes) {
  const KvCache cache = small_cache(3);
  EXPECT_EQ(cache.page_kv_bytes(), 2 * 2 * 1 * 2 * 4 * 4);
  EXPECT_EQ(cache.page_stats_bytes(), 0);
  EXPECT_EQ(cache.kv(1).k.describe(), "f32[3, 1, 2, 4]");
}

TEST(KvCache, CodesTakeAByteEachAndAScaleForEachPageAndHead) {
  KvCacheShape shape;
  shape.num_layers = 3;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  shape.num_pages = 4;
  shape.codes = DType::kF8E4M3;
  const KvCache cache(shape);
  EXPECT_EQ(cache.page_kv_bytes(), 2 * 3 * 2 * (128 * 64 + 4));
  const KvView kv = cache.kv(2);
  EXPECT_EQ(kv.k.describe(), "f8e4m3[4, 2, 128, 64]");
  EXPECT_EQ(kv.v.describe(), "f8e4m3[4, 2, 64, 128]");
  EXPECT_EQ(kv.k_scale.describe(), "f32[4, 2]");
  shape.page_size = 24;
  EXPECT_THROW(KvCache{shape}, Error);
}

TEST(KvCache, HandsOutEachPageOnceAndSaysWhenThereIsNone) {
  KvCache cache = small_cache(2);
  const int32_t a = cache.acquire();
  const int32_t b = cache.acquire();
  EXPECT_NE(a, b);
  EXPECT_THROW(cache.acquire(), Error);
  cache.release(a);
  EXPECT_EQ(cache.acquire(), a);
}

TEST(KvCache, FindsPublishedPagesWithTheSameTokensOnly) {
  KvCache cache = small_cache(2);
  const std::vector<int32_t> tokens = {1, 2}, others = {1, 3};
  const int32_t page = cache.acquire();
  cache.publish(page, 7, tokens);
  EXPECT_EQ(cache.find(8, tokens), -1);
  EXPECT_EQ(cache.find(7, others), -1);
  EXPECT_EQ(cache.find(7, tokens), page);
  cache.release(page);
  cache.release(page);
  EXPECT_EQ(cache.num_available(), 2);
  EXPECT_EQ(cache.find(7, tokens), page) << "a page without owners stays findable";
}

TEST(KvCache, GivesUpThePageThatWasUnusedLongest) {
  KvCache cache = small_cache(2);
  const std::vector<int32_t> tokens = {1, 2};
  const int32_t a = cache.acquire();
  const int32_t b = cache.acquire();
  cache.publish(a, 1, tokens);
  cache.publish(b, 2, tokens);
  cache.release(b);
  cache.release(a);
  EXPECT_EQ(cache.acquire(), b);
  EXPECT_EQ(cache.find(2, tokens), -1);
  EXPECT_EQ(cache.find(1, tokens), a);
}

TEST(KvCache, ASecondPageOfTheSameKeyIsIgnored) {
  KvCache cache = small_cache(2);
  const std::vector<int32_t> tokens = {1, 2};
  const int32_t a = cache.acquire();
  const int32_t b = cache.acquire();
  cache.publish(a, 1, tokens);
  cache.publish(b, 1, tokens);
  cache.release(b);
  EXPECT_EQ(cache.acquire(), b) << "an unpublished page is free at once";
  EXPECT_EQ(cache.find(1, tokens), a);
}

TEST(KvCache, RefusesSizesThatMakeNoCache) {
  EXPECT_THROW(small_cache(0), Error);
  EXPECT_THROW(small_cache(int64_t{1} << 60), Error);
}

}  // namespace
}  // namespace fovea
