// Products and softmax of a consumer warpgroup's accumulators, in f8e4m3.
//
// Every tile has scales of its own for K and V. P V of a tile goes into fresh accumulators and is
// added to O in f32, times V's scale: the tensor cores add 8-bit products with few bits, and over a
// long sequence one accumulator would lose what its last bits do not hold.
#pragma once

#include "fovea/attention/cuda/prefill_math.cuh"

namespace fovea::cuda {

/// See PrefillMath. RowState::max is in log2, kShiftLog2 under the true maximum or a little more.
template <typename Traits>
class PrefillMathF8 {
 public:
  static constexpr int kScores = Traits::kKvTileRows / 2;
  static constexpr int kOutputs = Traits::kHeadDim / 2;
  // With accumulators of its own the product is added beside the exponentials. Waiting for it after
  // the maximum costs 3 %, after the exponentials 6 %.
  static constexpr bool kTakesProductFirst = true;

  __device__ explicit PrefillMathF8(const PrefillParams& params) : params_(params) {}

  static __device__ uint64_t v_descriptor(uint32_t address) {
    return ptx::k_major_descriptor(address);
  }

  __device__ void clear_output() {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.f;
  }

  __device__ void issue_qk(uint64_t q, uint64_t k) {
    // Known to the compiler, the descriptors of Q would be kept over the whole row, two registers
    // each.
    auto low = static_cast<uint32_t>(q);
    asm volatile("" : "+r"(low));
    q = (q & 0xffffffff00000000ull) | low;
    ptx::wgmma_fence();
    QkProduct::first(s, q, k);
#pragma unroll
    for (int i = 1; i < Traits::kHeadDim / 32; ++i) {
      QkProduct::add(s, ptx::advance(q, i * 32), ptx::advance(k, i * 32));
    }
    ptx::wgmma_commit();
  }

  __device__ void issue_pv(uint64_t v) {
    ptx::wgmma_fence();
    PvProduct::first_rs(product_, p_, v);
#pragma unroll
    for (int i = 1; i < Traits::kKvTileRows / 32; ++i) {
      PvProduct::add_rs(product_, p_ + 4 * i, ptx::advance(v, i * 32));
    }
    ptx::wgmma_commit();
  }

  __device__ void find_maximum(RowState& state, const RowInfo& row, const StageInfo& tile) {
    set_scale(row, tile);
#pragma unroll
    for (int r = 0; r < 2; ++r) rescale_[r] = move_maximum(state, r, find_row_maximum(state, r));
  }
  __device__ float find_row_maximum(const RowState&, int r) const {
    float top = -INFINITY;
#pragma unroll
    for (int i = 2 * r; i < kScores; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    return ptx::quad_max(top) * scale_[r] - kShiftLog2;
  }
  __device__ float move_maximum(RowState& state, int r, float reference) const {
    // The form of the comparison keeps -inf (nothing seen yet) when nothing is seen now.
    const float old = state.max[r];
    if (!(reference - old > kLazyLog2)) reference = old;
    state.max[r] = reference;
    return reference == old ? 1.f : ptx::exp2_approx(old - reference);
  }

  __device__ void exponentiate(RowState& state) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.sum[r] = exponentiate_row(state, r, state.sum[r] * rescale_[r]);
    }
  }
  __device__ float exponentiate_row(const RowState& state, int r, float sum) {
    const float offset = state.max[r] == -INFINITY ? 0.f : state.max[r];
#pragma unroll
    for (int i = 2 * r; i < kScores; i += 4) {
      s[i] = ptx::exp2_approx(fmaf(s[i], scale_[r], -offset));
      s[i + 1] = ptx::exp2_approx(fmaf(s[i + 1], scale_[r], -offset));
      sum += s[i] + s[i + 1];
    }
    return sum;
  }

