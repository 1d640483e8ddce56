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
  /// order of their number. All of scratch.bins is zero in the beginning and in the end. Ends with
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
      const bool ranks = !takes_bin && boundary.num_in <= kSelectBins;
      keep_below(takes_bin ? bin_end : bin_low, ranks ? bin_end : 0);
      sync_scorers();
      const bool is_last = takes_bin || ranks || shift == 0;
      if (is_last) {
        clear(scratch_.bins[x]);
        if (ranks) {
          rank(boundary.num_in, count);
        } else if (!takes_bin && warp_ == 0) {
          keep_first(bin_low, count);
        }
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

  /// The keys of several words' blocks of this lane, the first in word `first`, side by side so
  /// that their loads overlap. Those of closed blocks lie above all others.
  static constexpr int kSideBySide = 4;
  __device__ void load_keys(int first, unsigned (&keys)[kSideBySide]) const {
#pragma unroll
    for (int i = 0; i < kSideBySide; ++i) {
      const int b = (first + i * kScorerWarps) * 32 + lane_;
      const int at = min(b, num_blocks_ - 1);
      const bool is_closed = (b >= num_blocks_) | ((mask_[at / 32] >> at % 32 & 1) != 0);
      keys[i] = is_closed ? ~0u : key(at);
    }
  }

  template <typename Visit>
  __device__ void for_own_keys(Visit visit) const {
#pragma unroll 1
    for (int k = warp_; k * 32 < num_blocks_; k += kSideBySide * kScorerWarps) {
      unsigned keys[kSideBySide];
      load_keys(k, keys);
#pragma unroll
      for (int i = 0; i < kSideBySide; ++i) visit(k + i * kScorerWarps, keys[i]);
    }
  }

  __device__ void count_keys(unsigned low, int shift, unsigned* bins) const {
    for_own_keys([&](int, unsigned own) {
      const unsigned bin = (own - low) >> shift;  // below `low` wraps around to far above
      if (own < kRange && bin < kSelectBins) atomicAdd(&bins[bin], 1u);
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

  /// Keeps the blocks with keys below `end`; those between that and `candidates_end` are to be
  /// ranked.
  __device__ void keep_below(unsigned end, unsigned candidates_end) const {
    for_own_keys([&](int k, unsigned own) {
      if (own >= end && own < candidates_end) {
        const unsigned at = atomicAdd(&scratch_.num_candidates, 1u);
        scratch_.candidates[at] =
            static_cast<unsigned long long>(own) << 32 | static_cast<unsigned>(k * 32 + lane_);
      }
      const unsigned bits = __ballot_sync(~0u, own < end);
      if (lane_ == 0 && bits != 0) mask_[k] |= bits;
    });
  }

  __device__ void rank(int num_candidates, int count) const {
    for (int t = thread_; t < num_candidates; t += kSelectScorers) {
      const unsigned long long own = scratch_.candidates[t];
      int better = 0;
#pragma unroll 4
      for (int i = 0; i < num_candidates; ++i) better += scratch_.candidates[i] < own;
      const auto block = static_cast<unsigned>(own);
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
