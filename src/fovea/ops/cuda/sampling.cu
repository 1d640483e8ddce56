// A token is drawn by one cluster of CTAs, each of which has a run of the vocabulary. Sums of whole
// numbers are the same in any order, so the token is the one that the CPU draws. What cuts leave is
// found by digits of the weights, from the highest: a histogram says in which digit's bin the
// smallest weight lies that is kept.
#include <cooperative_groups.h>

#include "fovea/ops/cuda/sampling.h"
#include "fovea/tensor/cuda/check.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
/// Of a cluster: the most that hardware may have, and what every Hopper GPU has.
constexpr int kMostCtas = 16, kLeastCtas = 8;
/// Weights that a CTA keeps in shared memory; beside them are 8 KB of histograms and sums.
constexpr int kMostSharedWeights = 216 * 1024 / 8;

constexpr int kWeightBits = 41;
constexpr int kDigitBits = 9;
constexpr int kBins = 1 << kDigitBits;

struct DrawParams {
  const float* logits;
  int vocab_size, per_cta;
  const Draw* draw;
  int32_t* token;
  uint64_t* weights;  // [vocab_size], where they do not fit shared memory; else null
};

/// Sums of bins; a sum is low + 2^32 high.
struct Histogram {
  uint32_t low[kBins], high[kBins];
};

struct Found {
  int bin;
  uint64_t need, sum;  // what is still needed of the bin, and what it has; of bin 0 unknown
};

/// Shared memory of a CTA. What other CTAs read is written once, or in turns.
struct Shared {
  Histogram histograms[2];
  uint64_t best, sums[2];
  uint64_t of_warps[kWarps];
  Found found;
};

constexpr uint64_t kNanKey = ~uint64_t{0};

/// In the order of logits, equal ones by the lower token; NaN is above all.
__device__ uint64_t order_key(float logit, int token) {
  if (isnan(logit)) return kNanKey;
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 is 0
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(token);
}
__device__ int token_of(uint64_t key) { return static_cast<int>(~static_cast<uint32_t>(key)); }

struct Maximum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return max(a, b); }
};
struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

template <typename Combine>
__device__ uint64_t over_warp(uint64_t value, Combine combine) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) value = combine(value, __shfl_xor_sync(~0u, value, o));
  return value;
}

class Drawing {
 public:
  __device__ Drawing(const DrawParams& p, uint64_t* shared_weights, Shared& shared)
      : p_(p),
        shared_(shared),
        first_(static_cast<int>(cluster_.block_rank()) * p.per_cta),
        count_(max(0, min(p.per_cta, p.vocab_size - first_))),
        weights_(p.weights == nullptr ? shared_weights : p.weights + first_) {}

  __device__ void run() {
    const Draw draw = *p_.draw;
    uint64_t best = 0;
    for_each([&](int i) { best = max(best, order_key(p_.logits[first_ + i], first_ + i)); });
    best = over_cluster(best, shared_.best, Maximum{});
    const int top_token = best == kNanKey ? -1 : token_of(best);
    const bool is_greedy = draw.is_greedy() || top_token < 0 || isinf(p_.logits[top_token]);
    if (!is_greedy) {
      draw_below(p_.logits[top_token], draw);
    } else if (first_ == 0 && thread_ == 0) {
      *p_.token = top_token;
    }
  }

 private:
  template <typename Body>
  __device__ void for_each(Body body) const {
#pragma unroll 4
    for (int i = thread_; i < count_; i += kThreads) body(i);
  }

  /// Each thread's value with all others' of the CTA.
  template <typename Combine>
  __device__ uint64_t over_cta(uint64_t value, Combine combine) {
    value = over_warp(value, combine);
    if (thread_ % 32 == 0) shared_.of_warps[thread_ / 32] = value;
    __syncthreads();
    value = over_warp(shared_.of_warps[thread_ % 32], combine);
    __syncthreads();
    return value;
  }

  /// The same over the cluster. `place` is where others read the CTA's.
  template <typename Combine>
  __device__ uint64_t over_cluster(uint64_t value, uint64_t& place, Combine combine) {
    value = over_cta(value, combine);
    if (thread_ == 0) place = value;
    cluster_.sync();
    return over_warp(of_cta(thread_ % 32, place), combine);
  }

  /// What CTA `rank` has at `place`; 0 when there is no such CTA.
  __device__ uint64_t of_cta(int rank, uint64_t& place) const {
    if (rank >= static_cast<int>(cluster_.num_blocks())) return 0;
    return *cluster_.map_shared_rank(&place, static_cast<unsigned>(rank));
  }

