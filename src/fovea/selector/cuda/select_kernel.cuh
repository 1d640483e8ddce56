// Scores every block before a query block for one q head, and writes the list of those it keeps.
//
// Persistent, one warpgroup per CTA, up to three CTAs per SM, so that one's exponentials cover
// another's products and list writing. S^T = C Q^T in tiles of 64 blocks (m64 n128): a thread holds
// two blocks x 32 queries, so that the sum over the queries is a sum over its own registers and two
// shuffles, and a block's log-sum-exp is finished on the spot. Nothing of size blocks x blocks or
// tokens x blocks ever reaches memory.
//
// A score is log2 of a sum over queries of 2^logit. Sums are taken relative to the best of the
// warp's blocks in the row's first tile (a fixed, achieved value: the result does not depend on
// timing), or to the block's own maximum where that does not fit. The uplifted sum of a block lies
// between base + uplift * min|q| and base + uplift * max|q|; the first tile holds the largest
// radius, and blocks whose upper end cannot reach alpha times its score get no second sum. That is
// exact: the final maximum is no smaller.
//
// `witness` has several rows a block, one tile of 64 after another; their sums add up.
#pragma once

#include <cuda_bf16.h>

#include "fovea/attention/cuda/check.h"
#include "fovea/attention/cuda/ptx/math.h"
#include "fovea/attention/cuda/ptx/mbarrier.h"
#include "fovea/attention/cuda/ptx/swizzle128.h"
#include "fovea/attention/cuda/ptx/tma.h"
#include "fovea/attention/cuda/ptx/wgmma.h"
#include "fovea/selector/cuda/select_launch.h"
#include "fovea/selector/cuda/select_lists.cuh"

namespace fovea::cuda {

template <int kHeadDim_, Branches kBranches_, int kStages_>
struct SelectTraits {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kHasBase = kBranches_ != Branches::kUplift;
  static constexpr bool kHasUplift = kBranches_ != Branches::kBase;
  static constexpr int kNumScores = kBranches_ == Branches::kBoth ? 2 : 1;
  static constexpr int kStages = kStages_;
  static constexpr int kPanels = kHeadDim / 64;
  static constexpr uint32_t kQPanelBytes = kSelectBlockSize * ptx::kPanelRowBytes;
  static constexpr uint32_t kQBytes = kPanels * kQPanelBytes;
  static constexpr uint32_t kTilePanelBytes = kFactTileBlocks * ptx::kPanelRowBytes;
  static constexpr uint32_t kTileBytes = kPanels * kTilePanelBytes;
};

template <typename Traits>
struct SelectShared {
  alignas(ptx::kSwizzleAtomBytes) uint8_t q[Traits::kQBytes];
  alignas(ptx::kSwizzleAtomBytes) uint8_t tile[Traits::kStages][Traits::kTileBytes];
  float2 q_norm[kSelectBlockSize / 2];
  float q_norm_range[2][4];  // smallest and largest of each warp
  float first_best[4];
  unsigned best[2];  // ordered_bits of the best base and uplifted score
  int non_finite;
  unsigned num_open;  // see apply_budget()
  int next_work;
  ListShared list;
  uint64_t q_full;
  uint64_t tile_full[Traits::kStages];
  // float scores[kNumScores][Selector::score_stride()] follow
};

/// Which tile of blocks comes `n`-th: first the one with the largest radius, then from the diagonal
/// down to the sink.
__device__ inline int block_tile_at(int n, int num_tiles, int first) {
  const int from_end = num_tiles - n;
  if (n == 0) return first;
  return from_end > first ? from_end : from_end - 1;
}

template <typename Traits>
class Selector {
 public:
  __device__ Selector(const SelectMaps& maps, const SelectParams& params,
                      SelectShared<Traits>& shared)
      : maps_(maps),
        p_(params),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32),
        tile_descriptor_(ptx::k_major_descriptor(ptx::shared_address(shared.tile))),
        q_descriptor_(ptx::k_major_descriptor(ptx::shared_address(shared.q))) {}

  /// Entries of one array of scores: every block, and room for the last word of the mask.
  __host__ __device__ static int score_stride(const SelectParams& params) {
    return params.facts.max_blocks + kFactTileBlocks;
  }

