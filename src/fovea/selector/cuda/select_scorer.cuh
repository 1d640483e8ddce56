// A scoring warpgroup of the selection kernel: scores of the blocks before a query block, and from
// them the mask of those it keeps.
//
// S^T = C Q^T in tiles of 64 blocks (m64 n128): a thread holds two blocks x 32 queries, so that the
// sum over the queries is a sum over its own registers and two shuffles, and a block's log-sum-exp
// is finished on the spot. A score is log2 of a sum over queries of 2^logit. In a tame row, where
// max|q| and the blocks' extent say that no logit is beyond +-100, the powers add up as they are:
// what a step costs is its instructions and the product, and maxima are a fifth of them. Elsewhere
// they are taken relative to the block's own largest logit. Either way a score depends, but for
// rounding, on nothing but the block and the queries.
//
// With thresholds, what cannot reach alpha times the best score so far gets no exponentials: the
// uplifted sum of a block is at most 2^(uplift * max|q|) times its base sum, and a sum over 128
// queries at most 2^7 times its largest term, which a tame row does not know. That is exact, since
// the final best is no smaller; when a warpgroup learns of a new best changes what is skipped, not
// what is kept.
#pragma once

#include "fovea/selector/cuda/select_best.cuh"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/wgmma.h"

namespace fovea::cuda {

template <typename Traits>
class SelectScorer {
 public:
  __device__ SelectScorer(const SelectParams& params, const SelectMemory<Traits>& memory)
      : p_(params),
        memory_(memory),
        shared_(memory.shared()),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32) {}

  __device__ void run() {
    uint32_t parity = 0;
    for (int slot = 0;; slot ^= 1, parity ^= 1) {
      ptx::mbarrier_wait(ptx::shared_address(&shared_.q_full), parity);
      row_ = &shared_.rows[slot];
      totals_ = &shared_.totals[slot];
      if (ptx::uniform(row_->head) < 0) return;
      q_block_ = row_->block.q_block;
      is_judged_ = true;
      if (ptx::uniform(row_->num_tiles) > 0) {
        score_row();
      } else {
        release(&shared_.q_empty);
      }
      ptx::mbarrier_wait(ptx::shared_address(&shared_.mask_empty), parity ^ 1);
      choose();
      release(&shared_.mask_full);
    }
  }

 private:
  /// A sum of powers of 2 relative to the largest so far; each thread of a quad holds a share.
  struct Sum {
    float reference = -INFINITY;
    float sum = 0.f;

    /// Makes the reference at least `top`, the same in the quad, and returns it; 0 for none.
    __device__ float raise(float top) {
      const float raised = fmaxf(reference, top);
      const float finite = raised == -INFINITY ? 0.f : raised;
      sum *= ptx::exp2_approx(reference - finite);
      reference = raised;
      return finite;
    }
    __device__ float log2() const { return reference + ptx::log2_approx(ptx::quad_sum(sum)); }
  };

  using Product = ptx::Wgmma<typename Traits::Element, kSelectQueryRows>;
  static constexpr int kScores = kSelectQueryRows / 2;  // accumulators of this thread

  __device__ static uint64_t uniform_descriptor(const uint8_t* tile) {
    const uint64_t descriptor = ptx::k_major_descriptor(ptx::shared_address(tile));
    constexpr uint64_t kHigh = ptx::k_major_descriptor(0) >> 32 << 32;
    return kHigh | static_cast<uint32_t>(ptx::uniform(static_cast<int>(descriptor)));
  }