  __device__ void draw_below(float top, const Draw& draw) {
    for_each([&](int i) {
      weights_[i] = sampling_weight(p_.logits[first_ + i], top, draw.temperature);
    });
    clear(shared_.histograms[0]);
    __syncthreads();
    uint64_t least = 1;  // of the weights that are kept
    if (draw.top_k > 0) {
      least = weight_that_reaches<true>(static_cast<uint64_t>(draw.top_k));
    }
    if (draw.top_p < 1) {
      const uint64_t sum = over_cluster(sum_from(least), shared_.sums[0], Sum{});
      least = max(least, weight_that_reaches<false>(share_of_weight(draw.top_p, sum)));
    }
    least = max(least, share_of_weight(draw.min_p, kTopSamplingWeight));

    const uint64_t kept = over_cluster(sum_from(least), shared_.sums[1], Sum{});
    const uint64_t left = min(share_of_weight(draw.random, kept), kept - 1);
    const int lane = thread_ % 32;
    const bool is_before = lane < static_cast<int>(cluster_.block_rank());
    const uint64_t before = over_warp(is_before ? of_cta(lane, shared_.sums[1]) : 0, Sum{});
    if (left >= before && left - before < shared_.sums[1]) find_token(left - before, least);
  }

  /// Of the thread's weights of at least `least`.
  __device__ uint64_t sum_from(uint64_t least) const {
    uint64_t sum = 0;
    for_each([&](int i) { sum += weights_[i] >= least ? weights_[i] : 0; });
    return sum;
  }

  /// The token of the CTA at which the sum of kept weights, in the order of tokens, passes `left`.
  __device__ void find_token(uint64_t left, uint64_t least) {
    const int per_thread = (count_ + kThreads - 1) / kThreads;
    const int begin = min(thread_ * per_thread, count_), end = min(begin + per_thread, count_);
    uint64_t sum = 0;
    for (int i = begin; i < end; ++i) sum += weights_[i] >= least ? weights_[i] : 0;
    uint64_t through = sum;  // to the end of this thread's
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
      const uint64_t earlier = __shfl_up_sync(~0u, through, o);
      if (thread_ % 32 >= o) through += earlier;
    }
    if (thread_ % 32 == 31) shared_.of_warps[thread_ / 32] = through;
    __syncthreads();
    for (int warp = 0; warp < thread_ / 32; ++warp) through += shared_.of_warps[warp];
    if (through <= left || through - sum > left) return;
    left -= through - sum;
    for (int i = begin;; ++i) {
      if (weights_[i] < least) continue;
      if (weights_[i] > left) {
        *p_.token = first_ + i;
        return;
      }
      left -= weights_[i];
    }
  }

  /// A weight that leaves as many as the greatest one does such that it and those above it reach
  /// `need`, as a number of tokens or as a sum; 0 when all together do not.
  template <bool kCounts>
  __device__ uint64_t weight_that_reaches(uint64_t need) {
    need = max(need, uint64_t{1});
    uint64_t least = 0;  // of the bin that it lies in, which is 2^known wide
    for (int known = kWeightBits; known > 0;) {
      const int shift = max(known - kDigitBits, 0);
      Histogram& own = shared_.histograms[turn_];
      // The lowest bin is never asked for: it is the one when the others do not reach.
      for_each([&](int i) {
        const uint64_t above = weights_[i] - least;
        if (above >> known == 0 && above >> shift > 0) {
          add(own, static_cast<int>(above >> shift), kCounts ? 1 : weights_[i]);
        }
      });
      cluster_.sync();
      turn_ ^= 1;
      clear(shared_.histograms[turn_]);
      const Found found = find_bin(own, need);
      least += static_cast<uint64_t>(found.bin) << shift;
      need = found.need;
      known = shift;
      // All of the bin is needed.
      if (found.bin > 0 && need > found.sum - (kCounts ? 1 : least)) break;
    }
    return least;
  }

  static __device__ void add(Histogram& histogram, int bin, uint64_t value) {
    const auto low = static_cast<uint32_t>(value);
    const auto high = static_cast<uint32_t>(value >> 32);
    const uint32_t before = atomicAdd(&histogram.low[bin], low);
    const uint32_t carry = before + low < before ? 1 : 0;
    if (high + carry > 0) atomicAdd(&histogram.high[bin], high + carry);
  }

  __device__ void clear(Histogram& histogram) const {
    if (thread_ < kBins) histogram.low[thread_] = histogram.high[thread_] = 0;
  }

  /// The bin, highest first, at which the cluster's sums reach `need`. `own` is the CTA's.
  __device__ Found find_bin(Histogram& own, uint64_t need) {
    uint64_t sum = 0, from = 0;  // of the thread's bin; from it to the end of its warp
    if (thread_ < kBins) {
      for (unsigned rank = 0; rank < cluster_.num_blocks(); ++rank) {
        const Histogram& other = *cluster_.map_shared_rank(&own, rank);
        sum += other.low[thread_] + (uint64_t{other.high[thread_]} << 32);
      }
      from = sum;
#pragma unroll
      for (int o = 1; o < 32; o *= 2) {
        const uint64_t later = __shfl_down_sync(~0u, from, o);
        if (thread_ % 32 + o < 32) from += later;
      }
      if (thread_ % 32 == 0) shared_.of_warps[thread_ / 32] = from;
    }
    __syncthreads();
    if (thread_ < kBins) {
      for (int warp = thread_ / 32 + 1; warp < kBins / 32; ++warp) from += shared_.of_warps[warp];
      if (from >= need && from - sum < need) {
        shared_.found = {thread_, need - (from - sum), sum};
      } else if (thread_ == 0 && from < need) {
        shared_.found = {0, need - from, 0};
      }
    }
    __syncthreads();
    return shared_.found;
  }

  const DrawParams& p_;
  Shared& shared_;
  const cg::cluster_group cluster_ = cg::this_cluster();
  const int thread_ = static_cast<int>(threadIdx.x);
  int first_, count_;  // of the vocabulary, of this CTA
  uint64_t* weights_;  // of the CTA
  int turn_ = 0;       // of histograms
};

