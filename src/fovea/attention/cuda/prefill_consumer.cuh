// A consumer warpgroup of the prefill kernel: products, softmax and output of 64 query rows.
#pragma once

#include "fovea/attention/cuda/prefill_shared.cuh"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/tma.h"
#include "fovea/tensor/cuda/ptx/wgmma.h"

namespace fovea::cuda {

/// Named barriers of the CTA; 0 is __syncthreads.
constexpr int kTurnBarrier = 1;    // + warpgroup: it is this one's turn to issue products
constexpr int kStageBarrier = 3;   // + warpgroup: its O is staged
constexpr int kValuesBarrier = 5;  // both have read V, or have cleared what is not finite in it

/// Softmax state of this thread's two rows, in units of raw logits.
struct RowState {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.f, 0.f};  // over this thread's columns
};

template <typename Traits>
class PrefillConsumer {
 public:
  __device__ PrefillConsumer(const PrefillMaps& maps, const PrefillParams& params,
                             PrefillShared<Traits>& shared, int warpgroup)
      : maps_(maps),
        params_(params),
        shared_(shared),
        warpgroup_(warpgroup),
        thread_(static_cast<int>(threadIdx.x) % 128),
        tile_row_(warpgroup * kConsumerRows + thread_ / 32 * 16 + thread_ % 32 / 4) {
    q_descriptor_ = ptx::k_major_descriptor(ptx::shared_address(shared.q) +
                                            warpgroup * kConsumerRows * ptx::kPanelRowBytes);
    k_descriptor_ = ptx::k_major_descriptor(ptx::shared_address(shared.k));
    v_descriptor_ = ptx::mn_major_descriptor(ptx::shared_address(shared.v), Traits::kKvPanelBytes);
  }

  __device__ void run() {
    if (warpgroup_ == 1) ptx::named_barrier_arrive(kTurnBarrier, 256);
    if constexpr (Traits::kQSlots == 1) {
      run_row_by_row();
    } else {
      run_as_a_stream();
    }
    if (thread_ == 0) ptx::tma_store_wait_read();
  }

 private:
  using Element = typename Traits::Element;
  using QkProduct = ptx::Wgmma<Element, Traits::kKvTileRows>;
  using PvProduct = ptx::Wgmma<Element, Traits::kHeadDim>;
  static constexpr int kScores = Traits::kKvTileRows / 2;  // accumulators of S in this thread
  static constexpr int kOutputs = Traits::kHeadDim / 2;    // and of O
  static constexpr float kLazyLog2 = 8.f;
  static constexpr float kLn2 = 0.693147180559945f;
  static constexpr float kLog2E = 1.44269504088896f;

  /// With one Q slot a row is finished before the next one's Q can come.
  __device__ void run_row_by_row() {
    for (;;) {
      const RowInfo row = wait_row();
      if (row.head < 0) return;
      state_ = RowState();
      clear_output();
      first_tile(row);
      walk_row(row, -1);
      last_product();
      finish_row(row, q_slot_.index, state_);
      release_q(q_slot_.index);
      q_slot_.advance();
    }
  }

  __device__ void run_as_a_stream() {
    clear_output();
    RowInfo row = wait_row();
    if (row.head < 0) return;
    int stored_slot = -1;  // Q slot from which a store may still be reading
    first_tile(row);
    for (;;) {
      walk_row(row, stored_slot);
      if (row.walk.num_tiles == 1) release_q(stored_slot);
      const RowInfo done = row;
      const int done_slot = q_slot_.index;
      q_slot_.advance();
      row = wait_row();
      if (row.head < 0) {
        last_product();
        finish_row(done, done_slot, state_);
        return;
      }
      next_row(row, done, done_slot);
      stored_slot = done_slot;
    }
  }