  __device__ void run() {
    const int num_rows = *p_.plan.num_tiles * p_.num_q_heads;
    int work = static_cast<int>(blockIdx.x);
    if (thread_ == 0 && work < num_rows) start_loading(describe_select_row(p_, work));
    while (work < num_rows) {
      row_ = describe_select_row(p_, work);
      num_tiles_ = count_tiles(row_);
      next_ = 0;
      if (thread_ == 0) {
        next_ = atomicAdd(p_.plan.next_work, 1) + static_cast<int>(gridDim.x);
        shared_.best[0] = shared_.best[1] = ordered_bits(-INFINITY);
        shared_.non_finite = 0;
        shared_.num_open = 0;
      }
      if (num_tiles_ > 0) {
        score_row();
      } else if (thread_ == 0) {
        load_next();
      }
      __syncthreads();
      choose();
      work = *static_cast<volatile int*>(&shared_.next_work);
      write_list(p_, row_, reinterpret_cast<unsigned*>(base_scores()), 32, shared_.list);
    }
  }

 private:
  /// Scores of every block, log2, of the first branch and of the uplifted one.
  __device__ float* base_scores() const { return reinterpret_cast<float*>(&shared_ + 1); }
  __device__ float* uplifted_scores() const {
    return base_scores() + (Traits::kNumScores == 2 ? score_stride(p_) : 0);
  }

  // Loading, by thread 0: a row's Q and first tiles while the row before it is being finished.

  __device__ int count_tiles(const SelectRow& row) const {
    if (!row.is_scored() || p_.is_fixed) return 0;
    return (row.q_block + kFactTileBlocks - 1) / kFactTileBlocks * p_.facts.rows_per_block;
  }
  __device__ const PrefixFacts& prefix(const SelectRow& row) const {
    return p_.facts.prefix[int64_t{row.group} * (p_.facts.max_blocks + 1) + row.q_block];
  }
  __device__ void load_tile(const SelectRow& row, int n, int num_tiles, int widest) {
    const int rows = p_.facts.rows_per_block;
    const int tiles_of_group = p_.facts.max_blocks / kFactTileBlocks * rows;
    const int tile =
        block_tile_at(n / rows, num_tiles / rows, widest / kFactTileBlocks) * rows + n % rows;
    const int stage = n % Traits::kStages;
    const uint32_t full = ptx::shared_address(&shared_.tile_full[stage]);
    ptx::mbarrier_arrive_expect(full, Traits::kTileBytes);
    for (int panel = 0; panel < Traits::kPanels; ++panel) {
      ptx::tma_load(ptx::shared_address(shared_.tile[stage]) + panel * Traits::kTilePanelBytes,
                    &maps_.rows, full,
                    {panel * 64, (row.group * tiles_of_group + tile) * kFactTileBlocks, 0, 0});
    }
  }
  __device__ void start_loading(const SelectRow& row) {
    const int num_tiles = count_tiles(row);
    if (num_tiles == 0) return;
    const uint32_t full = ptx::shared_address(&shared_.q_full);
    ptx::mbarrier_arrive_expect(full, Traits::kQBytes);
    for (int panel = 0; panel < Traits::kPanels; ++panel) {
      ptx::tma_load(ptx::shared_address(shared_.q) + panel * Traits::kQPanelBytes, &maps_.q, full,
                    {panel * 64, row.q_row, row.head, 0});
    }
    const int widest = prefix(row).widest;
    for (int n = 0; n < Traits::kStages && n < num_tiles; ++n) {
      load_tile(row, n, num_tiles, widest);
    }
  }
  __device__ void load_next() {
    shared_.next_work = next_;
    if (next_ < *p_.plan.num_tiles * p_.num_q_heads) start_loading(describe_select_row(p_, next_));
  }

  // Scoring.

  __device__ void score_row() {
    facts_ = prefix(row_);
    radius_ = p_.facts.radius + int64_t{row_.group} * p_.facts.max_blocks;
    inverse_spread_ = facts_.high > facts_.low ? 1.f / (facts_.high - facts_.low) : INFINITY;
    ptx::mbarrier_wait(ptx::shared_address(&shared_.q_full), q_parity_);
    q_parity_ ^= 1;
    measure_queries();

    float s0[kSelectBlockSize / 2];
    float s1[kSelectBlockSize / 2];
    reference_ = 0.f;
    reach_ = -INFINITY;
    best_[0] = best_[1] = -INFINITY;
    Radii radii = issue(s0, 0);
#pragma unroll 1
    for (int n = 0; n < num_tiles_; n += 2) {
      radii = step(s0, s1, n, radii);
      radii = step(s1, s0, n + 1, radii);
    }
    ptx::wgmma_wait<0>();
    for (int x = 0; x < 2; ++x) {
      const unsigned best = __reduce_max_sync(~0u, ordered_bits(best_[x]));
      if (lane_ == 0) atomicMax(&shared_.best[x], best);
    }
  }

