// What of the CUDA folder runs on the host: descriptors, swizzles, tile ranges.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "fovea/attention/cuda/prefill_plan.h"
#include "fovea/attention/cuda/prefill_tiles.h"
#include "fovea/tensor/cuda/ptx/swizzle128.h"

namespace fovea::cuda {
namespace {

TEST(CudaSwizzle128, IsItsOwnInverseAndSpreadsAColumnOverAllBanks) {
  for (uint32_t offset = 0; offset < 4096; ++offset) {
    EXPECT_EQ(ptx::swizzle128(ptx::swizzle128(offset)), offset);
    EXPECT_EQ(ptx::swizzle128(offset) / 128, offset / 128);
  }
  for (uint32_t chunk = 0; chunk < 8; ++chunk) {
    std::set<uint32_t> banks;
    for (uint32_t row = 0; row < 8; ++row) {
      banks.insert(ptx::swizzle128(row * 128 + chunk * 16) % 128 / 16);
    }
    EXPECT_EQ(banks.size(), 8u);
  }
  EXPECT_EQ(ptx::swizzle128(3 * 128 + 5 * 16 + 4), 3u * 128 + (5 ^ 3) * 16 + 4);
}

TEST(CudaDescriptor, PutsEveryFieldInItsBits) {
  const uint64_t k_major = ptx::k_major_descriptor(0x12340);
  EXPECT_EQ(k_major & 0x3fff, 0x1234u);           // start address / 16
  EXPECT_EQ(k_major >> 16 & 0x3fff, 1u);          // leading offset, not used
  EXPECT_EQ(k_major >> 32 & 0x3fff, 1024u / 16);  // 8 rows
  EXPECT_EQ(k_major >> 49 & 0x7, 0u);             // base offset: panels are aligned
  EXPECT_EQ(k_major >> 62, 1u);                   // 128-byte swizzle
  const uint64_t mn_major = ptx::mn_major_descriptor(0x12340, 128 * 128);
  EXPECT_EQ(mn_major >> 16 & 0x3fff, 128u * 128 / 16);  // panel to panel
  EXPECT_EQ(mn_major >> 32 & 0x3fff, 1024u / 16);
  EXPECT_EQ(ptx::advance(k_major, 4096), ptx::k_major_descriptor(0x12340 + 4096));
  EXPECT_EQ(ptx::advance(mn_major, 2048), ptx::mn_major_descriptor(0x12340 + 2048, 128 * 128));
}

TEST(CudaQTiles, CoverEveryRowOnceAndStayUnderTheirBound) {
  for (const int kv_len : {0, 1, 127, 128, 129, 500, 1024}) {
    for (const int q_len : {0, 1, 2, 127, 128, 129, 300, 700}) {
      const SequenceShape shape{q_len, kv_len};
      const int first = shape.first_q_tile();
      const int end = shape.end_q_tile();
      if (q_len == 0) {
        EXPECT_EQ(first, end);
        continue;
      }
      EXPECT_LE(first * kQTileRows, kv_len - q_len);
      EXPECT_GT((first + 1) * kQTileRows, kv_len - q_len);
      EXPECT_GE(end * kQTileRows, kv_len);
      EXPECT_LT((end - 1) * kQTileRows, kv_len);
      EXPECT_LE(end - first, max_q_tiles(q_len, 1));
    }
  }
}

/// Whether a row at `position` sees key `t`.
bool sees(const SequenceShape& shape, int position, int t) {
  return t < shape.kv_len && (!shape.causal || t <= position) &&
         (shape.window_left < 0 || t >= position - shape.window_left);
}

TEST(CudaKvTiles, HoldEveryVisibleKeyAndOnlyMaskedTilesHaveHiddenOnes) {
  int num_plain = 0;
  for (const int rows : {64, 128}) {
    for (const bool causal : {true, false}) {
      for (const int window : {-1, 0, 1, 100, 127, 128, 129, 300, 100000}) {
        for (const int kv_len : {1, 64, 127, 128, 129, 400, 777}) {
          for (const int q_len : {1, 100, 400, 900}) {
            const SequenceShape shape{q_len, kv_len, causal, window};
            for (int q_tile = shape.first_q_tile(); q_tile < shape.end_q_tile(); ++q_tile) {
              const KvTileRange range = kv_tile_range(shape, q_tile * kQTileRows, kQTileRows, rows);
              for (int tile = 0; tile * rows < kv_len; ++tile) {
                bool any = false, all = true;
                for (int r = 0; r < kQTileRows; ++r) {
                  const int position = q_tile * kQTileRows + r;
                  if (position < kv_len - q_len || position >= kv_len) continue;
                  for (int t = tile * rows; t < (tile + 1) * rows; ++t) {
                    const bool seen = sees(shape, position, t);
                    any |= seen;
                    all &= seen;
                  }
                }
                const bool walked = tile >= range.first && tile < range.end;
                const bool masked = tile >= range.first_masked_high || tile < range.end_masked_low;
                ASSERT_TRUE(walked || !any) << "tile " << tile << " of query tile " << q_tile;
                ASSERT_TRUE(!walked || masked || all);
                num_plain += walked && !masked;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(num_plain, 1000);  // masks are the exception
}

TEST(CudaMeanTiles, HoldEveryVisibleMean) {
  int64_t num_tiles = 0;
  for (const int rows : {64, 128}) {
    for (const int block_size : {128, 256}) {
      for (const int window : {-1, 0, 127, 128, 1000, 40000}) {
        const SequenceShape shape{40000, 40000, true, window};
        for (int q_tile = 0; q_tile < shape.end_q_tile(); ++q_tile) {
          const MeanTileRange range = mean_tile_range(shape, q_tile * kQTileRows, block_size, rows);
          ASSERT_GE(range.first, 0);
          ASSERT_LE(range.first, range.end);
          num_tiles += range.end - range.first;
          const int q_block = q_tile * kQTileRows / block_size;
          for (int b = 0; b < q_block; ++b) {
            bool is_seen = false;
            for (int r = 0; r < kQTileRows; ++r) {
              is_seen |= window < 0 || b * block_size >= q_tile * kQTileRows + r - window;
            }
            const bool is_walked = b / rows >= range.first && b / rows < range.end;
            ASSERT_TRUE(is_walked || !is_seen) << "block " << b << " of query tile " << q_tile;
          }
        }
      }
    }
  }
  EXPECT_GT(num_tiles, 1000);
}

TEST(CudaQTiles, FourMillionTokensStayInRange) {
  const SequenceShape shape{4 << 20, 4 << 20};
  EXPECT_EQ(shape.end_q_tile(), 32768);
  const KvTileRange range = kv_tile_range(shape, 32767 * kQTileRows, kQTileRows, 128);
  EXPECT_EQ(range.end, 32768);
  EXPECT_EQ(range.first_masked_high, 32767);
  EXPECT_LT(max_q_tiles(4 << 20, 1) * 128, INT32_MAX);
}

}  // namespace
}  // namespace fovea::cuda
