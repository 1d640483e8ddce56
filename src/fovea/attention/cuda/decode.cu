// A row's group of q heads against its keys, bound by latency where there are few keys and by
// reading them where there are many. The keys are cut into up to max_splits runs, a CTA each; its
// warps take tiles of them in turn, one while the next is on its way.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fovea/attention/cuda/append_row.cuh"
#include "fovea/attention/cuda/decode.h"
#include "fovea/attention/cuda/decode_keys.cuh"
#include "fovea/attention/cuda/decode_tile.cuh"
#include "fovea/attention/cuda/decode_tile_f8.cuh"
#include "fovea/attention/cuda/join_pieces.cuh"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"

namespace fovea::cuda {
namespace {

constexpr int kWarps = kDecodeWarps;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 2;  // tiles of a warp that are on their way
constexpr uint32_t kStageAlignment = 1024;
constexpr int kHeads = static_cast<int>(kMaxDecodeGroup);

/// What a warp has found so far: of heads `group` and `group` + 8 of its thread.
template <typename Tile>
class WarpState {
 public:
  static constexpr int kHeadDim = Tile::kHeadDim;
  static constexpr int kPaddedDim = kHeadDim + 8;

  /// Weights of a tile's logits, and with them its values onto the output. Hides keys that are not
  /// seen.
  __device__ void add(const Tile& tile, int first_key, const typename Tile::KeySplits& splits,
                      float (&logits)[Tile::kKeys / 8][4]) {
    if (!splits.are_seen(first_key)) {
#pragma unroll
      for (int eighth = 0; eighth < Tile::kKeys / 8; ++eighth) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + 8 * eighth + Tile::quad() * 2 + i % 2;
          if (!splits.is_seen(key)) logits[eighth][i] = -INFINITY;
        }
      }
    }
    float shrink[2];
#pragma unroll
    for (int side = 0; side < 2; ++side) {  // heads group() and group() + 8
      float largest = -INFINITY;
#pragma unroll
      for (const auto& of_keys : logits) {
        largest = fmaxf(largest, fmaxf(of_keys[2 * side], of_keys[2 * side + 1]));
      }
      largest = fmaxf(reference_[side], ptx::quad_max(largest) - Tile::kWeightLog2);
      const float from = largest == -INFINITY ? 0.f : largest;
      shrink[side] = ptx::exp2_approx(reference_[side] - from);
      reference_[side] = largest;
      sum_[side] *= shrink[side];
#pragma unroll
      for (auto& of_keys : logits) {
#pragma unroll
        for (int i = 2 * side; i < 2 * side + 2; ++i) {
          of_keys[i] = ptx::exp2_approx(of_keys[i] - from);
          sum_[side] += of_keys[i];
        }
      }
    }
    tile.add(logits, shrink, out_);
  }

  /// Leaves what was found of `num_heads` heads in shared memory, out not normalised; its columns
  /// as Tile::place_of() says, so that a warp's stores meet no bank twice.
  __device__ void store(int num_heads, float (*out)[kPaddedDim], float* reference,
                        float* sum) const {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int head = Tile::group() + 8 * side;
      const float total = ptx::quad_sum(sum_[side]);
      if (head >= num_heads) continue;
      if (Tile::quad() == 0) {
        reference[head] = reference_[side];
        sum[head] = total;
      }
#pragma unroll
      for (int tile = 0; tile < kHeadDim / 8; ++tile) {
        *reinterpret_cast<float2*>(&out[head][tile * 8 + Tile::quad() * 2]) =
            make_float2(out_[tile][2 * side], out_[tile][2 * side + 1]);
      }
    }
  }

 private:
  float out_[kHeadDim / 8][4] = {};
  float reference_[2] = {-INFINITY, -INFINITY};  // weights are 2^(logit - reference)
  float sum_[2] = {};
};

/// What a warp has asked for and not yet taken, and at the end what it has found.
template <typename Tile>
union alignas(kStageAlignment) WarpMemory {
  uint8_t stages[kStages][Tile::kStageBytes];
  float out[kHeads][WarpState<Tile>::kPaddedDim];
};

