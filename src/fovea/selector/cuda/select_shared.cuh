// Shared memory of the selection kernel and what its warps tell each other there.
#pragma once

#include "fovea/selector/cuda/select_launch.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/swizzle128.h"

namespace fovea::cuda {

constexpr int kSelectScorers = 128;                  // threads that score: one warpgroup
constexpr int kSelectThreads = kSelectScorers + 32;  // and the loader warp
constexpr int kScorerWarps = kSelectScorers / 32;
constexpr int kSelectBins = 128;  // of the histogram, see select_best.cuh
constexpr int kMaxStages = 2;     // tiles in flight

template <typename Element_, int kHeadDim_, bool kHasUplift_>
struct SelectTraits {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kHasUplift = kHasUplift_;
  static constexpr int kNumScores = kHasUplift ? 2 : 1;
  // CTAs of an SM, as far as registers go: 128 or 96 a thread.
  static constexpr int kCtas = kHasUplift || kHeadDim == 256 ? 3 : 4;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr uint32_t kQPanelBytes = kSelectQueryRows * ptx::kPanelRowBytes;
  static constexpr uint32_t kQBytes = kPanels * kQPanelBytes;  // of one product
  static constexpr uint32_t kTilePanelBytes = kFactTileBlocks * ptx::kPanelRowBytes;
  static constexpr uint32_t kTileBytes = kPanels * kTilePanelBytes;
};

/// A row of work: one q head of one query block. The loader describes it to the scorers.
struct SelectRow {
  QueryBlock block;
  float low = 0;             // radius at which the uplift starts
  float inverse_spread = 0;  // of the radii between there and where it is full
  float most = 0;            // radii above count as this one
  float extent = 0;          // see PrefixFacts
  int32_t widest = 0;
  int32_t head = -1;      // -1: no more rows
  int32_t group = 0;      // sequence and KV head, as facts are packed
  int32_t num_tiles = 0;  // of 64 blocks, to score

  __device__ bool is_forced(int b) const { return (b < block.sink_end) | (b >= block.local_begin); }
  __device__ int num_forced() const {
    return block.sink_end + block.q_block + 1 - block.local_begin;
  }
};

/// What the scorers add up over a row; cleared by the loader.
struct RowTotals {
  unsigned best[2] = {};           // ordered_bits of the best base and uplifted score; 0: none yet
  unsigned least[2] = {~0u, ~0u};  // of the worst open one, budget only
  unsigned num_open = 0;           // budget only: unforced blocks that are finite
  unsigned num_kept = 0;           // unforced blocks that are not finite, and so are kept
};

/// Scratch of BestOf, see select_best.cuh.
struct BestScratch {
  unsigned bins[2][kSelectBins];
  unsigned long long candidates[kSelectBins];  // key, then block: they order as they rank
  unsigned num_candidates;
};

/// Sizes that are known at launch only.
struct SelectLayout {
  int q_parts = 1;     // products that a query block takes
  int num_stages = 1;  // tiles in flight
  int max_blocks = 0;
};

struct SelectShared {
  float q_norm_range[2][kScorerWarps];  // smallest and largest of each warp
  SelectRow rows[2];
  RowTotals totals[2];
  BestScratch best;
  uint64_t q_full;  // Q and the row's description
  uint64_t q_empty;
  uint64_t mask_full;
  uint64_t mask_empty;
  uint64_t tile_full[kMaxStages];
  uint64_t tile_empty[kMaxStages];

  __device__ void init_barriers() {
    ptx::mbarrier_init(ptx::shared_address(&q_full), 1);
    ptx::mbarrier_init(ptx::shared_address(&q_empty), kScorerWarps);
    ptx::mbarrier_init(ptx::shared_address(&mask_full), kScorerWarps);
    ptx::mbarrier_init(ptx::shared_address(&mask_empty), 1);
    for (int s = 0; s < kMaxStages; ++s) {
      ptx::mbarrier_init(ptx::shared_address(&tile_full[s]), 1);
      ptx::mbarrier_init(ptx::shared_address(&tile_empty[s]), kScorerWarps);
    }
    ptx::mbarrier_init_fence();
  }
};

/// A place in the ring of tiles: tile number `count` of all that a CTA reads.
struct TilePlace {
  int stage;
  uint32_t parity;
  __device__ TilePlace(int count, int num_stages)
      : stage(count & (num_stages - 1)),
        parity(static_cast<uint32_t>(num_stages == 1 ? count : count >> 1) & 1) {}
};

/// Where everything lies: Q and tiles, which must be aligned to 1024 bytes, SelectShared, ||q||,
/// scores of one branch after the other, mask.
template <typename Traits>
class SelectMemory {
 public:
  __device__ SelectMemory(uint8_t* aligned, const SelectLayout& layout)
      : aligned_(aligned), layout_(layout) {}

  static int bytes(const SelectLayout& layout) {
    const int tiles = layout.q_parts * static_cast<int>(Traits::kQBytes) +
                      layout.num_stages * static_cast<int>(Traits::kTileBytes);
    const int words = layout.q_parts * kSelectQueryRows + Traits::kNumScores * layout.max_blocks +
                      layout.max_blocks / 32 + 1;
    return tiles + static_cast<int>(sizeof(SelectShared)) + words * 4;
  }

  __device__ const SelectLayout& layout() const { return layout_; }
  __device__ uint8_t* q() const { return aligned_; }
  __device__ uint8_t* tile(int stage) const {
    return aligned_ + layout_.q_parts * Traits::kQBytes + stage * Traits::kTileBytes;
  }
  __device__ SelectShared& shared() const {
    return *reinterpret_cast<SelectShared*>(tile(layout_.num_stages));
  }
  __device__ float* q_norm() const { return reinterpret_cast<float*>(&shared() + 1); }
  /// log2 scores by block: of the logits alone, and with the uplift.
  __device__ float* base_scores() const { return q_norm() + layout_.q_parts * kSelectQueryRows; }
  __device__ float* uplifted_scores() const {
    return base_scores() + (Traits::kHasUplift ? layout_.max_blocks : 0);
  }
  /// A bit for each block that a row keeps.
  __device__ unsigned* mask() const {
    return reinterpret_cast<unsigned*>(uplifted_scores() + layout_.max_blocks);
  }

 private:
  uint8_t* aligned_;
  const SelectLayout& layout_;
};

/// Which tile of blocks comes `n`-th: first the one with the largest radius, then from the diagonal
/// down to the sink.
__device__ inline int block_tile_at(int n, int num_tiles, int widest_block) {
  const int first = widest_block / kFactTileBlocks;
  const int from_end = num_tiles - n;
  if (n == 0) return first;
  return from_end > first ? from_end : from_end - 1;
}

/// Order-preserving map of floats to unsigned; -inf and everything above map above 0.
__device__ inline unsigned ordered_bits(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float from_ordered_bits(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

/// Barrier of the scorers; 0 is __syncthreads.
__device__ inline void sync_scorers() { ptx::named_barrier_sync(1, kSelectScorers); }

}  // namespace fovea::cuda