  __device__ void exponentiate_ahead(const RowState& state, const RowInfo& row,
                                     const StageInfo& tile) {
    set_scale(row, tile);
#pragma unroll
    for (int r = 0; r < 2; ++r) tile_sum[r] = exponentiate_row(state, r, 0.f);
    // Weights are not negative: they compare like integers, of which one instruction takes three.
    int tops[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      int& top = tops[i / 2 % 2];
      top = max(max(top, __float_as_int(s[i])), __float_as_int(s[i + 1]));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) reach[r] = __int_as_float(tops[r]);
  }
  __device__ bool is_behind(const RowState& state) const {
    const int top = max(__float_as_int(reach[0]), __float_as_int(reach[1]));
    return __any_sync(~0u, top > __float_as_int(kMaxReach) || state.max[0] == -INFINITY ||
                               state.max[1] == -INFINITY);
  }
  __device__ float raise_maximum(RowState& state, int r, float by) const {
    const float old = state.max[r];
    state.max[r] = old + (ptx::log2_approx(by) - kShiftLog2);
    return ptx::exp2_approx(old - state.max[r]);
  }
  __device__ void take_sums(RowState& state) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) state.sum[r] += tile_sum[r];
  }

  __device__ void pack() {
    pack_row(0);
    pack_row(1);
  }
  __device__ void pack_row(int r) {
    // Four weights that lie in one register: see f8_value_slot() for the order of V.
#pragma unroll
    for (int k = 0; k < kScores / 16; ++k) {
      const float* g = s + 16 * k + 2 * r;
      p_[4 * k + r] = ptx::pack_e4m3(g[0], g[1], g[4], g[5]);
      p_[4 * k + 2 + r] = ptx::pack_e4m3(g[8], g[9], g[12], g[13]);
    }
  }

  __device__ void take_product(const StageInfo& tile) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = fmaf(product_[i], tile.v_scale, o[i]);
  }

  __device__ void rescale_output() {
    if (__any_sync(~0u, rescale_[0] != 1.f || rescale_[1] != 1.f)) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) o[i] *= rescale_[i / 2 % 2];
    }
  }

  __device__ float reference_log2(const RowState& state, int r) const { return state.max[r]; }

  template <typename Sees>
  __device__ void add_non_finite(uint32_t v, int thread, const Sees& sees) {
#pragma unroll 1
    for (int slot = 0; slot < Traits::kKvTileRows; ++slot) {
      const int key = f8_token_of_slot(slot);
      const bool is_seen[2] = {sees(key, 0), sees(key, 1)};
#pragma unroll
      for (int i = 0; i < kOutputs / 2; ++i) {
        const int column = i / 2 * 8 + thread % 4 * 2 + i % 2;  // of O, a row of V
        const uint32_t word =
            ptx::load_shared(v + ptx::swizzle128(column * ptx::kPanelRowBytes + slot / 4 * 4));
        if ((word >> slot % 4 * 8 & 0x7f) != 0x7f) continue;
        if (is_seen[0]) o[i / 2 * 4 + i % 2] = NAN;
        if (is_seen[1]) o[i / 2 * 4 + i % 2 + 2] = NAN;
      }
    }
  }

  static __device__ void clear_non_finite(uint32_t v, int thread) {
#pragma unroll 1
    for (uint32_t at = 4 * thread; at < Traits::kKvBytes; at += 4 * 256) {
      const uint32_t word = ptx::load_shared(v + at);
      ptx::store_shared(v + at, word & ~((f8_nan_bits(word) >> 7) * 0xff));
    }
  }

  static constexpr float kMaxReach = 448.f;  // the largest E4M3

  float s[kScores];
  float o[kOutputs];
  float tile_sum[2];
  float reach[2];  // the largest weights of this thread's columns

 private:
  using Element = typename Traits::Element;
  using QkProduct = ptx::Wgmma<Element, Traits::kKvTileRows>;
  using PvProduct = ptx::Wgmma<Element, Traits::kHeadDim>;
  /// Decode: the rows of a tile are heads, each with its scale. Else tile.logit_scale has it.
  __device__ float q_scale(const RowInfo& row, int r) const {
    const int at = consumer_row(ptx::thread_number()) + 8 * r;
    const bool is_separate = Traits::kIsSplit && params_.q_scale != nullptr && at < row.valid_end;
    return is_separate ? params_.q_scale[row.head + at] : 1.f;
  }

  __device__ void set_scale(const RowInfo& row, const StageInfo& tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) scale_[r] = tile.logit_scale * q_scale(row, r);
  }

  // Weights lie under 2^kShiftLog2 when the maximum is fresh, and under 2^(both) when it is stale.
  // Weights lie under 2^kShiftLog2 when the maximum is fresh, and under 2^(both) when it is stale:
  // a larger sum would saturate at 448 = 2^8.8. Plain tiles are held against that itself.
  static constexpr float kShiftLog2 = 6.f;
  static constexpr float kLazyLog2 = 2.f;

  const PrefillParams& params_;
  float scale_[2];  // from products of codes to log2, of the tile in s
  float rescale_[2];
  float product_[kOutputs];
  uint32_t p_[kScores / 4];
};

}  // namespace fovea::cuda