template <typename Tile>
__global__ __launch_bounds__(kThreads,
                             1) void decode_kernel(const DecodeParams p,
                                                   const __grid_constant__ DecodeMaps maps) {
  constexpr int kHeadDim = Tile::kHeadDim;
  extern __shared__ uint8_t dynamic[];
  const uint32_t misplaced = ptx::shared_address(dynamic) % kStageAlignment;
  auto* memories = reinterpret_cast<WarpMemory<Tile>*>(
      dynamic + (misplaced == 0 ? 0 : kStageAlignment - misplaced));
  __shared__ float reference[kWarps][kHeads], sum[kWarps][kHeads];
  __shared__ uint64_t barriers[kWarps][kStages];
  ptx::let_next_grid_begin();
  if (!p.only_last_key_is_new) ptx::wait_for_previous_grid();
  const PrefillParams& common = p.common;
  const int num_kv_heads = common.num_q_heads / common.group_size;
  const auto unit = static_cast<int>(blockIdx.y);
  const auto split = static_cast<int>(blockIdx.x);
  const int q_row = unit / num_kv_heads;
  const int kv_head = unit % num_kv_heads;
  const typename Tile::KeySplits splits(p, q_row);
  if (split >= splits.count()) {
    if (split == 0) ptx::wait_for_previous_grid();  // no kernel behind overtakes the one in front
    return;
  }

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_head = kv_head * common.group_size;
  // What holds the last key, in f8 its page, is being made; the tiles before may be asked for. A
  // page that gets a row here is its CTA's alone.
  const int num_old =
      splits.tiles_before_last(Tile::kRescalesPages ? common.page_size : Tile::kKeys);
  const int num_apart = p.new_k.from != nullptr ? num_old : splits.num_tiles;
  Tile tile(p, splits.seq, kv_head);
  const int first = splits.run_begin(split, num_apart) + warp;
  const int end = splits.run_begin(split + 1, num_apart);
  auto& stages = memories[warp].stages;
  const bool is_asker = threadIdx.x % 32 == 0;
  if (is_asker) {
    for (uint64_t& barrier : barriers[warp]) ptx::mbarrier_init(ptx::shared_address(&barrier), 1);
    ptx::mbarrier_init_fence();
  }
  __syncwarp();
  int asked = first;
  const auto ask = [&](int stage) {
    if (asked < end && is_asker) {
      tile.ask(maps, splits.first_key(asked), ptx::shared_address(stages[stage]),
               ptx::shared_address(&barriers[warp][stage]));
    }
    asked += kWarps;
  };
  const auto ask_scales = [&](int number) {
    if (number < end) tile.ask_scales(splits.first_key(number));
  };
  const auto ask_first = [&] {
    for (int i = 0; i < kStages; ++i) ask(i);
    ask_scales(first);
  };
  const bool asks_early =
      p.only_last_key_is_new && min(first + (kStages - 1) * kWarps, end - 1) < num_old;
  if (asks_early) ask_first();
  ptx::wait_for_previous_grid();
  if constexpr (Tile::kRescalesPages) {
    if (p.new_k.from != nullptr && split + 1 == splits.count()) {
      append_row(p, splits.seq, splits.end - 1, kv_head);
    }
  }
  if (!asks_early) ask_first();
  tile.take_queries(p, q_row, first_head);
  WarpState<Tile> state;
  int stage = 0;
  uint32_t parity = 0;
  for (int number = first; number < end; number += kWarps) {
    const int first_key = splits.first_key(number);
    ptx::mbarrier_wait(ptx::shared_address(&barriers[warp][stage]), parity);
    tile.take_keys(stages[stage]);
    ask_scales(number + kWarps);
    float logits[Tile::kKeys / 8][4];
    tile.score(logits);
    tile.take_values(stages[stage], first_key, splits);
    state.add(tile, first_key, splits, logits);
    __syncwarp();
    ask(stage);
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  state.store(common.group_size, memories[warp].out, reference[warp], sum[warp]);
  __syncthreads();

  constexpr float kLn2 = 0.693147180559945f;
  const int64_t piece = int64_t{unit} * p.max_splits + split;
  for (int i = static_cast<int>(threadIdx.x); i < common.group_size * kHeadDim; i += kThreads) {
    const int head = i / kHeadDim;
    const int place = Tile::place_of(i % kHeadDim);
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, reference[w][head]);
    float total = 0, result = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight =
          reference[w][head] == -INFINITY ? 0.f : ptx::exp2_approx(reference[w][head] - top);
      total = fmaf(weight, sum[w][head], total);
      result = fmaf(weight, memories[w].out[head][place], result);
      // What is NaN without a reference: logits that are all NaN.
      if (isnan(sum[w][head])) total = result = NAN;
    }
    const int64_t row = piece * common.group_size + head;
    common.partial_out[row * kHeadDim + i % kHeadDim] = total == 0.f ? 0.f : result / total;
    if (i % kHeadDim == 0) {
      common.partial_lse[row] = total == 0.f ? -INFINITY : top * kLn2 + __logf(total);
    }
  }
}

template <typename Tile>
__global__ __launch_bounds__(kJoinThreads) void join_kernel(const DecodeParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const auto q_row = static_cast<int>(blockIdx.x);
  const auto head = static_cast<int>(blockIdx.y);
  const int num_kv_heads = p.common.num_q_heads / p.common.group_size;
  const int64_t unit = int64_t{q_row} * num_kv_heads + head / p.common.group_size;
  join_pieces<typename Tile::Out, Tile::kHeadDim>(p.common, q_row, head, unit * p.max_splits,
                                                  typename Tile::KeySplits(p, q_row).count());
}

template <typename Tile>
void launch(const DecodeParams& p, const DecodeMaps& maps, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(p.common.total_q);
  const auto heads = static_cast<unsigned>(p.common.num_q_heads);
  const dim3 grid(static_cast<unsigned>(p.max_splits),
                  rows * heads / static_cast<unsigned>(p.common.group_size));
  const auto kernel = decode_kernel<Tile>;
  constexpr size_t kSharedBytes = kWarps * sizeof(WarpMemory<Tile>) + kStageAlignment;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kSharedBytes)),
             "configuring decode_kernel");
  launch_overlapping(kernel, grid, kThreads, kSharedBytes, stream, "launching decode_kernel", p,
                     maps);
  launch_overlapping(join_kernel<Tile>, dim3(rows, heads), kJoinThreads, 0, stream,
                     "launching join_kernel", p);
}

}  // namespace

void launch_decode(const DecodeParams& params, const DecodeMaps& maps, DType kv_dtype, int head_dim,
                   cudaStream_t stream) {
  if (kv_dtype == DType::kF8E4M3) return launch<DecodeTileF8>(params, maps, stream);
  if (kv_dtype == DType::kBF16) {
    return (head_dim == 64 ? launch<DecodeTile<__nv_bfloat16, 64>>
                           : launch<DecodeTile<__nv_bfloat16, 128>>)(params, maps, stream);
  }
  (head_dim == 64 ? launch<DecodeTile<__half, 64>> : launch<DecodeTile<__half, 128>>)(params, maps,
                                                                                      stream);
}

}  // namespace fovea::cuda