__global__ __launch_bounds__(kThreads, 1) void draw_kernel(const DrawParams p) {
  extern __shared__ uint64_t weights[];
  __shared__ Shared shared;
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  Drawing(p, weights, shared).run();
  cg::this_cluster().sync();  // others may still read what is shared
}

/// How draw_kernel is launched for so many tokens.
class Launch {
 public:
  explicit Launch(int64_t vocab_size) : vocab_size_(static_cast<int>(vocab_size)) {
    check_cuda(cudaFuncSetAttribute(draw_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kMostSharedWeights * 8),
               kWhat);
    check_cuda(cudaFuncSetAttribute(draw_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
               kWhat);
    attributes_[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[0].val.programmaticStreamSerializationAllowed = 1;
    attributes_[1].id = cudaLaunchAttributeClusterDimension;
    config_.blockDim = dim3(kThreads);
    config_.attrs = attributes_;
    config_.numAttrs = 2;
    use_ctas(kMostCtas);
    int num_clusters = 0;
    check_cuda(cudaOccupancyMaxActiveClusters(&num_clusters, draw_kernel, &config_), kWhat);
    if (num_clusters == 0) use_ctas(kLeastCtas);
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int per_cta() const { return (vocab_size_ + num_ctas_ - 1) / num_ctas_; }
  bool needs_scratch() const { return per_cta() > kMostSharedWeights; }
  void run(const DrawParams& params, cudaStream_t stream) const {
    cudaLaunchConfig_t config = config_;
    config.stream = stream;
    check_cuda(cudaLaunchKernelEx(&config, draw_kernel, params), kWhat);
  }

 private:
  static constexpr const char* kWhat = "launching draw_kernel";

  void use_ctas(int count) {
    num_ctas_ = count;
    config_.gridDim = dim3(static_cast<unsigned>(count));
    config_.dynamicSmemBytes = needs_scratch() ? 0 : static_cast<size_t>(per_cta()) * 8;
    attributes_[1].val.clusterDim = {static_cast<unsigned>(count), 1, 1};
  }

  int vocab_size_, num_ctas_ = 0;
  cudaLaunchAttribute attributes_[2] = {};
  cudaLaunchConfig_t config_ = {};
};

}  // namespace

int64_t draw_scratch_bytes(int64_t vocab_size) {
  return Launch(vocab_size).needs_scratch() ? vocab_size * int64_t{8} : 0;
}

void launch_draw(const TensorView& logits, const Draw* draw, int32_t* token, uint64_t* scratch,
                 cudaStream_t stream) {
  const Launch launch(logits.shape[1]);
  launch.run({.logits = logits.as<const float>(),
              .vocab_size = static_cast<int>(logits.shape[1]),
              .per_cta = launch.per_cta(),
              .draw = draw,
              .token = token,
              .weights = launch.needs_scratch() ? scratch : nullptr},
             stream);
}

}  // namespace fovea::cuda