  /// Waits for the next row and its Q.
  __device__ RowInfo wait_row() const {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.q_full[q_slot_.index]), q_slot_.parity);
    return shared_.rows[q_slot_.index];
  }

  __device__ void clear_output() {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o_[i] = 0.f;
  }

  // Products, issued but not waited for.

  __device__ void issue_qk() {
    const uint64_t q = ptx::advance(q_descriptor_, q_slot_.index * Traits::kQBytes);
    const uint64_t k = ptx::advance(k_descriptor_, k_stage_.index * Traits::kKvBytes);
    ptx::wgmma_fence();
    QkProduct::first(s_, q, k);
#pragma unroll
    for (int i = 1; i < Traits::kHeadDim / 16; ++i) {
      QkProduct::add(s_, ptx::advance(q, i / 4 * Traits::kQPanelBytes + i % 4 * 32),
                     ptx::advance(k, i / 4 * Traits::kKvPanelBytes + i % 4 * 32));
    }
    ptx::wgmma_commit();
  }

  __device__ void issue_pv() {
    const uint64_t v = ptx::advance(v_descriptor_, v_stage_.index * Traits::kKvBytes);
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[v_stage_.index]), v_stage_.parity);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < Traits::kKvTileRows / 16; ++i) {
      PvProduct::add_rs(o_, p_ + 4 * i, ptx::advance(v, i * 16 * ptx::kPanelRowBytes));
    }
    ptx::wgmma_commit();
  }

  // Buffers.

  /// Waits for the next K tile and returns its number.
  __device__ int wait_k() {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.k_full[k_stage_.index]), k_stage_.parity);
    return shared_.k_tiles[k_stage_.index];
  }
  __device__ void release_k() {
    if (thread_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.k_empty[k_stage_.index]));
    k_stage_.advance();
  }
  __device__ void release_v() {
    if (thread_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.v_empty[v_stage_.index]));
    v_stage_.advance();
  }
  /// Hands a Q slot back once the store of O has read it; nothing when slot < 0.
  __device__ void release_q(int slot) {
    if (slot >= 0 && thread_ == 0) {
      ptx::tma_store_wait_read();
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.q_empty[slot]));
    }
  }

  // Steps of the stream.

  /// A row's first tile with nothing else in flight.
  __device__ void first_tile(const RowInfo& row) {
    const int tile = wait_k();
    ptx::named_barrier_sync(kStageBarrier + warpgroup_, 128);  // all have read the tile's number
    issue_qk();
    ptx::wgmma_wait<0>();
    release_k();
    if (row.walk.is_masked(0)) mask(row, tile);
    softmax();
    pack();
    if (row.walk.is_masked(0)) settle_values(row, tile);
  }

  /// The rest of a row's tiles. Those that need a mask, and the first, whose turn it is to hand
  /// back the previous row's Q, take the checked form: two branches in the hot loop cost 3 %.
  __device__ void walk_row(const RowInfo& row, int stored_slot) {
    const int num_tiles = row.walk.num_tiles;
    const int end_plain = num_tiles - row.walk.num_masked_last;
    int step = 1;
#pragma unroll 1
    while (step < num_tiles) {
      if (step == 1 || step < row.walk.num_masked_first || step >= end_plain) {
        next_tile<true>(row, row.walk.is_masked(step), step == 1 ? stored_slot : -1);
        ++step;
      } else {
#pragma unroll 1
        for (; step < end_plain; ++step) next_tile<false>(row, false, -1);
      }
    }
  }

  /// S = Q K_next^T runs beside O += P V, the softmax of S beside the rest of it.
  template <bool kChecked>
  __device__ void next_tile(const RowInfo& row, bool is_masked, int stored_slot) {
    const int tile = wait_k();
    ptx::named_barrier_sync(kTurnBarrier + warpgroup_, 256);
    issue_qk();
    issue_pv();
    ptx::named_barrier_arrive(kTurnBarrier + (warpgroup_ ^ 1), 256);
    if (kChecked) release_q(stored_slot);  // by now the store of the previous row has read its Q
    ptx::wgmma_wait<1>();
    release_k();
    if (kChecked && is_masked) mask(row, tile);
    softmax();
    ptx::hold_wait(ptx::shared_address(&shared_.v_loaded), state_.sum[0] + state_.sum[1]);
    ptx::wgmma_wait<0>();
    release_v();
    pack();
    if (__any_sync(~0u, rescale_[0] != 1.f || rescale_[1] != 1.f)) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) o_[i] *= rescale_[i / 2 % 2];
    }
    if (kChecked && is_masked) settle_values(row, tile);
  }

  /// The first tile of `row` beside the last product of the row before it.
  __device__ void next_row(const RowInfo& row, const RowInfo& done, int done_slot) {
    const int tile = wait_k();
    ptx::named_barrier_sync(kTurnBarrier + warpgroup_, 256);
    issue_qk();
    issue_pv();
    ptx::named_barrier_arrive(kTurnBarrier + (warpgroup_ ^ 1), 256);
    ptx::wgmma_wait<1>();
    release_k();
    const RowState done_state = state_;
    state_ = RowState();
    if (row.walk.is_masked(0)) mask(row, tile);
    softmax();
    ptx::hold_wait(ptx::shared_address(&shared_.v_loaded), state_.sum[0] + state_.sum[1]);
    ptx::wgmma_wait<0>();
    release_v();
    pack();
    finish_row(done, done_slot, done_state);
    clear_output();
    if (row.walk.is_masked(0)) settle_values(row, tile);
  }

  __device__ void last_product() {
    issue_pv();
    ptx::wgmma_wait<0>();
    release_v();
  }

  /// Position of this thread's first row; the other is 8 further on. Split: of the only one.
  __device__ int this_position(const RowInfo& row) const {
    return Traits::kIsSplit ? row.q_tile : row.q_tile * kQTileRows + tile_row_;
  }

  // NaN and Inf in V.

  /// Before the P V of a masked tile, with nothing in flight: hidden keys have weight 0, and 0 x
  /// NaN would reach the rows that do not see it.
  __device__ void settle_values(const RowInfo& row, int tile) {
    if constexpr (Traits::kIsSplit) return;  // a piece is one row: inspect_values() sees to it
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[v_stage_.index]), v_stage_.parity);
    if (shared_.has_non_finite[v_stage_.index] == 0) return;
    const uint32_t v = ptx::shared_address(shared_.v[v_stage_.index]);
    add_non_finite(row, tile, v + thread_ % 4 * 4);
    ptx::named_barrier_sync(kValuesBarrier, 256);
    clear_non_finite(v);
    ptx::async_proxy_fence();
    ptx::named_barrier_sync(kValuesBarrier, 256);
  }

  /// Adds every NaN or Inf in V to the rows that see it: whatever its weight, it is their result.
  __device__ void add_non_finite(const RowInfo& row, int tile, uint32_t v) {
#pragma unroll 1
    for (int key = 0; key < Traits::kKvTileRows; ++key) {
      const int position = this_position(row);
      const bool is_seen[2] = {sees(row, position, tile, key), sees(row, position + 8, tile, key)};
#pragma unroll
      for (int chunk = 0; chunk < 8; ++chunk) {
        const uint32_t at = v + key * ptx::kPanelRowBytes + ((chunk ^ key % 8) << 4);
#pragma unroll
        for (int panel = 0; panel < Traits::kPanels; ++panel) {
          const float2 pair =
              ptx::unpack2<Element>(ptx::load_shared(at + panel * Traits::kKvPanelBytes));
          const float values[2] = {pair.x, pair.y};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (is_seen[i / 2] && !isfinite(values[i % 2])) {
              o_[4 * (8 * panel + chunk) + i] += values[i % 2];
            }
          }
        }
      }
    }
  }

  __device__ void clear_non_finite(uint32_t v) {
#pragma unroll 1
    for (uint32_t at = 4 * (warpgroup_ * 128 + thread_); at < Traits::kKvBytes; at += 4 * 256) {
      const float2 pair = ptx::unpack2<Element>(ptx::load_shared(v + at));
      ptx::store_shared(v + at, ptx::pack2<Element>(isfinite(pair.x) ? pair.x : 0.f,
                                                    isfinite(pair.y) ? pair.y : 0.f));
    }
  }

  /// Whether the row at `position` sees row `at` of a tile.
  __device__ bool sees(const RowInfo& row, int position, int tile, int at) const {
    const int first_key = params_.window_left >= 0 ? position - params_.window_left : 0;
    if (is_mean_tile(tile)) {
      const int block = mean_tile_number(tile) * Traits::kKvTileRows + at;
      const uint32_t hidden = shared_.hidden_means(q_slot_.index, params_)[block / 32];
      return (hidden >> block % 32 & 1) == 0 && block * params_.block_size >= first_key;
    }
    const int key = tile * Traits::kKvTileRows + at;
    return key < row.kv_len && (!params_.causal || key <= position) && key >= first_key;
  }

  // Arithmetic on this thread's accumulators: s_[4 * j + 2 * r + e] is row tile_row_ + 8 * r of the
  // query tile and column 8 * j + 2 * (thread_ % 4) + e of the KV tile; o_ likewise.

  /// Hides the keys that a row may not see.
  __device__ void mask(const RowInfo& row, int tile) {
    if (!Traits::kIsSplit && is_mean_tile(tile)) return mask_means(row, mean_tile_number(tile));
    const int first_key = tile * Traits::kKvTileRows + thread_ % 4 * 2;
    const int first_position = this_position(row);
    int low[2];  // visible accumulator columns: [low, high)
    int high[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = first_position + (Traits::kIsSplit ? 0 : 8 * r);
      const int end = params_.causal ? min(position + 1, row.kv_len) : row.kv_len;
      high[r] = end - first_key;
      low[r] = params_.window_left >= 0 ? position - params_.window_left - first_key : -first_key;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int column = i / 4 * 8 + i % 2;
      const int r = i / 2 % 2;
      if (column < low[r] || column >= high[r]) s_[i] = -INFINITY;
    }
  }

  /// Hides the means of blocks that are listed, that come too late or that the window cuts, and
  /// gives the others the weight of their tokens.
  __device__ void mask_means(const RowInfo& row, int mean_tile) {
    const int first_block = mean_tile * Traits::kKvTileRows;
    const uint32_t* hidden = shared_.hidden_means(q_slot_.index, params_) + first_block / 32;
    const int first_position = this_position(row);
    int low[2];  // first column that the window covers whole
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int first_key = first_position + 8 * r - params_.window_left;
      const bool is_cut = params_.window_left >= 0 && first_key > 0;
      low[r] = (is_cut ? (first_key + params_.block_size - 1) / params_.block_size : 0) -
               first_block - thread_ % 4 * 2;
    }