  /// ||q|| of each query, one a thread; queries past the sequence count as 0. Chunks are read in a
  /// rotated order against bank conflicts.
  __device__ void measure_queries() {
    float sum = 0.f;
#pragma unroll
    for (int k = 0; k < Traits::kHeadDim / 8; ++k) {
      const uint32_t offset =
          k / 8 * Traits::kQPanelBytes + thread_ * ptx::kPanelRowBytes + (k + thread_) % 8 * 16;
      const uint4 chunk = *reinterpret_cast<const uint4*>(shared_.q + offset);
      const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 pair = ptx::unpack2<__nv_bfloat16>(words[j]);
        sum = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, sum));
      }
    }
    const bool exists = thread_ < row_.num_rows;
    const float norm = exists ? sqrtf(sum) : 0.f;
    reinterpret_cast<float*>(shared_.q_norm)[thread_] = norm;
    // Norms are not negative, so they order like their bits; NaN lies above everything.
    const unsigned bits = __float_as_uint(norm) & 0x7fffffffu;
    const unsigned most = __reduce_max_sync(~0u, bits);
    const unsigned least = __reduce_min_sync(~0u, exists ? bits : 0x7f800000u);
    if (lane_ == 0) {
      shared_.q_norm_range[0][warp_] = __uint_as_float(least);
      shared_.q_norm_range[1][warp_] = __uint_as_float(most);
    }
    __syncthreads();
    unsigned low = 0x7f800000u;
    unsigned high = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      low = min(low, __float_as_uint(shared_.q_norm_range[0][w]));
      high = max(high, __float_as_uint(shared_.q_norm_range[1][w]));
    }
    q_norm_min_ = __uint_as_float(low);
    q_norm_max_ = __uint_as_float(high);
    constexpr float kLargestLogit = 1e37f;  // false for NaN
    is_judged_ = q_norm_max_ * facts_.extent * fmaxf(1.f, p_.scale) <= kLargestLogit;
  }

  /// -1: the block is not finite.
  __device__ float radius_of(int block) const { return radius_[block]; }
  struct Radii {
    float of[2];  // -1: the block is not finite
  };
  __device__ int first_block(int n) const {
    const int rows = p_.facts.rows_per_block;
    return block_tile_at(n / rows, num_tiles_ / rows, facts_.widest / kFactTileBlocks) *
               kFactTileBlocks +
           warp_ * 16 + lane_ / 4;
  }

  /// S^T of tile n, not waited for, and the radii of this thread's two blocks. Past the last tile:
  /// a product nobody reads, so that the pipeline has no branch.
  __device__ Radii issue(float (&s)[kSelectBlockSize / 2], int n) {
    using Product = ptx::Wgmma<__nv_bfloat16, kSelectBlockSize>;
    const int stage = n % Traits::kStages;
    if (n < num_tiles_) {
      ptx::mbarrier_wait(ptx::shared_address(&shared_.tile_full[stage]), tile_parity_ >> stage & 1);
      tile_parity_ ^= 1u << stage;
    }
    const uint64_t tile = ptx::advance(tile_descriptor_, stage * Traits::kTileBytes);
    ptx::wgmma_fence();
    Product::first(s, tile, q_descriptor_);
#pragma unroll
    for (int k = 1; k < Traits::kHeadDim / 16; ++k) {
      Product::add(s, ptx::advance(tile, k / 4 * Traits::kTilePanelBytes + k % 4 * 32),
                   ptx::advance(q_descriptor_, k / 4 * Traits::kQPanelBytes + k % 4 * 32));
    }
    ptx::wgmma_commit();
    const int block = first_block(n);
    const bool any = n < num_tiles_;
    return {{any && block < row_.q_block ? radius_of(block) : -1.f,
             any && block + 8 < row_.q_block ? radius_of(block + 8) : -1.f}};
  }

  __device__ Radii step(float (&current)[kSelectBlockSize / 2], float (&next)[kSelectBlockSize / 2],
                        int n, Radii radii) {
    ptx::wgmma_wait<0>();
    // Every warp's product n is done: its stage is free, after the last one Q is too.
    if (warp_ == 0) {
      ptx::named_barrier_sync(1 + n % 2, kSelectThreads);
    } else {
      ptx::named_barrier_arrive(1 + n % 2, kSelectThreads);
    }
    if (thread_ == 0) {
      if (n + Traits::kStages < num_tiles_) {
        load_tile(row_, n + Traits::kStages, num_tiles_, facts_.widest);
      }
      if (n + 1 == num_tiles_) load_next();
    }
    Radii next_radii;
    if (Traits::kStages > 1) next_radii = issue(next, n + 1);  // runs beside the scoring of tile n
    if (n < num_tiles_) score_tile(current, n, radii);
    if (Traits::kStages == 1) next_radii = issue(next, n + 1);
    return next_radii;
  }

  /// How much a unit of ||q|| adds to the logits of a block, in log2.
  __device__ float uplift(float radius) const {
    if (!Traits::kHasUplift || radius < 0.f) return 0.f;
    if (p_.is_bound) return radius * p_.scale_log2;
    if (radius <= facts_.low) return 0.f;
    return fminf(radius, facts_.most) * fminf((radius - facts_.low) * inverse_spread_, 1.f) *
           p_.scale_log2;
  }

  /// Sums over the queries of 2^(logit - reference) for this thread's two blocks; all of the quad.
  __device__ void sum_base(const float (&s)[kSelectBlockSize / 2], const float (&reference)[2],
                           float (&sum)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float even = 0.f;
      float odd = 0.f;
#pragma unroll
      for (int i = 2 * r; i < kSelectBlockSize / 2; i += 4) {
        even += ptx::exp2_approx(fmaf(s[i], p_.scale_log2, -reference[r]));
        odd += ptx::exp2_approx(fmaf(s[i + 1], p_.scale_log2, -reference[r]));
      }
      sum[r] = ptx::quad_sum(even + odd);
    }
  }

  /// This thread's pair of ||q|| that goes with accumulators 4 * j ... 4 * j + 3.
  __device__ float2 norms(int j) const { return shared_.q_norm[4 * j + lane_ % 4]; }

  __device__ void sum_uplifted(const float (&s)[kSelectBlockSize / 2], const float (&up)[2],
                               const float (&reference)[2], float (&sum)[2]) const {
    float even[2] = {0.f, 0.f};
    float odd[2] = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < kSelectBlockSize / 8; ++j) {
      const float2 q = norms(j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = fmaf(s[4 * j + 2 * r], p_.scale_log2, -reference[r]);
        const float y = fmaf(s[4 * j + 2 * r + 1], p_.scale_log2, -reference[r]);
        even[r] += ptx::exp2_approx(fmaf(q.x, up[r], x));
        odd[r] += ptx::exp2_approx(fmaf(q.y, up[r], y));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = ptx::quad_sum(even[r] + odd[r]);
  }

  /// Largest logit of each block, with `up` * ||q|| on top.
  __device__ void largest(const float (&s)[kSelectBlockSize / 2], const float (&up)[2],
                          float (&top)[2]) const {
    top[0] = top[1] = -INFINITY;
#pragma unroll
    for (int j = 0; j < kSelectBlockSize / 8; ++j) {
      const float2 q = Traits::kHasUplift ? norms(j) : float2{0.f, 0.f};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], fmaxf(fmaf(q.x, up[r], s[4 * j + 2 * r] * p_.scale_log2),
                                     fmaf(q.y, up[r], s[4 * j + 2 * r + 1] * p_.scale_log2)));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = ptx::quad_max(top[r]);
  }

  __device__ void score_tile(float (&s)[kSelectBlockSize / 2], int n, const Radii& radii) {
    const int block = first_block(n);
    const bool is_valid[2] = {radii.of[0] >= 0.f, radii.of[1] >= 0.f};
    const float up[2] = {uplift(radii.of[0]), uplift(radii.of[1])};
    if (row_.num_rows < kSelectBlockSize) {  // the prompt's last block: queries that do not exist
#pragma unroll
      for (int i = 0; i < kSelectBlockSize / 2; ++i) {
        if (i / 4 * 8 + lane_ % 4 * 2 + i % 2 >= row_.num_rows) s[i] = -INFINITY;
      }
    }
    const bool is_first = n == 0;
    float base[2];
    score_base(s, is_first, is_valid, up, base);
    float uplifted[2] = {base[0], base[1]};  // without uplift the branches agree
    if (Traits::kHasUplift) score_uplifted(s, is_valid, up, base, uplifted);

    const int row_of_block = n % p_.facts.rows_per_block;
    if (!Traits::kHasUplift && p_.facts.rows_per_block > 1) {
      const float bias = row_of_block == 0 ? p_.rest_bias_log2 : 0.f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // The rows of a block are neighbours in time: their sums meet here.
        const float old = row_of_block == 0 ? -INFINITY : partial_[r];
        const float now = base[r] + bias;
        const float top = fmaxf(old, now);
        partial_[r] =
            top == -INFINITY
                ? top
                : top + ptx::log2_approx(ptx::exp2_approx(old - top) + ptx::exp2_approx(now - top));
        base[r] = partial_[r];
      }
      if (row_of_block + 1 < p_.facts.rows_per_block) {
        if (is_first) take_reference(base);
        return;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int b = block + 8 * r;
      if (lane_ % 4 == 0) {
        // A block that is not finite is kept, whatever the threshold: it scores +inf, as no other
        // can.
        const bool is_kept = !is_valid[r] && b < row_.q_block;
        if (Traits::kHasBase) base_scores()[b] = is_kept ? INFINITY : base[r];
        if (Traits::kHasUplift) uplifted_scores()[b] = is_kept ? INFINITY : uplifted[r];
        if (is_kept) atomicAdd(&shared_.non_finite, 1);
      }
      const bool counts = is_valid[r] && (p_.forced_in_maximum || !row_.is_forced(b));
      if (counts && Traits::kHasBase) best_[0] = fmaxf(best_[0], base[r]);
      if (counts && Traits::kHasUplift) best_[1] = fmaxf(best_[1], uplifted[r]);
    }
    if (is_first) {
      take_reference(base);
      if (Traits::kHasUplift) take_reach();
    }
  }

  __device__ void score_base(const float (&s)[kSelectBlockSize / 2], bool is_first,
                             const bool (&is_valid)[2], const float (&up)[2], float (&base)[2]) {
    float reference[2] = {reference_, reference_};
    float sum[2];
    const float none[2] = {0.f, 0.f};
    if (is_first) largest(s, none, reference);
    make_finite(reference);
    sum_base(s, reference, sum);
    bool is_off = false;  // overflow, or too small where the size of a small sum matters
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool needs_size = up[r] > 0.f || !p_.can_skip;
      is_off |= is_valid[r] && (!(sum[r] < 1e30f) || (sum[r] < 1e-30f && needs_size));
    }
    if (!is_first && __any_sync(~0u, is_off)) {
      largest(s, none, reference);
      make_finite(reference);
      sum_base(s, reference, sum);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      base[r] = is_valid[r] ? reference[r] + ptx::log2_approx(sum[r]) : -INFINITY;
    }
  }

  __device__ void score_uplifted(const float (&s)[kSelectBlockSize / 2], const bool (&is_valid)[2],
                                 const float (&up)[2], const float (&base)[2],
                                 float (&uplifted)[2]) {
    float reference[2];
    bool is_needed = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = base[r] + up[r] * q_norm_max_;
      is_needed |= is_valid[r] && up[r] > 0.f && reference[r] >= reach_;
      if (is_valid[r] && up[r] > 0.f) uplifted[r] = -INFINITY;
    }
    if (!__any_sync(~0u, is_needed)) return;
    // Where ||q|| and the uplift spread so far that the bound is no safe reference: exact maxima.
    if (__any_sync(~0u, fmaxf(up[0], up[1]) * (q_norm_max_ - q_norm_min_) > 80.f)) {
      largest(s, up, reference);
    }
    make_finite(reference);
    float sum[2];
    sum_uplifted(s, up, reference, sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (is_valid[r] && up[r] > 0.f) uplifted[r] = reference[r] + ptx::log2_approx(sum[r]);
    }
  }

  __device__ static void make_finite(float (&reference)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) reference[r] = reference[r] == -INFINITY ? 0.f : reference[r];
  }

  /// The warp's best score of the first tile: what later sums are taken relative to.
  __device__ void take_reference(const float (&base)[2]) {
    const unsigned best = __reduce_max_sync(~0u, ordered_bits(fmaxf(base[0], base[1])));
    reference_ = from_ordered_bits(best);
    if (!(fabsf(reference_) < INFINITY)) reference_ = 0.f;  // no block, or nothing finite
  }
  /// The CTA's best uplifted score of the first tile, and with it what other blocks must reach.
  __device__ void take_reach() {
    const unsigned best = __reduce_max_sync(~0u, ordered_bits(best_[1]));
    if (lane_ == 0) shared_.first_best[warp_] = from_ordered_bits(best);
    __syncthreads();
    if (!p_.can_skip) return;
    constexpr float kRounding = 0.02f;
    reach_ = fmaxf(fmaxf(shared_.first_best[0], shared_.first_best[1]),
                   fmaxf(shared_.first_best[2], shared_.first_best[3])) +
             p_.log2_alpha_rescue - kRounding;
  }

  // Deciding: scores become a bit mask, word k in the place of the scores it was made from.

  __device__ void choose() {
    auto* words = reinterpret_cast<unsigned*>(base_scores());
    const int num_words = row_.q_block / 32 + 1;
    const bool is_judged = num_tiles_ == 0 || is_judged_;
    const bool has_scores = num_tiles_ > 0 && is_judged;
    int num_non_finite = has_scores ? shared_.non_finite : 0;
    if (!is_judged) num_non_finite = row_.q_block;
    if (thread_ == 0 && num_non_finite > 0) {
      atomicAdd(&p_.counters[kNonFinitePairs], static_cast<unsigned long long>(num_non_finite));
    }
    const bool has_budget = p_.budget != nullptr && has_scores;
    if (has_budget) apply_budget();
    const float base_from = from_ordered_bits(shared_.best[0]) + p_.log2_alpha_base;
    const float uplifted_from = from_ordered_bits(shared_.best[1]) + p_.log2_alpha_rescue;
    for (int k = warp_; k < num_words; k += kSelectThreads / 32) {
      const int b = k * 32 + lane_;
      bool keep = b <= row_.q_block && (row_.is_forced(b) || !is_judged);
      if (b < row_.q_block && has_scores && !keep) {
        if (has_budget) {
          keep = __float_as_uint(base_scores()[b]) == kKept;
        } else {
          keep = (Traits::kHasBase && base_scores()[b] >= base_from) ||
                 (Traits::kHasUplift && uplifted_scores()[b] >= uplifted_from);
        }
      }
      const unsigned bits = __ballot_sync(~0u, keep);
      __syncwarp();
      if (lane_ == 0) words[k * 32] = bits;
    }
  }

  /// Turns the scores into keys and marks what the budget keeps: blocks that are not finite, then
  /// the best of the first branch, then the best others of the second.
  __device__ void apply_budget() {
    auto* keys = reinterpret_cast<unsigned*>(base_scores());
    unsigned num_open = 0;  // unforced blocks: finite ones, and 65536 for each other
    for (int b = thread_; b < row_.q_block; b += kSelectThreads) {
      const bool is_forced = row_.is_forced(b);
      const bool is_finite = base_scores()[b] < INFINITY;
      num_open += is_forced ? 0u : is_finite ? 1u : 65536u;
      keys[b] = is_forced ? 0u : is_finite ? score_key(base_scores()[b]) : kKept;
    }
    num_open = __reduce_add_sync(~0u, num_open);
    if (lane_ == 0) atomicAdd(&shared_.num_open, num_open);
    __syncthreads();
    const auto num_finite = static_cast<int>(shared_.num_open & 0xffff);
    const auto num_others = static_cast<int>(shared_.num_open >> 16);
    const int left = p_.budget[row_.q_block] - row_.num_forced() - num_others;
    const int budget = min(max(left, 0), num_finite);
    const int second = Traits::kNumScores == 2
                           ? static_cast<int>(p_.rescue_share * static_cast<double>(budget))
                           : 0;
    keep_best(keys, row_.q_block, budget - second, shared_.list);
    if (second == 0) return;
    auto* other_keys = reinterpret_cast<unsigned*>(uplifted_scores());
    for (int b = thread_; b < row_.q_block; b += kSelectThreads) {
      const bool is_open = keys[b] != 0 && keys[b] != kKept;
      other_keys[b] = is_open ? score_key(uplifted_scores()[b]) : 0u;
    }
    __syncthreads();
    keep_best(other_keys, row_.q_block, second, shared_.list);
    for (int b = thread_; b < row_.q_block; b += kSelectThreads) {
      if (other_keys[b] == kKept) keys[b] = kKept;
    }
    __syncthreads();
  }

  __device__ static unsigned score_key(float score) {
    return min(max(ordered_bits(score), 1u), kKept - 1);
  }

  const SelectMaps& maps_;
  const SelectParams& p_;
  SelectShared<Traits>& shared_;
  const int thread_;
  const int lane_;
  const int warp_;
  const uint64_t tile_descriptor_;
  const uint64_t q_descriptor_;
  uint32_t q_parity_ = 0;
  uint32_t tile_parity_ = 0;

  // The row at hand.
  SelectRow row_;
  const float* radius_ = nullptr;
  PrefixFacts facts_;
  int num_tiles_ = 0;
  int next_ = 0;
  float inverse_spread_ = 0.f;
  float q_norm_min_ = 0.f;
  float q_norm_max_ = 0.f;
  float reference_ = 0.f;
  float reach_ = -INFINITY;
  float best_[2];
  float partial_[2];
  bool is_judged_ = true;  // no logit can leave f32
};

