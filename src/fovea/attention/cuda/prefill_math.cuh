// Products and softmax of a consumer warpgroup's accumulators, in 16-bit types.
#pragma once

#include "fovea/attention/cuda/prefill_shared.cuh"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/wgmma.h"

namespace fovea::cuda {

/// Softmax state of this thread's two rows.
struct RowState {
  float max[2] = {-INFINITY, -INFINITY};  // in the unit of the math class
  float sum[2] = {0.f, 0.f};              // over this thread's columns
};

/// The accumulators of a thread and what is done to them. s[4 * j + 2 * r + e] is this thread's row
/// r and column 8 * j + 2 * (thread % 4) + e of the KV tile; o likewise.
template <typename Traits>
class PrefillMath {
 public:
  static constexpr int kScores = Traits::kKvTileRows / 2;
  static constexpr int kOutputs = Traits::kHeadDim / 2;
  /// Whether P V is waited for before the softmax of the next scores rather than after it.
  static constexpr bool kTakesProductFirst = false;

  __device__ explicit PrefillMath(const PrefillParams& params) : params_(params) {}

  /// Of the first V tile in shared memory.
  static __device__ uint64_t v_descriptor(uint32_t address) {
    return ptx::mn_major_descriptor(address, Traits::kKvPanelBytes);
  }

  __device__ void clear_output() {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.f;
  }

  // Products, issued but not waited for.

  __device__ void issue_qk(uint64_t q, uint64_t k) {
    ptx::wgmma_fence();
    QkProduct::first(s, q, k);
#pragma unroll
    for (int i = 1; i < Traits::kHeadDim / 16; ++i) {
      QkProduct::add(s, ptx::advance(q, i / 4 * Traits::kQPanelBytes + i % 4 * 32),
                     ptx::advance(k, i / 4 * Traits::kKvPanelBytes + i % 4 * 32));
    }
    ptx::wgmma_commit();
  }

  __device__ void issue_pv(uint64_t v) {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < Traits::kKvTileRows / 16; ++i) {
      PvProduct::add_rs(o, p_ + 4 * i, ptx::advance(v, i * 16 * ptx::kPanelRowBytes));
    }
    ptx::wgmma_commit();
  }