#pragma unroll
    for (int word = 0; word < Traits::kKvTileRows / 32; ++word) {
      const uint32_t bits = hidden[word] >> thread_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int column = i / 4 * 8 + i % 2;
        const bool is_hidden = (bits >> column & 1) != 0 || word * 32 + column < low[i / 2 % 2];
        float& s = s_[16 * word + i];
        s = is_hidden ? -INFINITY : s + params_.mean_bias;
      }
    }
  }

  /// Turns s_ from logits into probabilities relative to the running maximum; sets rescale_.
  __device__ void softmax() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = state_.max[r];
#pragma unroll
      for (int i = 2 * r; i < kScores; i += 4) top = fmaxf(top, fmaxf(s_[i], s_[i + 1]));
      top = ptx::quad_max(top);
      // One product of the difference: two rounded ones would make it fire by rounding. The form of
      // the comparison keeps a maximum of -inf (nothing seen yet) when nothing is seen now.
      if (!((top - state_.max[r]) * params_.scale_log2 > kLazyLog2)) top = state_.max[r];
      rescale_[r] =
          top == state_.max[r] ? 1.f : ptx::exp2_approx((state_.max[r] - top) * params_.scale_log2);
      state_.max[r] = top;
      const float offset = top == -INFINITY ? 0.f : top * params_.scale_log2;
      float sum = state_.sum[r] * rescale_[r];
