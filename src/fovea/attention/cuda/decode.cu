// A row's group of q heads against its keys, bound by latency where there are few keys and by
// reading them where there are many. The keys are cut into up to max_splits runs, a CTA each; its
// warps take tiles of 16 keys in turn, one while the next is on its way, as operands of mma.sync:
// heads are its 16 rows, and since a sum over columns may be taken in any order, each thread's
// share of a row of K, or of V, is 16 bytes that lie side by side.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fovea/attention/cuda/decode.h"
#include "fovea/attention/cuda/join_pieces.cuh"
#include "fovea/attention/cuda/split_kv.cuh"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/async_copy.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"
#include "fovea/tensor/cuda/ptx/math.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/mma.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTileKeys = static_cast<int>(kDecodeTileKeys);
constexpr int kStages = 2;  // tiles of a warp that are on their way
constexpr int kHeads = static_cast<int>(kMaxDecodeGroup);

__device__ inline uint32_t word(const uint4& bits, int i) {
  return i == 0 ? bits.x : i == 1 ? bits.y : i == 2 ? bits.z : bits.w;
}

/// Keys that a row sees, and how they are cut.
struct Splits {
  __device__ Splits(const DecodeParams& p, int q_row) : seq(sequence_of_row(p.common, q_row)) {
    const SequenceShape shape = sequence_shape(p.common, seq);
    const int position = shape.first_position() + q_row - static_cast<int>(p.common.q_offsets[seq]);
    begin = shape.window_left >= 0 ? max(position - shape.window_left, 0) : 0;
    end = shape.causal ? min(position + 1, shape.kv_len) : shape.kv_len;
    first_tile = begin / kTileKeys;
    num_tiles = max((end + kTileKeys - 1) / kTileKeys - first_tile, 0);
    tiles_each = max((num_tiles + p.max_splits - 1) / p.max_splits, kWarps);
  }
  __device__ int count() const { return (num_tiles + tiles_each - 1) / tiles_each; }

  int seq, begin, end;
  int first_tile, num_tiles, tiles_each;
};

/// Rows of K or V of one sequence and KV head.
template <typename Element>
class Rows {
 public:
  __device__ Rows(const PrefillParams& p, const DecodeSide& side, int seq, int kv_head)
      : data_(static_cast<const Element*>(side.data) + kv_head * side.head_stride),
        page_stride_(side.page_stride),
        row_stride_(side.row_stride),
        page_size_(p.page_size),
        page_table_(p.page_table != nullptr ? p.page_table + seq * p.page_table_stride : nullptr) {
    if (page_table_ == nullptr) data_ += p.kv_offsets[seq] * row_stride_;
  }
  /// The first of a tile's rows, which share a page.
  __device__ const Element* tile(int first_key) const {
    if (page_table_ == nullptr) return data_ + first_key * row_stride_;
    return data_ + page_table_[first_key / page_size_] * page_stride_ +
           first_key % page_size_ * row_stride_;
  }
  __device__ int64_t row_stride() const { return row_stride_; }

 private:
  const Element* data_;
  int64_t page_stride_, row_stride_;
  int page_size_;
  const int32_t* page_table_;
};

/// What a warp has found so far: of heads `group` and `group` + 8 of its thread.
template <typename Element, int kHeadDim>
class WarpState {
 public:
  static constexpr int kKLoads = kHeadDim / 32;  // of 16 bytes, of a row
  static constexpr int kVLoads = kHeadDim / 64;
  static constexpr int kStageLoads = (2 * kKLoads + 4 * kVLoads) * 32;  // of a tile, of a warp
  static constexpr int kPaddedDim = kHeadDim + 8;

  __device__ explicit WarpState(float scale_log2) : scale_log2_(scale_log2) {}

