// The best blocks of a row by score, for budgets. All scorers of a CTA together.
//
// A histogram over the range of the scores finds the bin in which the last of the best lies; the
// few blocks of that bin are ranked one by one. A bin with too many is divided again.
#pragma once

#include "fovea/selector/cuda/select_shared.cuh"

namespace fovea::cuda {

/// One choice among the blocks whose mask bit is not set.
class BestOf {
 public:
  /// Scores of open blocks lie in [least, best]. Warp w of the scorers owns words w,
  /// w + kScorerWarps ... of the mask: nobody else has written them since the last barrier.
  __device__ BestOf(const float* scores, unsigned* mask, int num_blocks, float best, float least,
                    BestScratch& scratch)
      : scores_(scores),
        mask_(mask),
        num_blocks_(num_blocks),
        best_(best),
        scale_(best > least ? static_cast<float>(kRange) / (best - least) : 0.f),
        scratch_(scratch),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32) {}

  /// Sets the mask bits of the `count` best open blocks, of all when there are fewer; equal ones in
  /// order of their number. scratch.bins must be zero in the beginning and is in the end. Ends with
  /// a barrier.
  __device__ void keep(int count) {
    if (count <= 0) return;  // the same for all threads
    unsigned low = 0;        // what is undecided has keys in [low, low + kSelectBins << shift)
    for (int shift = kFirstShift, x = 0;; shift = max(shift - kBinBits, 0), x ^= 1) {
      count_keys(low, shift, scratch_.bins[x]);
      if (thread_ == 0) scratch_.num_candidates = 0;
      sync_scorers();
      clear(scratch_.bins[x ^ 1]);
      const Boundary boundary = find_boundary(scratch_.bins[x], count);
      count -= boundary.num_before;
      const unsigned bin_low = low + (static_cast<unsigned>(boundary.bin) << shift);
      const unsigned bin_end = bin_low + (1u << shift);
      const bool takes_bin = boundary.num_in <= count;
      keep_below(takes_bin ? bin_end : bin_low);
      const bool is_last = takes_bin || boundary.num_in <= kSelectBins || shift == 0;
      if (!takes_bin && is_last) {
        if (boundary.num_in <= kSelectBins) {
          collect(bin_low, bin_end);
          sync_scorers();
          rank(boundary.num_in, count);
        } else {
          sync_scorers();
          if (warp_ == 0) keep_first(bin_low, count);
        }
      }
      sync_scorers();
      if (is_last) {
        clear(scratch_.bins[x]);
        sync_scorers();
        return;
      }
      low = bin_low;
    }
  }

 private:
  static constexpr int kRangeBits = 30;
  static constexpr unsigned kRange = 1u << kRangeBits;  // keys: how far below the best, so scaled
  static constexpr int kBinBits = 7;
  static_assert(1 << kBinBits == kSelectBins);
  static constexpr int kFirstShift = kRangeBits - kBinBits;

  struct Boundary {
    int bin = 0;         // where the last of the best lies
    int num_before = 0;  // in the bins before it
    int num_in = 0;
  };

  __device__ void clear(unsigned* bins) const {
    for (int i = thread_; i < kSelectBins; i += kSelectScorers) bins[i] = 0;
  }
  __device__ bool is_open(int b) const {
    return b < num_blocks_ && (mask_[b / 32] >> b % 32 & 1) == 0;
  }
  __device__ unsigned key(int b) const {
    return min(__float2uint_rz((best_ - scores_[b]) * scale_), kRange - 1);
  }

  template <typename Visit>
  __device__ void for_own_blocks(Visit visit) const {
    for (int k = warp_; k * 32 < num_blocks_; k += kScorerWarps) visit(k, k * 32 + lane_);
  }

  __device__ void count_keys(unsigned low, int shift, unsigned* bins) const {
    for_own_blocks([&](int, int b) {
      if (!is_open(b)) return;
      const unsigned bin = (key(b) - low) >> shift;  // below `low` wraps around to far above
      if (bin < kSelectBins) atomicAdd(&bins[bin], 1u);
    });
  }

  __device__ Boundary find_boundary(const unsigned* bins, int count) const {
    constexpr int kPerLane = kSelectBins / 32;
    int own[kPerLane];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      own[i] = static_cast<int>(bins[lane_ * kPerLane + i]);
      sum += own[i];
    }
    int up_to = sum;  // in this lane's bins and those before
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const int other = __shfl_up_sync(~0u, up_to, o);
      if (lane_ >= o) up_to += other;
    }
    const unsigned reaching = __ballot_sync(~0u, up_to >= count);
    const int owner = reaching != 0 ? __ffs(static_cast<int>(reaching)) - 1 : 31;
    Boundary found{lane_ * kPerLane, up_to - sum, own[0]};
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) {
      if (found.num_before + found.num_in < count && found.bin == lane_ * kPerLane + i - 1) {
        found = {lane_ * kPerLane + i, found.num_before + found.num_in, own[i]};
      }
    }
    return {__shfl_sync(~0u, found.bin, owner), __shfl_sync(~0u, found.num_before, owner),
            __shfl_sync(~0u, found.num_in, owner)};
  }

  __device__ void keep_below(unsigned end) const {
    for_own_blocks([&](int k, int b) {
      const bool takes = is_open(b) && key(b) < end;
      const unsigned bits = __ballot_sync(~0u, takes);
      __syncwarp();
      if (lane_ == 0) mask_[k] |= bits;
      __syncwarp();
    });
  }

  __device__ void collect(unsigned low, unsigned end) const {
    for_own_blocks([&](int, int b) {
      if (!is_open(b)) return;
      const unsigned own = key(b);
      if (own < low || own >= end) return;
      const unsigned at = atomicAdd(&scratch_.num_candidates, 1u);
      scratch_.keys[at] = own;
      scratch_.blocks[at] = b;
    });
  }

  __device__ void rank(int num_candidates, int count) const {
    for (int t = thread_; t < num_candidates; t += kSelectScorers) {
      const unsigned own = scratch_.keys[t];
      const int block = scratch_.blocks[t];
      int better = 0;
      for (int i = 0; i < num_candidates; ++i) {
        const unsigned other = scratch_.keys[i];
        better += other < own || (other == own && scratch_.blocks[i] < block);
      }
      if (better < count) atomicOr(&mask_[block / 32], 1u << block % 32);
    }
  }

  /// Of the blocks with this one key, the first `count`; by one warp.
  __device__ void keep_first(unsigned only, int count) const {
    for (int k = 0; k * 32 < num_blocks_ && count > 0; ++k) {
      const int b = k * 32 + lane_;
      const bool is_equal = is_open(b) && key(b) == only;
      const unsigned equal = __ballot_sync(~0u, is_equal);
      const bool takes = is_equal && __popc(equal & ((1u << lane_) - 1)) < count;
      const unsigned bits = __ballot_sync(~0u, takes);
      __syncwarp();
      if (lane_ == 0) mask_[k] |= bits;
      count -= __popc(bits);
    }
  }

  const float* scores_;
  unsigned* mask_;
  int num_blocks_;
  float best_;
  float scale_;
  BestScratch& scratch_;
  const int thread_;
  const int lane_;
  const int warp_;
};

}  // namespace fovea::cuda