#pragma unroll
      for (int i = 2 * r; i < kScores; i += 4) {
        s_[i] = ptx::exp2_approx(fmaf(s_[i], params_.scale_log2, -offset));
        s_[i + 1] = ptx::exp2_approx(fmaf(s_[i + 1], params_.scale_log2, -offset));
        sum += s_[i] + s_[i + 1];
      }
      state_.sum[r] = sum;
    }
  }

  __device__ void pack() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      p_[i] = ptx::pack2<Element>(s_[2 * i], s_[2 * i + 1]);
    }
  }

  /// Divides O by its sum and writes it and the lse.
  __device__ void finish_row(const RowInfo& row, int slot, const RowState& state) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = ptx::quad_sum(state.sum[r]);
      float max_log2 = state.max[r] * params_.scale_log2;
      factor[r] = 1.f;
      if (params_.sinks != nullptr) {
        const float sink = params_.sinks[row.head * params_.sinks_stride] * kLog2E;
        const float top = fmaxf(max_log2, sink);
        factor[r] = max_log2 == -INFINITY ? 0.f : ptx::exp2_approx(max_log2 - top);
        sum = sum * factor[r] + (sink == -INFINITY ? 0.f : ptx::exp2_approx(sink - top));
        max_log2 = top;
      }
      factor[r] = sum == 0.f ? 0.f : factor[r] / sum;
      const int at = tile_row_ + 8 * r;
      if (thread_ % 4 == 0 && at >= row.valid_begin && at < row.valid_end) {
        store_lse(row, at, sum == 0.f ? -INFINITY : max_log2 * kLn2 + __logf(sum));
      }
    }
    const int first = warpgroup_ * kConsumerRows;
    if constexpr (Traits::kIsSplit) {
      store_partial(row, factor);
    } else if (first >= row.valid_begin && first + kConsumerRows <= row.valid_end) {
      store_through_shared(row, slot, factor);
    } else {
      store_rows(row, factor);
    }
  }

  __device__ void store_lse(const RowInfo& row, int at, float lse) {
    if constexpr (Traits::kIsSplit) {
      params_.partial_lse[int64_t{row.first_row} * params_.group_size + at] = lse;
    } else if (params_.lse != nullptr) {
      const int64_t q_row = row.first_row + at;
      params_.lse[row.head * params_.lse_head_stride + q_row * params_.lse_row_stride] = lse;
    }
  }

  /// A piece's O in f32, one row per head of the group.
  __device__ void store_partial(const RowInfo& row, const float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = tile_row_ + 8 * r;
      if (at >= row.valid_end) continue;
      float* out = params_.partial_out +
                   (int64_t{row.first_row} * params_.group_size + at) * Traits::kHeadDim +
                   thread_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < Traits::kHeadDim / 8; ++j) {
        *reinterpret_cast<float2*>(out + 8 * j) =
            float2{o_[4 * j + 2 * r] * factor[r], o_[4 * j + 2 * r + 1] * factor[r]};
      }
    }
  }

  /// O -> this warpgroup's 64 rows of the row's Q buffer -> global memory.
  __device__ void store_through_shared(const RowInfo& row, int slot, const float (&factor)[2]) {
    const int row_in_atom = tile_row_ % 8;
    const uint32_t q = ptx::shared_address(shared_.q[slot]);
    const uint32_t base = q + tile_row_ * ptx::kPanelRowBytes + thread_ % 4 * 4;
#pragma unroll
    for (int j = 0; j < Traits::kHeadDim / 8; ++j) {
      const uint32_t at = base + j / 8 * Traits::kQPanelBytes + ((j % 8 ^ row_in_atom) << 4);
      ptx::store_shared(at, ptx::pack2<Element>(o_[4 * j] * factor[0], o_[4 * j + 1] * factor[0]));
      ptx::store_shared(at + ptx::kSwizzleAtomBytes,
                        ptx::pack2<Element>(o_[4 * j + 2] * factor[1], o_[4 * j + 3] * factor[1]));
    }
    ptx::async_proxy_fence();
    ptx::named_barrier_sync(kStageBarrier + warpgroup_, 128);
    if (thread_ == 0) {
      const int first = warpgroup_ * kConsumerRows;
      for (int panel = 0; panel < Traits::kPanels; ++panel) {
        ptx::tma_store(&maps_.out, q + panel * Traits::kQPanelBytes + first * ptx::kPanelRowBytes,
                       {panel * 64, row.first_row + first, row.head, 0}, ptx::evict_first_policy());
      }
      ptx::tma_store_commit();
    }
  }

  /// The same row by row, for tiles that hold rows of other sequences.
  __device__ void store_rows(const RowInfo& row, const float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = tile_row_ + 8 * r;
      if (at < row.valid_begin || at >= row.valid_end) continue;
      const int64_t q_row = row.first_row + at;
      auto* out = static_cast<Element*>(params_.out) + q_row * params_.out_row_stride +
                  row.head * params_.out_head_stride + thread_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < Traits::kHeadDim / 8; ++j) {
        *reinterpret_cast<uint32_t*>(out + 8 * j) =
            ptx::pack2<Element>(o_[4 * j + 2 * r] * factor[r], o_[4 * j + 2 * r + 1] * factor[r]);
      }
    }
  }

  const PrefillMaps& maps_;
  const PrefillParams& params_;
  PrefillShared<Traits>& shared_;
  const int warpgroup_;
  const int thread_;    // in the warpgroup
  const int tile_row_;  // of the query tile: this thread's first row, the other is 8 further on
  uint64_t q_descriptor_;
  uint64_t k_descriptor_;
  uint64_t v_descriptor_;
  RingPosition<Traits::kQSlots> q_slot_;
  RingPosition<Traits::kStages> k_stage_;
  RingPosition<Traits::kStages> v_stage_;
  RowState state_;
  float rescale_[2];
  float s_[kScores];
  float o_[kOutputs];
  uint32_t p_[kScores / 2];
};

}  // namespace fovea::cuda