  /// The warp is done with what `barrier` guards.
  __device__ void release(uint64_t* barrier) const {
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(barrier));
  }

  // Scoring.

  __device__ void score_row() {
    const int widest = row_->widest;
    const int num_tiles = ptx::uniform(row_->num_tiles);
    const int rows_per_block = p_.facts.rows_per_block;
    const int q_parts = memory_.layout().q_parts;
    measure_queries();
#pragma unroll 1
    for (int n = 0; n < num_tiles; ++n) {
      begin_tile(block_tile_at(n, num_tiles, widest));
#pragma unroll 1
      for (int row = 0; row < rows_per_block; ++row) {
        const TilePlace place(num_tiles_++, memory_.layout().num_stages);
        ptx::mbarrier_wait(ptx::shared_address(&shared_.tile_full[place.stage]), place.parity);
#pragma unroll 1
        for (int part = 0; part < q_parts; ++part) {
          multiply(place.stage, part);
          if (part + 1 == q_parts) {
            release(&shared_.tile_empty[place.stage]);
            if (n + 1 == num_tiles && row + 1 == rows_per_block) release(&shared_.q_empty);
          }
          const int num_queries = row_->block.num_rows - part * kSelectQueryRows;
          if (num_queries < kSelectQueryRows) hide_missing_queries(num_queries);
          score_part(part, row == 0 ? p_.rest_bias_log2 : 0.f);
        }
      }
      finish_tile();
    }
    sync_scorers();  // all scores are there
  }

  /// S^T of a tile with part `part` of the queries.
  __device__ void multiply(int stage, int part) {
    const uint64_t tile = uniform_descriptor(memory_.tile(stage));
    const uint64_t q = uniform_descriptor(memory_.q() + part * Traits::kQBytes);
    ptx::wgmma_fence();
    Product::first(s_, tile, q);
#pragma unroll
    for (int k = 1; k < Traits::kHeadDim / 16; ++k) {
      Product::add(s_, ptx::advance(tile, k / 4 * Traits::kTilePanelBytes + k % 4 * 32),
                   ptx::advance(q, k / 4 * Traits::kQPanelBytes + k % 4 * 32));
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }

  /// Reads this thread's two blocks of a tile; they arrive during the product.
  __device__ void begin_tile(int tile) {
    const BlockSlot* slots = p_.facts.slots + int64_t{row_->group} * p_.facts.max_blocks +
                             tile * kFactTileBlocks + warp_ * 16 + lane_ / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      slots_[r] = slots[8 * r];
      base_[r] = Sum{is_tame_ ? 0.f : -INFINITY, 0.f};
      if constexpr (Traits::kHasUplift) uplifted_[r] = base_[r];
    }
  }

  /// Whether this thread's block `r` lies before the query block and is finite.
  __device__ bool is_valid(int r) const {
    return slots_[r].radius >= 0.f && slots_[r].block < q_block_;
  }

  /// ||q|| of each query; queries that do not exist count as 0. Chunks are read in a rotated order
  /// against bank conflicts.
  __device__ void measure_queries() {
    constexpr int kChunks = Traits::kHeadDim / 8;  // of 16 bytes
    // Norms are not negative, so they order like their bits; NaN lies above everything.
    unsigned most = 0;
    unsigned least = 0x7f800000u;
#pragma unroll 1
    for (int part = 0; part < memory_.layout().q_parts; ++part) {
      const uint8_t* q = memory_.q() + part * Traits::kQBytes + thread_ * ptx::kPanelRowBytes;
      float sum = 0.f;
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        const uint4 bits = *reinterpret_cast<const uint4*>(q + k / 8 * Traits::kQPanelBytes +
                                                           (k + thread_) % 8 * 16);
        const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = ptx::unpack2<typename Traits::Element>(words[j]);
          sum = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, sum));
        }
      }
      const int query = part * kSelectQueryRows + thread_;
      const bool exists = query < row_->block.num_rows;
      const float norm = exists ? sqrtf(sum) : 0.f;
      memory_.q_norm()[query] = norm;
      const unsigned norm_bits = __float_as_uint(norm) & 0x7fffffffu;
      most = max(most, norm_bits);
      if (exists) least = min(least, norm_bits);
    }
    most = __reduce_max_sync(~0u, most);
    least = __reduce_min_sync(~0u, least);
    if (lane_ == 0) {
      shared_.q_norm_range[0][warp_] = __uint_as_float(least);
      shared_.q_norm_range[1][warp_] = __uint_as_float(most);
    }
    sync_scorers();
    const int warp = lane_ % kScorerWarps;
    least = __reduce_min_sync(~0u, __float_as_uint(shared_.q_norm_range[0][warp]));
    most = __reduce_max_sync(~0u, __float_as_uint(shared_.q_norm_range[1][warp]));
    q_norm_min_ = __uint_as_float(least);
    q_norm_max_ = __uint_as_float(most);
    constexpr float kLargestLogit = 1e37f;  // false for NaN
    const float most_product = q_norm_max_ * row_->extent;
    is_judged_ = most_product * fmaxf(1.f, p_.scale) <= kLargestLogit;
    constexpr float kLargestTame = 100.f;  // leaves 2^27 for sums, and for a mean's many keys
    is_tame_ = most_product * fabsf(p_.scale_log2) <= kLargestTame;
  }

  /// How much a unit of ||q|| adds to the logits of this thread's block `r`, in log2: nothing up to
  /// radius low, the whole radius from high on. Without a spread 0 * inf is NaN, which saturates to
  /// 0 as it should.
  __device__ float uplift(int r) const {
    const float radius = slots_[r].radius;
    const float up = fminf(radius, row_->most) *
                     __saturatef((radius - row_->low) * row_->inverse_spread) * p_.scale_log2;
    return is_valid(r) ? up : 0.f;
  }

  /// What a score of branch `x` must reach to matter.
  __device__ float reach(int x, float log2_alpha) const {
    const unsigned best = *static_cast<volatile unsigned*>(&totals_->best[x]);
    return best == 0 ? -INFINITY : from_ordered_bits(best) + log2_alpha - p_.skip_slack;
  }

  /// Adds the accumulators, one product's worth of queries and keys, to the sums of this thread's
  /// blocks.
  __device__ void score_part(int part, float bias) {
    if (is_tame_) {
      score_tame_part(part, bias);
    } else {
      score_wild_part(part, bias);
    }
  }

  /// Where no power of 2 can leave f32, nor a sum of them, they are added up as they are.
  __device__ void score_tame_part(int part, float bias) {
    float sum[2][2] = {};
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int j = i + 2 * r; j < i + 2 * r + 2; ++j) {
          s_[j] = ptx::exp2_approx(fmaf(s_[j], p_.scale_log2, bias));
          sum[r][j % 2] += s_[j];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) base_[r].sum += sum[r][0] + sum[r][1];
    if constexpr (Traits::kHasUplift) add_tame_uplifted(part);
  }

  /// Whether there is an uplift on a block of this warp that can take it to a threshold.
  __device__ bool uplift_can_matter(const float (&up)[2]) const {
    bool any = up[0] > 0.f || up[1] > 0.f;
    if (p_.can_skip) {
      const float needed = reach(1, p_.log2_alpha_rescue);
      any = false;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float most = base_[r].log2() + up[r] * q_norm_max_;  // by the whole warp
        any |= up[r] > 0.f && most >= needed;
      }
    }
    return __any_sync(~0u, any);
  }

  /// The same sums of what the powers in `s_` become with the uplift times ||q|| on top of each
  /// logit, where that is more and can matter. With it no logit is beyond the row's extent either.
  __device__ void add_tame_uplifted(int part) {
    const float up[2] = {uplift(0), uplift(1)};
    if (!uplift_can_matter(up)) return;
    const float2* norms = norms_of(part);
    float sum[2][2] = {};
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 q = norms[4 * j];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = s_[4 * j + 2 * r];
        const float y = s_[4 * j + 2 * r + 1];
        sum[r][0] = fmaf(x, ptx::exp2_approx(q.x * up[r]), sum[r][0]);
        sum[r][1] = fmaf(y, ptx::exp2_approx(q.y * up[r]), sum[r][1]);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) uplifted_[r].sum += sum[r][0] + sum[r][1];
  }

  /// ||q|| of this thread's pairs of queries, 4 pairs apart.
  __device__ const float2* norms_of(int part) const {
    return reinterpret_cast<const float2*>(memory_.q_norm() + part * kSelectQueryRows) + lane_ % 4;
  }

  /// Anything goes: powers of 2 relative to each block's largest logit.
  __device__ void score_wild_part(int part, float bias) {
    float top[2];
    find_largest(top, bias);
    if (p_.can_skip && !can_matter(top)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float offset = base_[r].raise(top[r]) - bias;
      float sum[4] = {};
#pragma unroll
      for (int i = 2 * r; i < kScores; i += 4) {
        sum[i / 4 % 2] += ptx::exp2_approx(fmaf(s_[i], p_.scale_log2, -offset));
        sum[2 + i / 4 % 2] += ptx::exp2_approx(fmaf(s_[i + 1], p_.scale_log2, -offset));
      }
      base_[r].sum += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    if constexpr (Traits::kHasUplift) add_uplifted(part, top);
  }

  /// The largest logit of each of this thread's blocks, all of the quad; log2, with `bias`.
  __device__ void find_largest(float (&top)[2], float bias) const {
    float largest[2][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r][0] = fmaxf(s_[2 * r], s_[2 * r + 1]);
      largest[r][1] = fmaxf(s_[2 * r + 4], s_[2 * r + 5]);
    }
#pragma unroll
    for (int i = 8; i < kScores; i += 4) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& own = largest[r][i / 4 % 2];
        own = fmaxf(own, fmaxf(s_[i + 2 * r], s_[i + 2 * r + 1]));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = fmaxf(largest[r][0], largest[r][1]);
#pragma unroll
    for (int o = 1; o <= 2; ++o) {
#pragma unroll
      for (int r = 0; r < 2; ++r) top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], o));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = fmaf(top[r], p_.scale_log2, bias);
  }

  /// Whether a block of this warp can reach a threshold, given its largest logit.
  __device__ bool can_matter(const float (&top)[2]) const {
    constexpr float kLog2Queries = 7.f;
    const float base_reach =
        Traits::kHasUplift && p_.is_bound ? INFINITY : reach(0, p_.log2_alpha_base);
    const float uplifted_reach = Traits::kHasUplift ? reach(1, p_.log2_alpha_rescue) : INFINITY;
    bool any = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float most = top[r] + kLog2Queries;
      any |= is_valid(r) && most >= base_reach;
      if constexpr (Traits::kHasUplift) {
        any |= is_valid(r) && most + uplift(r) * q_norm_max_ >= uplifted_reach;
      }
    }
    return __any_sync(~0u, any);
  }

  __device__ void hide_missing_queries(int num_queries) {
    const int first = num_queries - ptx::lane_number() % 4 * 2;  // costs no registers elsewhere
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      if (i / 4 * 8 + i % 2 >= first) s_[i] = -INFINITY;
    }
  }

  /// The same sums with the uplift times ||q|| on top of each logit, where that is more and can
  /// matter.
  __device__ void add_uplifted(int part, const float (&top)[2]) {
    const float up[2] = {uplift(0), uplift(1)};
    if (!uplift_can_matter(up)) return;
    const float2* norms = norms_of(part);
    float most[2] = {top[0] + up[0] * q_norm_max_, top[1] + up[1] * q_norm_max_};
    // Where ||q|| and the uplift spread so far that this is no safe reference: exact maxima.
    constexpr float kSafeSpread = 80.f;
    if (__any_sync(~0u, fmaxf(up[0], up[1]) * (q_norm_max_ - q_norm_min_) > kSafeSpread)) {
      find_largest_uplifted(norms, up, most);
    }
    const float offset[2] = {uplifted_[0].raise(most[0]), uplifted_[1].raise(most[1])};
    float sum[2][2] = {};
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 q = norms[4 * j];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = fmaf(s_[4 * j + 2 * r], p_.scale_log2, -offset[r]);
        const float y = fmaf(s_[4 * j + 2 * r + 1], p_.scale_log2, -offset[r]);
        sum[r][0] += ptx::exp2_approx(fmaf(q.x, up[r], x));
        sum[r][1] += ptx::exp2_approx(fmaf(q.y, up[r], y));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) uplifted_[r].sum += sum[r][0] + sum[r][1];
  }

  __device__ void find_largest_uplifted(const float2* norms, const float (&up)[2],
                                        float (&top)[2]) const {
    top[0] = top[1] = -INFINITY;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
      const float2 q = norms[4 * j];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], fmaxf(fmaf(q.x, up[r], s_[4 * j + 2 * r] * p_.scale_log2),
                                     fmaf(q.y, up[r], s_[4 * j + 2 * r + 1] * p_.scale_log2)));
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) top[r] = ptx::quad_max(top[r]);
  }

  /// The tile's sums are complete. A block that is not finite is kept, whatever the threshold: it
  /// scores +inf, as no other can.
  __device__ void finish_tile() {
    float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = base_[r].log2();
      const bool is_stored = lane_ % 4 == 0 && slots_[r].block < q_block_;
      const bool counts =
          is_valid(r) && (p_.forced_in_maximum || !row_->is_forced(slots_[r].block));
      if (is_stored) memory_.base_scores()[slots_[r].block] = is_valid(r) ? base : INFINITY;
      if (counts) best[0] = fmaxf(best[0], base);
      if constexpr (Traits::kHasUplift) {       // without uplift the branches agree
        const float sum = uplifted_[r].log2();  // by the whole warp
        const float uplifted = uplift(r) > 0.f ? sum : base;
        if (is_stored) {
          memory_.uplifted_scores()[slots_[r].block] = is_valid(r) ? uplifted : INFINITY;
        }
        if (counts) best[1] = fmaxf(best[1], uplifted);
      }
    }
    if (p_.budget == nullptr) tell_best(best);
  }

  /// Raises the row's best scores to those of this warp.
  __device__ void tell_best(const float (&best)[2]) const {
#pragma unroll
    for (int x = 0; x < Traits::kNumScores; ++x) {
      const unsigned bits = __reduce_max_sync(~0u, ordered_bits(best[x]));
      if (lane_ == 0) atomicMax(&totals_->best[x], bits);
    }
  }

  // Deciding. Warp w owns words w, w + kScorerWarps ... of the mask.

  __device__ void choose() {
    const bool has_scores = row_->num_tiles > 0 && is_judged_;
    const bool has_budget = p_.budget != nullptr && has_scores;
    const bool has_base = !(Traits::kHasUplift && p_.is_bound);
    // What a score must reach; no finite one reaches infinity.
    const auto threshold = [&](int x, bool exists, float log2_alpha) {
      const unsigned best = totals_->best[x];
      return exists && best != 0 && !has_budget ? from_ordered_bits(best) + log2_alpha : INFINITY;
    };
    const float base_from = threshold(0, has_base, p_.log2_alpha_base);
    const float uplifted_from = threshold(1, Traits::kHasUplift, p_.log2_alpha_rescue);
    const int sink_end = row_->block.sink_end;
    const int local_begin = row_->block.local_begin;
    const int num_scored = has_scores ? q_block_ : 0;
    const int num_words = q_block_ / 32 + 1;
    unsigned num_open = 0;
    unsigned num_non_finite = 0;            // all
    unsigned num_kept = 0;                  // unforced
    float least[2] = {INFINITY, INFINITY};  // of the open ones, as is `best`
    float best[2] = {-INFINITY, -INFINITY};
    // Several words side by side and no branches, so that their latencies overlap.
    constexpr int kSideBySide = 4;
#pragma unroll 1
    for (int first = warp_; first < num_words; first += kSideBySide * kScorerWarps) {
      float scores[kSideBySide][2];
#pragma unroll
      for (int i = 0; i < kSideBySide; ++i) {
        const int b = min((first + i * kScorerWarps) * 32 + lane_, q_block_);
        scores[i][0] = memory_.base_scores()[b];
        scores[i][1] = memory_.uplifted_scores()[b];
      }
#pragma unroll
      for (int i = 0; i < kSideBySide; ++i) {
        const int k = first + i * kScorerWarps;
        const int b = k * 32 + lane_;
        const bool is_forced = (b <= q_block_) & ((b < sink_end) | (b >= local_begin));
        const bool is_non_finite = (b < num_scored) & !(scores[i][0] < INFINITY);
        const bool is_open = (b < num_scored) & !is_forced & !is_non_finite;
        num_non_finite += is_non_finite;
        num_kept += is_non_finite & !is_forced;
        num_open += is_open;
#pragma unroll
        for (int x = 0; x < Traits::kNumScores; ++x) {
          least[x] = fminf(least[x], is_open ? scores[i][x] : INFINITY);
          best[x] = fmaxf(best[x], is_open ? scores[i][x] : -INFINITY);
        }
        const bool reaches = (scores[i][0] >= base_from) | (scores[i][1] >= uplifted_from);
        const bool keep =
            is_forced | is_non_finite | (is_open & reaches) | ((b <= q_block_) & !is_judged_);
        const unsigned bits = __ballot_sync(~0u, keep);
        if (lane_ == 0 && k < num_words) memory_.mask()[k] = bits;
      }
    }
    __syncwarp();
    if (has_scores) {
      num_non_finite = __reduce_add_sync(~0u, num_non_finite);
    } else {
      num_non_finite = warp_ == 0 && !is_judged_ ? static_cast<unsigned>(q_block_) : 0u;
    }
    if (lane_ == 0 && num_non_finite > 0) {
      atomicAdd(&p_.counters[kNonFinitePairs], static_cast<unsigned long long>(num_non_finite));
    }
    if (!has_budget) return;
    num_open = __reduce_add_sync(~0u, num_open);
    num_kept = __reduce_add_sync(~0u, num_kept);
    tell_best(best);
    const unsigned least_base = __reduce_min_sync(~0u, ordered_bits(least[0]));
    const unsigned least_uplifted = __reduce_min_sync(~0u, ordered_bits(least[1]));
    if (lane_ == 0) {
      atomicAdd(&totals_->num_open, num_open);
      atomicAdd(&totals_->num_kept, num_kept);
      atomicMin(&totals_->least[0], least_base);
      atomicMin(&totals_->least[1], least_uplifted);
    }
    sync_scorers();
    spend_budget();
  }

  /// Keeps the best of the first branch, then the best others of the second.
  __device__ void spend_budget() {
    const int left = p_.budget[q_block_] - row_->num_forced() - static_cast<int>(totals_->num_kept);
    const int budget = min(max(left, 0), static_cast<int>(totals_->num_open));
    const bool has_base = !(Traits::kHasUplift && p_.is_bound);
    int second = 0;
    if (Traits::kHasUplift) {
      second = has_base ? static_cast<int>(p_.rescue_share * static_cast<double>(budget)) : budget;
    }
    const auto best_of = [&](int x, const float* scores) {
      return BestOf(scores, memory_.mask(), q_block_, from_ordered_bits(totals_->best[x]),
                    from_ordered_bits(totals_->least[x]), shared_.best);
    };
    best_of(0, memory_.base_scores()).keep(budget - second);
    if (Traits::kHasUplift) best_of(1, memory_.uplifted_scores()).keep(second);
  }

  const SelectParams& p_;
  const SelectMemory<Traits>& memory_;
  SelectShared& shared_;
  const int thread_;
  const int lane_;
  const int warp_;
  int num_tiles_ = 0;  // done

  // The row at hand.
  const SelectRow* row_ = nullptr;
  RowTotals* totals_ = nullptr;
  int q_block_ = 0;
  float q_norm_min_ = 0.f;
  float q_norm_max_ = 0.f;
  bool is_judged_ = true;  // no logit can leave f32
  bool is_tame_ = false;   // no logit is beyond +-100, in log2

  // This thread's two blocks of the tile at hand. What follows from them is computed again each
  // time: beside the accumulators, registers decide how many exponentials are under way at once.
  BlockSlot slots_[2];
  Sum base_[2];
  Sum uplifted_[2];
  float s_[kScores];
};

}  // namespace fovea::cuda
