// The loader warp of the selection kernel: hands out rows, streams Q and tiles of facts, and writes
// the list of each row while the next one is being scored.
#pragma once

#include "fovea/selector/cuda/select_shared.cuh"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {

template <typename Traits>
class SelectLoader {
 public:
  __device__ SelectLoader(const SelectMaps& maps, const SelectParams& params,
                          const SelectMemory<Traits>& memory)
      : maps_(maps),
        p_(params),
        memory_(memory),
        shared_(memory.shared()),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    const int num_rows = *p_.plan.num_blocks * p_.num_q_heads;
    int slot = 0;
    bool has_list = false;  // of the row before
    for (int work = static_cast<int>(blockIdx.x); work < num_rows; slot ^= 1) {
      int taken = 0;
      if (lane_ == 0) taken = atomicAdd(p_.plan.next_work, 1);
      const SelectRow row = describe(work);
      publish(row, slot);
      const int num_rows_of_blocks = row.num_tiles * p_.facts.rows_per_block;
      const int ahead = min(num_rows_of_blocks, memory_.layout().num_stages);
      for (int n = 0; n < ahead; ++n) load_tile(row, n);
      if (has_list) write_list(shared_.rows[slot ^ 1]);
      for (int n = ahead; n < num_rows_of_blocks; ++n) load_tile(row, n);
      has_list = true;
      work = __shfl_sync(~0u, taken, 0) + static_cast<int>(gridDim.x);
    }
    publish(SelectRow(), slot);
    if (has_list) write_list(shared_.rows[slot ^ 1]);
    if (lane_ == 0) {
      atomicAdd(&p_.counters[kForcedPairs], static_cast<unsigned long long>(num_forced_));
    }
  }

 private:
  /// Row number `work`: long query blocks first, all heads of one together.
  __device__ SelectRow describe(int work) const {
    SelectRow row;
    row.block = p_.plan.blocks[work / p_.num_q_heads];
    row.head = work % p_.num_q_heads;
    row.group = row.block.seq * p_.num_kv_heads + row.head / p_.group_size;
    if (row.block.sink_end < row.block.local_begin && !p_.is_fixed) {
      row.num_tiles = (row.block.q_block + kFactTileBlocks - 1) / kFactTileBlocks;
      const PrefixFacts facts =
          p_.facts.prefix[int64_t{row.group} * (p_.facts.max_blocks + 1) + row.block.q_block];
      const float spread = facts.high - facts.low;
      row.low = p_.is_bound ? 0.f : facts.low;
      row.inverse_spread = !p_.is_bound && spread > 0.f ? 1.f / spread : INFINITY;
      row.most = p_.is_bound ? INFINITY : facts.most;
      row.extent = facts.extent;
      row.widest = facts.widest;
    }
    return row;
  }

  /// Hands the row to the scorers and loads its Q.
  __device__ void publish(const SelectRow& row, int slot) {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.q_empty), q_parity_ ^ 1);
    q_parity_ ^= 1;
    if (lane_ == 0) {
      shared_.rows[slot] = row;
      shared_.totals[slot] = RowTotals();
      const uint32_t full = ptx::shared_address(&shared_.q_full);
      if (row.num_tiles == 0) {
        ptx::mbarrier_arrive(full);
      } else {
        const int parts = memory_.layout().q_parts;
        ptx::mbarrier_arrive_expect(full, parts * Traits::kQBytes);
        for (int part = 0; part < parts; ++part) {
          for (int panel = 0; panel < Traits::kPanels; ++panel) {
            ptx::tma_load(ptx::shared_address(memory_.q()) + part * Traits::kQBytes +
                              panel * Traits::kQPanelBytes,
                          &maps_.q, full,
                          {panel * 64, row.block.q_row + part * kSelectQueryRows, row.head, 0});
          }
        }
      }
    }
    __syncwarp();
  }

  /// The row's n-th tile: a tile of blocks takes rows_per_block of them, one after another.
  __device__ void load_tile(const SelectRow& row, int n) {
    const int rows_per_block = p_.facts.rows_per_block;
    const int block_tile = block_tile_at(n / rows_per_block, row.num_tiles, row.widest);
    const int tile = block_tile * rows_per_block + n % rows_per_block;
    const TilePlace place(num_loaded_++, memory_.layout().num_stages);
    ptx::mbarrier_wait(ptx::shared_address(&shared_.tile_empty[place.stage]), place.parity ^ 1);
    if (lane_ == 0) {
      const uint32_t full = ptx::shared_address(&shared_.tile_full[place.stage]);
      const int tiles_of_group = p_.facts.max_blocks / kFactTileBlocks * rows_per_block;
      ptx::mbarrier_arrive_expect(full, Traits::kTileBytes);
      for (int panel = 0; panel < Traits::kPanels; ++panel) {
        ptx::tma_load(
            ptx::shared_address(memory_.tile(place.stage)) + panel * Traits::kTilePanelBytes,
            &maps_.rows, full,
            {panel * 64, (row.group * tiles_of_group + tile) * kFactTileBlocks, 0, 0});
      }
    }
    __syncwarp();
  }

  /// Writes the list that the mask holds. A list that holds everything, or that the pool has no
  /// room for, is the shared one.
  __device__ void write_list(const SelectRow& row) {
    ptx::mbarrier_wait(ptx::shared_address(&shared_.mask_full), mask_parity_);
    mask_parity_ ^= 1;
    const unsigned* mask = memory_.mask();
    const int q_block = row.block.q_block;
    const int num_words = q_block / 32 + 1;
    int total = 0;
    for (int k = lane_; k < num_words; k += 32) total += __popc(mask[k]);
    total = __reduce_add_sync(~0u, static_cast<unsigned>(total));
    long long at = -1;
    if (lane_ == 0) {
      if (total < q_block + 1 && total > 0) {
        at = static_cast<long long>(
            atomicAdd(&p_.counters[kPoolUsed], static_cast<unsigned long long>(total)));
        if (at + total > p_.pool_size) {
          at = -1;
          atomicAdd(&p_.counters[kOverflowedLists], 1ull);
        }
      }
      const int64_t list = row.head * p_.num_q_blocks + row.block.first_list;
      p_.begin[list] = at < 0 ? 0 : at;
      p_.len[list] = at < 0 && total > 0 ? q_block + 1 : total;
      num_forced_ += row.num_forced();
    }
    at = __shfl_sync(~0u, at, 0);
    for (int start = 0; at >= 0 && start < num_words; start += 32) {
      const unsigned own = start + lane_ < num_words ? mask[start + lane_] : 0;
      const int end = min(32, num_words - start);
      for (int k = 0; k < end; ++k) {
        const unsigned bits = __shfl_sync(~0u, own, k);
        if (bits >> lane_ & 1) {
          p_.pool[at + __popc(bits & ((1u << lane_) - 1))] = (start + k) * 32 + lane_;
        }
        at += __popc(bits);
      }
    }
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(ptx::shared_address(&shared_.mask_empty));
  }

  const SelectMaps& maps_;
  const SelectParams& p_;
  const SelectMemory<Traits>& memory_;
  SelectShared& shared_;
  const int lane_;
  uint32_t q_parity_ = 0;
  uint32_t mask_parity_ = 0;
  int num_loaded_ = 0;
  long long num_forced_ = 0;
};

}  // namespace fovea::cuda
