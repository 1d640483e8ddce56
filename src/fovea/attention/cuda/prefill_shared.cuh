// Shared memory of the prefill kernel and what its warps tell each other there.
#pragma once

#include "fovea/attention/cuda/prefill_launch.h"
#include "fovea/attention/cuda/prefill_params.h"
#include "fovea/attention/cuda/prefill_tiles.h"
#include "fovea/attention/cuda/tile_walk.cuh"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/swizzle128.h"

namespace fovea::cuda {

constexpr int kPrefillThreads = 384;
constexpr int kConsumerRows = kQTileRows / 2;  // of one warpgroup

/// `kKvTileRows_` is prefill_kv_tile_rows(), or 64 for lists of blocks of 64.
template <typename Element_, int kHeadDim_, bool kIsSplit_ = false,
          int kKvTileRows_ = prefill_kv_tile_rows(kHeadDim_)>
struct PrefillTraits {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kIsSplit = kIsSplit_;  // decode, see split_kv.h
  static constexpr int kPanels = kHeadDim / 64;
  // head_dim 256 leaves no room for 128-row KV tiles, nor for a second Q.
  static constexpr int kKvTileRows = kKvTileRows_;
  static constexpr int kQSlots = kHeadDim == 256 ? 1 : 2;
  static constexpr int kStages =
      (kHeadDim == 64 ? 4 : 2) * prefill_kv_tile_rows(kHeadDim) / kKvTileRows;
  static constexpr uint32_t kQPanelBytes = kQTileRows * ptx::kPanelRowBytes;
  static constexpr uint32_t kKvPanelBytes = kKvTileRows * ptx::kPanelRowBytes;
  static constexpr uint32_t kQBytes = kPanels * kQPanelBytes;
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

/// Row of the packed means where the first block of a row's sequence and KV head lies.
__device__ inline int first_mean_row(const PrefillParams& params, const RowInfo& row) {
  const int num_kv_heads = params.num_q_heads / params.group_size;
  return (row.seq * num_kv_heads + row.head / params.group_size) * params.max_means;
}

template <typename Traits>
struct PrefillShared {
  alignas(ptx::kSwizzleAtomBytes) uint8_t q[Traits::kQSlots][Traits::kQBytes];
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
  int32_t k_tiles[Traits::kStages];         // number of the tile that a K stage holds, for masks
  int32_t v_tiles[Traits::kStages];         // V stages are handed back later than K stages
  RowInfo rows[Traits::kQSlots];
  int32_t first_entries[Traits::kQSlots][32];  // lists only: see TileWalker
  // Periphery only: hidden[kQSlots][max_means / 32] follows, a bit for each block that is not seen
  // as a mean: it is listed, or not before the query block.

  __device__ uint32_t* hidden_means(int slot, const PrefillParams& params) {
    return reinterpret_cast<uint32_t*>(this + 1) + slot * (params.max_means / 32);
  }

  __device__ void init_barriers() {
    for (int i = 0; i < Traits::kQSlots; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&q_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&q_empty[i]), 3);    // consumers, inspect_values()
      ptx::mbarrier_init(ptx::shared_address(&row_full[i]), 32);  // every lane writes its entry
    }
    for (int i = 0; i < Traits::kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&k_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&k_empty[i]), 2);
      ptx::mbarrier_init(ptx::shared_address(&v_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&v_empty[i]), 2);
      ptx::mbarrier_init(ptx::shared_address(&v_loaded[i]), 1);
    }
    ptx::mbarrier_init_fence();
  }
};

/// Bytes to ask for at launch: the struct, what follows it, and room to align it.
template <typename Traits>
int prefill_shared_bytes(const PrefillParams& params) {
  return static_cast<int>(sizeof(PrefillShared<Traits>) + ptx::kSwizzleAtomBytes) +
         Traits::kQSlots * (params.max_means / 8);
}

/// A position in a ring of kSize buffers and the parity of its current phase.
template <int kSize>
struct RingPosition {
  int index = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
};

}  // namespace fovea::cuda