template <typename Traits>
__global__ __launch_bounds__(kSelectThreads, Traits::kHeadDim == 256 ? 2 : 3) void select_kernel(
    const __grid_constant__ SelectMaps maps, const __grid_constant__ SelectParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t raw_shared[];
  const uint32_t misaligned = ptx::shared_address(raw_shared) % ptx::kSwizzleAtomBytes;
  auto& shared = *reinterpret_cast<SelectShared<Traits>*>(
      raw_shared + (misaligned > 0 ? ptx::kSwizzleAtomBytes - misaligned : 0));
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(ptx::shared_address(&shared.q_full), 1);
    for (int i = 0; i < Traits::kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.tile_full[i]), 1);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  Selector<Traits>(maps, params, shared).run();
#endif
}

template <typename Traits>
void launch_select_kernel(const SelectMaps& maps, const SelectParams& params,
                          int num_multiprocessors, cudaStream_t stream) {
  const int scores = Traits::kNumScores * Selector<Traits>::score_stride(params);
  const int bytes = static_cast<int>(sizeof(SelectShared<Traits>) + ptx::kSwizzleAtomBytes) +
                    scores * static_cast<int>(sizeof(float));
  check_cuda(cudaFuncSetAttribute(select_kernel<Traits>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "configuring select_kernel");
  int per_multiprocessor = 0;
  check_cuda(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, select_kernel<Traits>,
                                                    kSelectThreads, static_cast<size_t>(bytes)),
      "sizing select_kernel");
  const auto num_ctas = static_cast<unsigned>(num_multiprocessors * per_multiprocessor);
  select_kernel<Traits>
      <<<num_ctas, kSelectThreads, static_cast<size_t>(bytes), stream>>>(maps, params);
  check_cuda(cudaGetLastError(), "launching select_kernel");
}

