// A consumer warpgroup of the prefill kernel: products, softmax and output of 64 query rows.
#pragma once

#include "fovea/attention/cuda/prefill_catch_up.cuh"
#include "fovea/attention/cuda/prefill_math.cuh"
#include "fovea/attention/cuda/prefill_math_f8.cuh"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

/// Named barriers of the CTA; 0 is __syncthreads.
constexpr int kTurnBarrier = 1;    // + warpgroup: it is this one's turn to issue products
constexpr int kStageBarrier = 3;   // + warpgroup: all of it is here
constexpr int kValuesBarrier = 5;  // both have read V, or have cleared what is not finite in it

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
        math_(params) {
    q_descriptor_ = ptx::k_major_descriptor(ptx::shared_address(shared.q) +
                                            warpgroup * kConsumerRows * ptx::kPanelRowBytes);
    k_descriptor_ = ptx::k_major_descriptor(ptx::shared_address(shared.k));
    v_descriptor_ = Math::v_descriptor(ptx::shared_address(shared.v));
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
  using OutElement = typename Traits::OutElement;
  using Stage = RingPosition<Traits::kStages>;
  using Math = std::conditional_t<Traits::kIsF8, PrefillMathF8<Traits>, PrefillMath<Traits>>;
  static constexpr float kLn2 = 0.693147180559945f;
  static constexpr float kLog2E = 1.44269504088896f;

  /// With one Q slot a row is finished before the next one's Q can come.
  __device__ void run_row_by_row() {
    while (wait_row()) {
      state_ = RowState();
      first_tile();
      walk_row();
      last_product();
      finish_row(row(), q_slot_.index(), state_);
      meet();
      release_q(q_slot_.index());
      q_slot_.advance();
    }
  }

  __device__ void run_as_a_stream() {
    if (!wait_row()) return;
    first_tile();
    for (;;) {
      walk_row();
      if (row().walk.num_tiles == 1) {  // else the second tile does it
        meet();
        release_previous_q();
      }
      q_slot_.advance();
      if (!wait_row()) break;
      has_previous_row_ = true;
      next_row();
    }
    last_product();
    finish_row(shared_.rows[previous_slot()], previous_slot(), state_);
  }

  // Rows and what stages hold are read where they lie, each time: copies would take registers that
  // the products need. Where control depends on them it is said that they are uniform: with one
  // branch in all of the consumer that might not be, ring positions, addresses and descriptors
  // would take registers of each thread and some 32 instructions a tile.

  /// Of the query tile: this thread's first row, the other is 8 further on.
  static __device__ int tile_row() { return consumer_row(ptx::thread_number()); }
  __device__ const RowInfo& row() const { return shared_.rows[q_slot_.index()]; }
  __device__ int previous_slot() const { return q_slot_.previous_index(); }
  __device__ const StageInfo& tile_of(Stage stage) const {
    return shared_.stages[stage.wide_index()];
  }
  /// Of the tile of S. Read by the lane that hands K back, so that racecheck sees it done before
  /// the number is written anew.
  __device__ int tile_number() const {
    if constexpr (Traits::kIsF8 || !Traits::kGuessesMaximum) return tile_of(stage_).tile;
    return ptx::uniform(ptx::lane_number() == 0 ? tile_of(stage_).tile : 0);
  }

  // Products, issued but not waited for.

  __device__ void issue_qk() {
    math_.issue_qk(ptx::advance(q_descriptor_, q_slot_.index() * Traits::kQSlotBytes),
                   ptx::advance(k_descriptor_, stage_.index() * Traits::kKvBytes));
  }

  __device__ void issue_pv(Stage stage) {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[stage.index()]), stage.parity());
    math_.issue_pv(ptx::advance(v_descriptor_, stage.index() * Traits::kKvBytes));
  }

  // Buffers.

  /// Waits for the next row and its Q; false when there is none.
  __device__ bool wait_row() {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.q_full[q_slot_.index()]), q_slot_.parity());
    return ptx::uniform(row().head) >= 0;
  }
  /// For K of the next tile.
  __device__ void wait_k() {
    stage_.advance();
    ptx::mbarrier_wait(ptx::shared_address(&shared_.k_full[stage_.index()]), stage_.parity());
  }
  __device__ void release_k() {
    if ((Traits::kGuessesMaximum ? thread_ % 32 : thread_) == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.k_empty[stage_.index()]));
    }
  }
  __device__ void release_v(Stage stage) {
    if (thread_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.v_empty[stage.index()]));
  }
  /// Hands a Q slot back once the store of O has read it. The warpgroup must have met at a barrier
  /// since it last read the slot's row.
  __device__ void release_q(int slot) {
    if (thread_ == 0) {
      ptx::tma_store_wait_read();
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.q_empty[slot]));
    }
  }
  /// The same for the previous row's, if that is not done yet.
  __device__ void release_previous_q() {
    if (Traits::kQSlots > 1 && has_previous_row_) release_q(previous_slot());
  }
  __device__ void meet() { ptx::named_barrier_sync(kStageBarrier + warpgroup_, 128); }

  // Steps of the stream.

  /// A row's first tile with nothing else in flight.
  __device__ void first_tile() {
    math_.clear_output();
    wait_k();
    issue_qk();
    ptx::wgmma_wait<0>();
    release_k();
    if (row().walk.is_masked(0)) mask();
    math_.find_maximum(state_, row(), tile_of(stage_));
    math_.exponentiate(state_);
    math_.pack();
    if (row().walk.is_masked(0)) settle_values();
  }

  /// The rest of a row's tiles. Those that need a mask, and the first, whose turn it is to hand
  /// back the previous row's Q, take the checked form: two branches in the hot loop cost 3 %.
  __device__ void walk_row() {
    const int num_tiles = ptx::uniform(row().walk.num_tiles);
    const int end_plain = ptx::uniform(row().walk.end_plain());
    const int num_masked_first = ptx::uniform(row().walk.num_masked_first);
    int step = 1;
#pragma unroll 1
    while (step < num_tiles) {
      const bool is_masked = step < num_masked_first || step >= end_plain;
      if (step == 1 || is_masked) {
        next_tile<true>(is_masked, step == 1);
        ++step;
      } else {
#pragma unroll 1
        for (; step < end_plain; ++step) next_tile<false>(false, false);
      }
    }
  }

  /// S = Q K_next^T runs beside O += P V, the softmax of S beside the rest of it.
  template <bool kChecked>
  __device__ void next_tile(bool is_masked, bool is_second) {
    const Stage before = stage_;
    issue_both(before);
    if constexpr (!kChecked && Traits::kGuessesMaximum) {
      soften_ahead(before);
    } else {
      if (kChecked && is_second) release_previous_q();  // by now its store has read it
      finish_qk(before);
      if (kChecked && is_masked) mask();
      soften(before);
      math_.rescale_output();
      if (kChecked && is_masked) settle_values();
    }
  }

  /// What follows the issue of a plain tile's products, without its maximum: nothing stands between
  /// the scores and their exponentials.
  __device__ void soften_ahead(Stage before) {
    ptx::wgmma_wait<1>();
    if constexpr (Math::kTakesProductFirst) finish_pv(before);
    math_.exponentiate_ahead(state_, row(), tile_of(stage_));
    if constexpr (Math::kTakesProductFirst) {
      math_.pack();
    } else {
      ptx::hold_wait(ptx::shared_address(&shared_.v_loaded), math_.tile_sum[0] + math_.tile_sum[1]);
      finish_pv(before);
    }
    if (math_.is_behind(state_)) {
      catch_up<Traits>(math_, state_, ptx::shared_address(shared_.q[q_slot_.index()]),
                       ptx::shared_address(shared_.k[stage_.index()]));
    }
    math_.take_sums(state_);
    if constexpr (!Math::kTakesProductFirst) math_.pack();
    release_k();
  }

  /// The first tile of a row beside the last product of the row before it.
  __device__ void next_row() {
    const Stage before = stage_;
    issue_both(before);
    finish_qk(before);
    const RowState done_state = state_;
    state_ = RowState();
    if (row().walk.is_masked(0)) mask();
    soften(before);
    finish_row(shared_.rows[previous_slot()], previous_slot(), done_state);
    math_.clear_output();
    if (row().walk.is_masked(0)) settle_values();
  }

  /// In this warpgroup's turn.
  __device__ void issue_both(Stage before) {
    wait_k();
    ptx::named_barrier_sync(kTurnBarrier + warpgroup_, 256);
    issue_qk();
    issue_pv(before);
    ptx::named_barrier_arrive(kTurnBarrier + (warpgroup_ ^ 1), 256);
  }

  __device__ void finish_qk(Stage before) {
    ptx::wgmma_wait<1>();
    release_k();
    if constexpr (Math::kTakesProductFirst) finish_pv(before);
  }

  __device__ void last_product() {
    issue_pv(stage_);
    finish_pv(stage_);
  }

  __device__ void finish_pv(Stage stage) {
    ptx::wgmma_wait<0>();
    release_v(stage);
    math_.take_product(tile_of(stage));
  }

  /// Scores to P, beside P V where that has not been waited for.
  __device__ void soften(Stage before) {
    math_.find_maximum(state_, row(), tile_of(stage_));
    math_.exponentiate(state_);
    if constexpr (!Math::kTakesProductFirst) {
      ptx::hold_wait(ptx::shared_address(&shared_.v_loaded), state_.sum[0] + state_.sum[1]);
      finish_pv(before);
    }
    math_.pack();
  }

  /// Position of this thread's first row; the other is 8 further on. Split: of the only one.
  __device__ int this_position(const RowInfo& row) const {
    return Traits::kIsSplit ? row.q_tile : row.q_tile * kQTileRows + tile_row();
  }

  // NaN and Inf in V.

  /// Before the P V of a masked tile, with nothing in flight: hidden keys have weight 0, and 0 x
  /// NaN would reach the rows that do not see it.
  __device__ void settle_values() {
    if constexpr (Traits::kIsSplit) return;  // a piece is one row: inspect_values() sees to it
    ptx::mbarrier_wait(ptx::shared_address(&shared_.v_full[stage_.index()]), stage_.parity());
    if (ptx::uniform(shared_.has_non_finite[stage_.index()]) == 0) return;
    const uint32_t v = ptx::shared_address(shared_.v[stage_.index()]);
    const int tile = tile_number();
    math_.add_non_finite(v, thread_, [&](int key, int r) {
      return sees(row(), this_position(row()) + 8 * r, tile, key);
    });
    ptx::named_barrier_sync(kValuesBarrier, 256);
    math_.clear_non_finite(v, warpgroup_ * 128 + thread_);
    ptx::async_proxy_fence();
    ptx::named_barrier_sync(kValuesBarrier, 256);
  }

  /// Whether the row at `position` sees row `at` of a tile.
  __device__ bool sees(const RowInfo& row, int position, int tile, int at) const {
    const int first_key = params_.window_left >= 0 ? position - params_.window_left : 0;
    if (Traits::kHasMeans && is_mean_tile(tile)) {
      const int block = mean_tile_number(tile) * Traits::kKvTileRows + at;
      const uint32_t hidden = shared_.hidden_means(q_slot_.index(), params_)[block / 32];
      return (hidden >> block % 32 & 1) == 0 && block * params_.block_size >= first_key;
    }
    const int key = tile * Traits::kKvTileRows + at;
    return key < row.kv_len && (!params_.causal || key <= position) && key >= first_key;
  }

  // This thread's accumulators: row r of PrefillMath is row tile_row() + 8 * r of the query tile.

  /// Hides the keys that a row may not see.
  __device__ void mask() {
    const RowInfo& row = this->row();
    const int tile = tile_number();
    if (Traits::kHasMeans && is_mean_tile(tile)) return mask_means(row, mean_tile_number(tile));
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
    // Few tiles are cut at both ends.
    if (__any_sync(~0u, min(high[0], high[1]) < Traits::kKvTileRows)) {
#pragma unroll
      for (int i = 0; i < Math::kScores; ++i) {
        if (i / 4 * 8 + i % 2 >= high[i / 2 % 2]) math_.s[i] = -INFINITY;
      }
    }
    if (__any_sync(~0u, max(low[0], low[1]) > 0)) {
#pragma unroll
      for (int i = 0; i < Math::kScores; ++i) {
        if (i / 4 * 8 + i % 2 < low[i / 2 % 2]) math_.s[i] = -INFINITY;
      }
    }
  }

  /// Hides the means of blocks that are listed, that come too late or that the window cuts, and
  /// gives the others the weight of their tokens.
  __device__ void mask_means(const RowInfo& row, int mean_tile) {
    const int first_block = mean_tile * Traits::kKvTileRows;
    const uint32_t* hidden = shared_.hidden_means(q_slot_.index(), params_) + first_block / 32;
    float bias = params_.mean_bias;
    if constexpr (Traits::kIsF8) bias = __fdividef(bias, tile_of(stage_).logit_scale);
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
        float& s = math_.s[16 * word + i];
        s = (bits >> (i / 4 * 8 + i % 2) & 1) != 0 ? -INFINITY : s + bias;
      }
    }
    if (__any_sync(~0u, max(low[0], low[1]) > 0)) {
#pragma unroll
      for (int i = 0; i < Math::kScores; ++i) {
        if (i / 4 * 8 + i % 2 < low[i / 2 % 2]) math_.s[i] = -INFINITY;
      }
    }
  }

  /// Divides O by its sum and writes it and the lse.
  __device__ void finish_row(const RowInfo& row, int slot, const RowState& state) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = ptx::quad_sum(state.sum[r]);
      float max_log2 = math_.reference_log2(state, r);
      factor[r] = 1.f;
      if (params_.sinks != nullptr) {
        const float sink = params_.sinks[row.head * params_.sinks_stride] * kLog2E;
        const float top = fmaxf(max_log2, sink);
        factor[r] = max_log2 == -INFINITY ? 0.f : ptx::exp2_approx(max_log2 - top);
        sum = sum * factor[r] + (sink == -INFINITY ? 0.f : ptx::exp2_approx(sink - top));
        max_log2 = top;
      }
      factor[r] = sum == 0.f ? 0.f : factor[r] / sum;
      const int at = tile_row() + 8 * r;
      if (thread_ % 4 == 0 && at >= row.valid_begin && at < row.valid_end) {
        store_lse(row, at, sum == 0.f ? -INFINITY : max_log2 * kLn2 + __logf(sum));
      }
    }
    const int first = warpgroup_ * kConsumerRows;
    if constexpr (Traits::kIsSplit) {
      store_partial(row, factor);
    } else if (ptx::uniform(first >= row.valid_begin && first + kConsumerRows <= row.valid_end)) {
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
      const int at = tile_row() + 8 * r;
      if (at >= row.valid_end) continue;
      float* out = params_.partial_out +
                   (int64_t{row.first_row} * params_.group_size + at) * Traits::kHeadDim +
                   thread_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < Traits::kHeadDim / 8; ++j) {
        *reinterpret_cast<float2*>(out + 8 * j) =
            float2{math_.o[4 * j + 2 * r] * factor[r], math_.o[4 * j + 2 * r + 1] * factor[r]};
      }
    }
  }

  /// O -> this warpgroup's 64 rows of the row's Q buffer -> global memory.
  __device__ void store_through_shared(const RowInfo& row, int slot, const float (&factor)[2]) {
    const int row_in_atom = tile_row() % 8;
    const uint32_t q = ptx::shared_address(shared_.q[slot]);
    const uint32_t base = q + tile_row() * ptx::kPanelRowBytes + thread_ % 4 * 4;
#pragma unroll
    for (int j = 0; j < Traits::kHeadDim / 8; ++j) {
      const uint32_t at = base + j / 8 * Traits::kQPanelBytes + ((j % 8 ^ row_in_atom) << 4);
      ptx::store_shared(
          at, ptx::pack2<OutElement>(math_.o[4 * j] * factor[0], math_.o[4 * j + 1] * factor[0]));
      ptx::store_shared(
          at + ptx::kSwizzleAtomBytes,
          ptx::pack2<OutElement>(math_.o[4 * j + 2] * factor[1], math_.o[4 * j + 3] * factor[1]));
    }
    ptx::async_proxy_fence();
    meet();
    if (thread_ == 0) {
      const int first = warpgroup_ * kConsumerRows;
      for (int panel = 0; panel < Traits::kOutPanels; ++panel) {
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
      const int at = tile_row() + 8 * r;
      if (at < row.valid_begin || at >= row.valid_end) continue;
      const int64_t q_row = row.first_row + at;
      auto* out = static_cast<OutElement*>(params_.out) + q_row * params_.out_row_stride +
                  row.head * params_.out_head_stride + thread_ % 4 * 2;
#pragma unroll
      for (int j = 0; j < Traits::kHeadDim / 8; ++j) {
        *reinterpret_cast<uint32_t*>(out + 8 * j) = ptx::pack2<OutElement>(
            math_.o[4 * j + 2 * r] * factor[r], math_.o[4 * j + 2 * r + 1] * factor[r]);
      }
    }
  }

  const PrefillMaps& maps_;
  const PrefillParams& params_;
  PrefillShared<Traits>& shared_;
  const int warpgroup_;
  const int thread_;  // in the warpgroup
  uint64_t q_descriptor_;
  uint64_t k_descriptor_;
  uint64_t v_descriptor_;
  RingPosition<Traits::kQSlots> q_slot_;
  bool has_previous_row_ = false;  // in the Q slot before this one
  Stage stage_ = Stage::before();  // of the tile of S
  RowState state_;
  Math math_;
};

}  // namespace fovea::cuda