  __device__ void take_queries(const Element* q, int64_t head_stride, int num_heads) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = group() + 8 * half;
#pragma unroll
      for (int j = 0; j < kKLoads; ++j) {
        q_[half][j] =
            head < num_heads ? load(q + head * head_stride + j * 32 + quad() * 8) : uint4{};
      }
    }
  }

  /// Asks for a tile's keys and values; keys that are not seen become zeros. Each thread copies
  /// what it will take itself, so that it waits for nobody.
  __device__ void ask(const Rows<Element>& keys, const Rows<Element>& values, int first_key,
                      const Splits& splits, uint4* stage) const {
    const uint32_t to = ptx::shared_address(stage + threadIdx.x % 32);
    constexpr uint32_t kStep = 32 * sizeof(uint4);
    const Element* first_k = keys.tile(first_key) + quad() * 8;
    const Element* first_v = values.tile(first_key) + group() * 8;
    const auto is_seen = [&](int key) {
      return splits.begin <= first_key + key && first_key + key < splits.end;
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = 8 * half + group();
      const Element* row = first_k + key * keys.row_stride();
#pragma unroll
      for (int j = 0; j < kKLoads; ++j) {
        ptx::copy_16(to + kStep * (half * kKLoads + j), row + j * 32, is_seen(key), policy_);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = quad() * 2 + i % 2 + i / 2 * 8;
      const Element* row = first_v + key * values.row_stride();
#pragma unroll
      for (int j = 0; j < kVLoads; ++j) {
        ptx::copy_16(to + kStep * (2 * kKLoads + i * kVLoads + j), row + j * 64, is_seen(key),
                     policy_);
      }
    }
  }
  __device__ void take_keys(const uint4* stage) {
#pragma unroll
    for (int i = 0; i < 2 * kKLoads; ++i) {
      k_[i / kKLoads][i % kKLoads] = stage[i * 32 + threadIdx.x % 32];
    }
  }
  __device__ void take_values(const uint4* stage) {
#pragma unroll
    for (int i = 0; i < 4 * kVLoads; ++i) {
      v_[i / kVLoads][i % kVLoads] = stage[(2 * kKLoads + i) * 32 + threadIdx.x % 32];
    }
  }

  /// Logits of the keys taken.
  __device__ void score(int first_key, const Splits& splits) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float(&logits)[4] = logits_[half];
      logits[0] = logits[1] = logits[2] = logits[3] = 0;
#pragma unroll
      for (int step = 0; step < 2 * kKLoads; ++step) {
        const int j = step / 2, w = step % 2 * 2;
        const uint32_t a[4] = {word(q_[0][j], w), word(q_[1][j], w), word(q_[0][j], w + 1),
                               word(q_[1][j], w + 1)};
        ptx::mma_m16n8k16<Element>(logits, a, word(k_[half][j], w), word(k_[half][j], w + 1));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + 8 * half + quad() * 2 + i % 2;
        const bool is_seen = splits.begin <= key && key < splits.end;
        logits[i] = is_seen ? logits[i] * scale_log2_ : -INFINITY;
      }
    }
  }

  /// Weights of the logits, and with them the values taken onto the output.
  __device__ void add() {
    float weights[2][4];
#pragma unroll
    for (int side = 0; side < 2; ++side) {  // heads group() and group() + 8
      float largest = fmaxf(fmaxf(logits_[0][2 * side], logits_[0][2 * side + 1]),
                            fmaxf(logits_[1][2 * side], logits_[1][2 * side + 1]));
      largest = fmaxf(maximum_[side], ptx::quad_max(largest));
      const float from = largest == -INFINITY ? 0.f : largest;
      const float shrink = ptx::exp2_approx(maximum_[side] - from);
      maximum_[side] = largest;
      sum_[side] *= shrink;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float weight = ptx::exp2_approx(logits_[half][2 * side + i] - from);
          weights[half][2 * side + i] = weight;
          sum_[side] += weight;
        }
      }
#pragma unroll
      for (auto& tile : out_) {
        tile[2 * side] *= shrink;
        tile[2 * side + 1] *= shrink;
      }
    }
    const uint32_t a[4] = {ptx::pack2<Element>(weights[0][0], weights[0][1]),
                           ptx::pack2<Element>(weights[0][2], weights[0][3]),
                           ptx::pack2<Element>(weights[1][0], weights[1][1]),
                           ptx::pack2<Element>(weights[1][2], weights[1][3])};
