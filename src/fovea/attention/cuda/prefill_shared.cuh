// Shared memory of the prefill kernel and what its warps tell each other there.
#pragma once

#include <cuda_bf16.h>

#include <type_traits>

#include "fovea/attention/cuda/prefill_launch.h"
#include "fovea/attention/cuda/prefill_params.h"
#include "fovea/attention/cuda/prefill_tiles.h"
#include "fovea/attention/cuda/tile_walk.cuh"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/swizzle128.h"
#include "fovea/tensor/float8.h"

namespace fovea::cuda {

constexpr int kPrefillThreads = 384;
constexpr int kConsumerRows = kQTileRows / 2;  // of one warpgroup

/// First of the two rows of the query tile that a thread of a consumer holds; the other is 8
/// further on. Warpgroup 1 has the first 64 rows.
__device__ inline int consumer_row(int thread) {
  return (thread / 128 - 1) * kConsumerRows + thread % 128 / 32 * 16 + thread % 32 / 4;
}

/// `kKvTileRows_` is prefill_kv_tile_rows(), or 64 for lists of blocks of 64. f8e4m3 has a kernel
/// of its own for periphery: the code beside it makes its loop 4 % slower.
template <typename Element_, int kHeadDim_, bool kIsSplit_ = false,
          int kKvTileRows_ = prefill_kv_tile_rows(kHeadDim_),
          bool kHasMeans_ = !kIsSplit_ && !std::is_same_v<Element_, Float8E4M3>>
struct PrefillTraits {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kIsSplit = kIsSplit_;  // decode, see split_kv.h
  static constexpr bool kIsF8 = std::is_same_v<Element, Float8E4M3>;
  // Of a thread, 504 for a producer and two consumers.
  static constexpr int kProducerRegisters = kIsF8 ? 40 : 56;
  static constexpr int kConsumerRegisters = kIsF8 ? 232 : 224;
  static constexpr bool kHasMeans = kHasMeans_;  // periphery
  // Weights of plain tiles are taken relative to the maximum of the tiles before. catch_up() may
  // read K once more.
  static constexpr bool kGuessesMaximum = !kIsSplit && kHeadDim <= 128;
  using OutElement = std::conditional_t<kIsF8, __nv_bfloat16, Element>;
  static constexpr int kPanelColumns = static_cast<int>(ptx::kPanelRowBytes / sizeof(Element));
  static constexpr int kPanels = kHeadDim / kPanelColumns;  // of Q and K, and of V but in f8e4m3
  static constexpr int kOutPanels = kHeadDim / 64;
  // head_dim 256 leaves no room for 128-row KV tiles, nor for a second Q.
  static constexpr int kKvTileRows = kKvTileRows_;
  static constexpr int kQSlots = kHeadDim == 256 ? 1 : 2;
  static constexpr int kStages =
      (kHeadDim == 64 || kIsF8 ? 4 : 2) * prefill_kv_tile_rows(kHeadDim) / kKvTileRows;
  // Arrivals that complete a Q slot: with periphery every lane of the row warp wrote bits for it.
  static constexpr int kQArrivals = kHasMeans ? 32 : 1;
  // A slow warp reads about a tile when others have handed its buffers back.
  static constexpr int kStageInfos = 2 * kStages;  // by RingPosition::wide_index()
  static constexpr uint32_t kQPanelBytes = kQTileRows * ptx::kPanelRowBytes;
  static constexpr uint32_t kKvPanelBytes = kKvTileRows * ptx::kPanelRowBytes;
  static constexpr uint32_t kQBytes = kPanels * kQPanelBytes;
  static constexpr uint32_t kQSlotBytes = kOutPanels * kQPanelBytes;  // O is staged there too
  static constexpr uint32_t kKvBytes = kPanels * kKvPanelBytes;
};

/// A row of work, as hand_out_rows() describes it to the other warps.
struct RowInfo {
  int32_t head;     // q head; -1: no more rows
  int32_t q_tile;   // split: position of the one query row
  int32_t q_block;  // lists only
  int32_t seq;
  int32_t kv_len;
  int32_t kv_offset;    // contiguous K/V: row of the sequence's key 0
  int32_t first_row;    // row of q where the tile begins; may be negative. Split: the piece
  int32_t valid_begin;  // rows of the tile that exist: [valid_begin, valid_end)
  int32_t valid_end;
  TileWalk walk;
};

/// What K and V of a stage are.
struct StageInfo {
  int32_t tile;       // for masks
  float logit_scale;  // f8e4m3 only: from products of codes to log2 (split: times q's scale)
  float v_scale;      // f8e4m3 only
};

/// Which token of a tile lies where in f8e4m3 V: the inverse of f8_value_slot().
__device__ inline int f8_token_of_slot(int slot) {
  return slot / 16 * 16 + slot % 4 / 2 * 8 + slot % 16 / 4 * 2 + slot % 2;
}
/// 0x80 in each byte of four E4M3 that is NaN, else 0.
__device__ inline uint32_t f8_nan_bits(uint32_t four) {
  return ((four & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
}

/// Row of the packed means where the first block of a row's sequence and KV head lies.
__device__ inline int first_mean_row(const PrefillParams& params, const RowInfo& row) {
  const int num_kv_heads = params.num_q_heads / params.group_size;
  return (row.seq * num_kv_heads + row.head / params.group_size) * params.max_means;
}

template <typename Traits>
struct PrefillShared {
  alignas(ptx::kSwizzleAtomBytes) uint8_t q[Traits::kQSlots][Traits::kQSlotBytes];
  alignas(ptx::kSwizzleAtomBytes) uint8_t k[Traits::kStages][Traits::kKvBytes];
  alignas(ptx::kSwizzleAtomBytes) uint8_t v[Traits::kStages][Traits::kKvBytes];
  uint64_t q_full[Traits::kQSlots];
  uint64_t q_empty[Traits::kQSlots];
  uint64_t row_full[Traits::kQSlots];  // RowInfo is there; K and V need not wait for Q
  uint64_t k_full[Traits::kStages];
  uint64_t k_empty[Traits::kStages];
  uint64_t v_full[Traits::kStages];
  uint64_t v_empty[Traits::kStages];
  uint64_t v_loaded[Traits::kStages];       // masked tiles: inspect_values() comes before v_full
  int32_t has_non_finite[Traits::kStages];  // what it found in V
  StageInfo stages[Traits::kStageInfos];
  RowInfo rows[Traits::kQSlots];
  int32_t first_entries[Traits::kQSlots][32];  // lists only: see TileWalker
  // Periphery only: hidden[kQSlots][max_means / 32] follows, a bit for each block that is not seen
  // as a mean: it is listed, or not before the query block.

  __device__ uint32_t* hidden_means(int slot, const PrefillParams& params) {
    return reinterpret_cast<uint32_t*>(this + 1) + slot * (params.max_means / 32);
  }

  __device__ void init_barriers() {
    for (int i = 0; i < Traits::kQSlots; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&q_full[i]), Traits::kQArrivals);
      ptx::mbarrier_init(ptx::shared_address(&q_empty[i]), 3);    // consumers, inspect_values()
      ptx::mbarrier_init(ptx::shared_address(&row_full[i]), 32);  // every lane writes its entry
    }
    for (int i = 0; i < Traits::kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&k_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&k_empty[i]), Traits::kGuessesMaximum ? 8 : 2);
      ptx::mbarrier_init(ptx::shared_address(&v_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&v_empty[i]), 2);
      ptx::mbarrier_init(ptx::shared_address(&v_loaded[i]), 1);
    }
    ptx::mbarrier_init_fence();
  }
};

/// Bytes to ask for at launch: the struct and what follows it.
template <typename Traits>
int prefill_shared_bytes(const PrefillParams& params) {
  return static_cast<int>(sizeof(PrefillShared<Traits>)) + Traits::kQSlots * (params.max_means / 8);
}

/// A position in a ring of kSize buffers and the parity of its current phase.
template <int kSize>
class RingPosition {
 public:
  __device__ int index() const { return index_; }
  __device__ uint32_t parity() const { return parity_; }
  __device__ void advance() {
    if (++index_ == kSize) {
      index_ = 0;
      parity_ ^= 1;
    }
  }
  __device__ int previous_index() const { return index_ == 0 ? kSize - 1 : index_ - 1; }
  /// The same position in a ring of twice the size.
  __device__ int wide_index() const { return index_ + static_cast<int>(parity_) * kSize; }
  /// The position before the first.
  static __device__ RingPosition before() {
    RingPosition position;
    position.index_ = kSize - 1;
    position.parity_ = 1;
    return position;
  }

 private:
  int index_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace fovea::cuda