/// Two stages of tiles, or one where the scores of a long prompt need the room.
template <int kHeadDim, Branches kBranches>
void launch_select_branches(const SelectMaps& maps, const SelectParams& params,
                            int num_multiprocessors, cudaStream_t stream) {
  if (params.facts.max_blocks <= 1024) {
    launch_select_kernel<SelectTraits<kHeadDim, kBranches, 2>>(maps, params, num_multiprocessors,
                                                               stream);
  } else {
    launch_select_kernel<SelectTraits<kHeadDim, kBranches, 1>>(maps, params, num_multiprocessors,
                                                               stream);
  }
}

}  // namespace fovea::cuda

/// Defines one launcher of select_launch.h.
#define FOVEA_SELECT_INSTANCE(name, kHeadDim)                                                    \
  void fovea::cuda::name(const SelectMaps& maps, const SelectParams& params, Branches branches,  \
                         int num_multiprocessors, cudaStream_t stream) {                         \
    switch (branches) {                                                                          \
      case Branches::kBase:                                                                      \
        return launch_select_branches<kHeadDim, Branches::kBase>(maps, params,                   \
                                                                 num_multiprocessors, stream);   \
      case Branches::kUplift:                                                                    \
        return launch_select_branches<kHeadDim, Branches::kUplift>(maps, params,                 \
                                                                   num_multiprocessors, stream); \
      case Branches::kBoth:                                                                      \
        return launch_select_branches<kHeadDim, Branches::kBoth>(maps, params,                   \
                                                                 num_multiprocessors, stream);   \
    }                                                                                            \
  }