  /// Brings the running maximum, in units of raw logits, up to date, and notes by how much O must
  /// shrink for it.
  __device__ void find_maximum(RowState& state, const RowInfo&, const StageInfo&) {
#pragma unroll
    for (int r = 0; r < 2; ++r) rescale_[r] = move_maximum(state, r, find_row_maximum(state, r));
  }
  /// At least the one that the row has.
  __device__ float find_row_maximum(const RowState& state, int r) const {
    float top = state.max[r];
#pragma unroll
    for (int i = 2 * r; i < kScores; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    return ptx::quad_max(top);
  }
  /// To `top`, if that is much more. Returns by how much sums and O must shrink.
  __device__ float move_maximum(RowState& state, int r, float top) const {
    // One product of the difference: two rounded ones would make it fire by rounding. The form of
    // the comparison keeps a maximum of -inf (nothing seen yet) when nothing is seen now.
    const float old = state.max[r];
    if (!((top - old) * params_.scale_log2 > kLazyLog2)) top = old;
    state.max[r] = top;
    return top == old ? 1.f : ptx::exp2_approx((old - top) * params_.scale_log2);
  }

  /// Turns s from logits into probabilities relative to the maximum.
  __device__ void exponentiate(RowState& state) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.sum[r] = exponentiate_row(state, r, state.sum[r] * rescale_[r]);
    }
  }
  /// The same for one row; returns `sum` and what they add up to.
  __device__ float exponentiate_row(const RowState& state, int r, float sum) {
    const float top = state.max[r];
    const float offset = top == -INFINITY ? 0.f : top * params_.scale_log2;
#pragma unroll
    for (int i = 2 * r; i < kScores; i += 4) {
      s[i] = ptx::exp2_approx(fmaf(s[i], params_.scale_log2, -offset));
      s[i + 1] = ptx::exp2_approx(fmaf(s[i + 1], params_.scale_log2, -offset));
      sum += s[i] + s[i + 1];
    }
    return sum;
  }

  /// Turns s into probabilities relative to the maximum of the tiles before, without looking for
  /// larger logits: most tiles have none.
  __device__ void exponentiate_ahead(const RowState& state, const RowInfo&, const StageInfo&) {
#pragma unroll
    for (int r = 0; r < 2; ++r) reach[r] = tile_sum[r] = exponentiate_row(state, r, 0.f);
  }
  /// Whether some row of the warp has logits so much larger that it must catch_up().
  __device__ bool is_behind(const RowState& state) const {
    return __any_sync(~0u, !(fmaxf(reach[0], reach[1]) <= kMaxReach) ||
                               fminf(state.max[0], state.max[1]) == -INFINITY);
  }
  /// Of a row whose weights reach up to `by`. Returns by how much weights, sums and O must shrink.
  __device__ float raise_maximum(RowState& state, int r, float by) const {
    const float old = state.max[r];
    state.max[r] = old + ptx::log2_approx(by) / params_.scale_log2;
    return ptx::exp2_approx((old - state.max[r]) * params_.scale_log2);
  }
  /// After exponentiate_ahead() and catch_up().
  __device__ void take_sums(RowState& state) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] += tile_sum[r];
  }

  /// Makes P of s; after the wait for the P V before.
  __device__ void pack() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      p_[i] = ptx::pack2<Element>(s[2 * i], s[2 * i + 1]);
    }
  }

  /// After the wait for P V, which went straight into o.
  __device__ void take_product(const StageInfo&) {}

  __device__ void rescale_output() {
    if (__any_sync(~0u, rescale_[0] != 1.f || rescale_[1] != 1.f)) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) o[i] *= rescale_[i / 2 % 2];
    }
  }

  /// log2 of what row r's probabilities and sum are relative to.
  __device__ float reference_log2(const RowState& state, int r) const {
    return state.max[r] * params_.scale_log2;
  }

  /// Adds every NaN or Inf of a V tile to the rows that see it: whatever its weight, it is their
  /// result. `sees(key, r)` is of a row of the tile and of this thread's row r.
  template <typename Sees>
  __device__ void add_non_finite(uint32_t v, int thread, const Sees& sees) {
#pragma unroll 1
    for (int key = 0; key < Traits::kKvTileRows; ++key) {
      const bool is_seen[2] = {sees(key, 0), sees(key, 1)};
#pragma unroll
      for (int chunk = 0; chunk < 8; ++chunk) {
        const uint32_t at =
            v + thread % 4 * 4 + key * ptx::kPanelRowBytes + ((chunk ^ key % 8) << 4);
#pragma unroll
        for (int panel = 0; panel < Traits::kPanels; ++panel) {
          const float2 pair =
              ptx::unpack2<Element>(ptx::load_shared(at + panel * Traits::kKvPanelBytes));
          const float values[2] = {pair.x, pair.y};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (is_seen[i / 2] && !isfinite(values[i % 2])) {
              o[4 * (8 * panel + chunk) + i] += values[i % 2];
            }
          }
        }
      }
    }
  }

  /// By 256 threads.
  static __device__ void clear_non_finite(uint32_t v, int thread) {
#pragma unroll 1
    for (uint32_t at = 4 * thread; at < Traits::kKvBytes; at += 4 * 256) {
      const float2 pair = ptx::unpack2<Element>(ptx::load_shared(v + at));
      ptx::store_shared(v + at, ptx::pack2<Element>(isfinite(pair.x) ? pair.x : 0.f,
                                                    isfinite(pair.y) ? pair.y : 0.f));
    }
  }

  // After exponentiate_ahead() the maximum moves only where weights add up to more: far under what
  // f16 can hold, far over what 32 weights under 1 come to.
  static constexpr float kMaxReach = 256.f;

  float s[kScores];
  float o[kOutputs];
  float tile_sum[2];  // of exponentiate_ahead(), over this thread's columns
  float reach[2];     // what is held against kMaxReach: here tile_sum

 private:
  using Element = typename Traits::Element;
  using QkProduct = ptx::Wgmma<Element, Traits::kKvTileRows>;
  using PvProduct = ptx::Wgmma<Element, Traits::kHeadDim>;
  // The maximum moves only when it would grow by more than 2^8.
  static constexpr float kLazyLog2 = 8.f;

  const PrefillParams& params_;
  float rescale_[2];
  uint32_t p_[kScores / 2];
};

}  // namespace fovea::cuda