#pragma unroll
    for (int tile = 0; tile < kHeadDim / 8; ++tile) {
      const int j = tile / 8, w = tile % 8 / 2;
      const uint32_t halves = tile % 2 == 0 ? 0x5410 : 0x7632;
      ptx::mma_m16n8k16<Element>(out_[tile], a,
                                 __byte_perm(word(v_[0][j], w), word(v_[1][j], w), halves),
                                 __byte_perm(word(v_[2][j], w), word(v_[3][j], w), halves));
    }
  }

  /// Leaves what was found of `num_heads` heads in shared memory, out not normalised; its columns
  /// as place_of() says, so that a warp's stores meet no bank twice.
  __device__ void store(int num_heads, float (*out)[kPaddedDim], float* maximum, float* sum) const {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int head = group() + 8 * side;
      const float total = ptx::quad_sum(sum_[side]);
      if (head >= num_heads) continue;
      if (quad() == 0) {
        maximum[head] = maximum_[side];
        sum[head] = total;
      }
#pragma unroll
      for (int tile = 0; tile < kHeadDim / 8; ++tile) {
        *reinterpret_cast<float2*>(&out[head][tile * 8 + quad() * 2]) =
            make_float2(out_[tile][2 * side], out_[tile][2 * side + 1]);
      }
    }
  }
  /// Of a column: a tile of mma.sync holds every eighth of 64.
  __device__ static int place_of(int column) {
    return column / 64 * 64 + column % 8 * 8 + column % 64 / 8;
  }

 private:
  __device__ static int group() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ static int quad() { return static_cast<int>(threadIdx.x) % 4; }
  __device__ static uint4 load(const Element* from) {
    return *reinterpret_cast<const uint4*>(from);
  }

  float scale_log2_;
  uint64_t policy_ = ptx::evict_first_policy();
  uint4 q_[2][kKLoads], k_[2][kKLoads], v_[4][kVLoads];
  float logits_[2][4];
  float out_[kHeadDim / 8][4] = {};
  float maximum_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {};
};

/// What a warp has asked for and not yet taken, and at the end what it has found.
template <typename State>
union WarpMemory {
  uint4 stages[kStages][State::kStageLoads];
  float out[kHeads][State::kPaddedDim];
};

template <typename Element, int kHeadDim>
__global__ __launch_bounds__(kThreads, 1) void decode_kernel(const DecodeParams p) {
  using State = WarpState<Element, kHeadDim>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  auto* memories = reinterpret_cast<WarpMemory<State>*>(dynamic);
  __shared__ float maximum[kWarps][kHeads], sum[kWarps][kHeads];
  ptx::let_next_grid_begin();
  if (!p.only_last_key_is_new) ptx::wait_for_previous_grid();
  const PrefillParams& common = p.common;
  const int num_kv_heads = common.num_q_heads / common.group_size;
  const auto unit = static_cast<int>(blockIdx.y);
  const auto split = static_cast<int>(blockIdx.x);
  const int q_row = unit / num_kv_heads;
  const int kv_head = unit % num_kv_heads;
  const Splits splits(p, q_row);
  if (split >= splits.count()) {
    if (split == 0) ptx::wait_for_previous_grid();  // no kernel behind overtakes the one in front
    return;
  }

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_head = kv_head * common.group_size;
  const Rows<Element> keys(common, p.k, splits.seq, kv_head);
  const Rows<Element> values(common, p.v, splits.seq, kv_head);
  State state(common.scale_log2);
  const int end = min((split + 1) * splits.tiles_each, splits.num_tiles);
  const auto first_key = [&](int tile) { return (splits.first_tile + tile) * kTileKeys; };
  auto& stages = memories[warp].stages;
  int asked = split * splits.tiles_each + warp;
  const auto ask = [&](int stage) {
    if (asked < end) state.ask(keys, values, first_key(asked), splits, stages[stage]);
    ptx::commit_copies();  // an empty group too: they are counted
    asked += kWarps;
  };
  const auto ask_first = [&] {
    for (int i = 0; i < kStages; ++i) ask(i);
  };
  // The last tile has the new key; the others may be asked for while that is made.
  const bool asks_early =
      p.only_last_key_is_new && asked + (kStages - 1) * kWarps < splits.num_tiles - 1;
  if (asks_early) ask_first();
  ptx::wait_for_previous_grid();
  if (!asks_early) ask_first();
  state.take_queries(
      static_cast<const Element*>(p.q) + q_row * p.q_row_stride + first_head * p.q_head_stride,
      p.q_head_stride, common.group_size);
  int stage = 0;
  for (int tile = split * splits.tiles_each + warp; tile < end; tile += kWarps) {
    ptx::wait_for_copies_but<kStages - 1>();
    state.take_keys(stages[stage]);
    state.score(first_key(tile), splits);
    state.take_values(stages[stage]);
    state.add();
    ask(stage);
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  ptx::wait_for_copies_but<0>();
  __syncwarp();
  state.store(common.group_size, memories[warp].out, maximum[warp], sum[warp]);
  __syncthreads();

  constexpr float kLn2 = 0.693147180559945f;
  const int64_t piece = int64_t{unit} * p.max_splits + split;
  for (int i = static_cast<int>(threadIdx.x); i < common.group_size * kHeadDim; i += kThreads) {
    const int head = i / kHeadDim;
    const int place = State::place_of(i % kHeadDim);
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, maximum[w][head]);
    float total = 0, result = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight =
          maximum[w][head] == -INFINITY ? 0.f : ptx::exp2_approx(maximum[w][head] - top);
      total = fmaf(weight, sum[w][head], total);
      result = fmaf(weight, memories[w].out[head][place], result);
      // What is NaN without a maximum: logits that are all NaN.
      if (isnan(sum[w][head])) total = result = NAN;
    }
    const int64_t row = piece * common.group_size + head;
    common.partial_out[row * kHeadDim + i % kHeadDim] = total == 0.f ? 0.f : result / total;
    if (i % kHeadDim == 0) {
      common.partial_lse[row] = total == 0.f ? -INFINITY : top * kLn2 + __logf(total);
    }
  }
}

template <typename Element, int kHeadDim>
__global__ __launch_bounds__(kJoinThreads) void join_kernel(const DecodeParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const auto q_row = static_cast<int>(blockIdx.x);
  const auto head = static_cast<int>(blockIdx.y);
  const int num_kv_heads = p.common.num_q_heads / p.common.group_size;
  const int64_t unit = int64_t{q_row} * num_kv_heads + head / p.common.group_size;
  join_pieces<Element, kHeadDim>(p.common, q_row, head, unit * p.max_splits,
                                 Splits(p, q_row).count());
}

template <typename Element, int kHeadDim>
void launch(const DecodeParams& p, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(p.common.total_q);
  const auto heads = static_cast<unsigned>(p.common.num_q_heads);
  const dim3 grid(static_cast<unsigned>(p.max_splits),
                  rows * heads / static_cast<unsigned>(p.common.group_size));
  const auto kernel = decode_kernel<Element, kHeadDim>;
  constexpr size_t kSharedBytes = kWarps * sizeof(WarpMemory<WarpState<Element, kHeadDim>>);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kSharedBytes)),
             "configuring decode_kernel");
  launch_overlapping(kernel, grid, kThreads, kSharedBytes, stream, "launching decode_kernel", p);
  launch_overlapping(join_kernel<Element, kHeadDim>, dim3(rows, heads), kJoinThreads, 0, stream,
                     "launching join_kernel", p);
}

}  // namespace

void launch_decode(const DecodeParams& params, DType dtype, int head_dim, cudaStream_t stream) {
  if (dtype == DType::kBF16) {
    (head_dim == 64 ? launch<__nv_bfloat16, 64> : launch<__nv_bfloat16, 128>)(params, stream);
  } else {
    (head_dim == 64 ? launch<__half, 64> : launch<__half, 128>)(params, stream);
  }
}

}  // namespace fovea::cuda
