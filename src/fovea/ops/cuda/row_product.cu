// The product of one row with a matrix, as decode has it, bound by reading the matrix. One CTA per
// SM takes a run of outputs and cuts the weights of their features into pieces; each warp keeps a
// few pieces in flight by bulk copies, also across features, and asks for its first one before the
// kernel in front has ended. A norm in front costs no kernel of its own: each CTA reads the row and
// the norm's weights, and the norm's factor, one number, multiplies the sums.
#include "fovea/ops/cuda/gate.cuh"
#include "fovea/ops/cuda/qkv_params.cuh"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/row_product.h"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/async_copy.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {
namespace {

using After = RowProduct::After;

constexpr int kSlots = 6;  // pieces that a warp has in flight
/// Of these, what a warp asks for before it has the row. More would keep the memory busy longer,
/// but the loads of the row, and of small kernels that still run, stand in the queue behind it.
constexpr int kEarlySlots = 1;
/// Elements. Small enough that a CTA's warps end together also where it has few features.
constexpr int64_t kMaxPiece = 1792;
constexpr int64_t kMaxSharedBytes = 227 * 1024 - 1024;  // a CTA has 227 KB, barriers are in it too

/// Codes of f8 are half the bytes and more work each.
template <typename Weight>
constexpr int kWarps = sizeof(Weight) == 1 ? 16 : 8;
template <typename Weight>
constexpr int kThreads = kWarps<Weight> * 32;

struct ProductParams {
  const void* in;  // bf16; f32 in front of a norm
  NormInFront norm;
  const void* weights;  // [out_features, in_features]
  const float* scales;  // of f8: [out_features / 128, in_features / 128]
  int in_features;
  int outputs, outputs_per_cta;
  int pair_distance;  // 0: an output is a feature; else of two so far apart, see Features
  int pieces, piece;  // of a feature; elements of one
  After after;
  bool stores_f32;
  GateFunction gate;
  void* out;
  QkvParams qkv;
};

/// Outputs of a CTA, and the features that they are made of: one each, or the first features of
/// all pairs and then the second ones.
struct Features {
  __device__ explicit Features(const ProductParams& p)
      : first_output(static_cast<int>(blockIdx.x) * p.outputs_per_cta),
        num_outputs(min(p.outputs_per_cta, p.outputs - first_output)),
        count(p.pair_distance > 0 ? 2 * num_outputs : num_outputs),
        distance(p.pair_distance) {}
  /// Of the whole product's features.
  __device__ int number(int feature) const {
    if (distance == 0) return first_output + feature;
    const int is_second = feature >= num_outputs;
    const int pair = first_output + feature - is_second * num_outputs;
    return pair / distance * 2 * distance + pair % distance + is_second * distance;
  }
  int first_output, num_outputs, count, distance;
};

/// Rows of scales that a CTA's features may lie in.
__host__ __device__ inline int scale_rows_per_cta(int features_per_cta) {
  return (features_per_cta + 126) / 128 + 1;
}

/// Shared memory: slots of pieces, then the input, then sums of pieces, then scales.
template <typename Weight>
int64_t shared_bytes(const ProductParams& p) {
  const int64_t slots =
      int64_t{kWarps<Weight>} * kSlots * p.piece * static_cast<int64_t>(sizeof(Weight));
  const int64_t features = int64_t{p.outputs_per_cta} * (p.pair_distance > 0 ? 2 : 1);
  const int64_t scales = p.scales == nullptr ? 0
                                             : int64_t{scale_rows_per_cta(p.outputs_per_cta)} *
                                                   (p.in_features / 128) * 4;
  return slots + int64_t{p.in_features} * 2 + features * p.pieces * 4 + scales;
}

/// A warp's pieces on their way.
template <typename Weight>
class PieceStream {
 public:
  __device__ PieceStream(const ProductParams& p, const Features& features, uint32_t slots,
                         uint32_t barriers)
      : p_(p),
        features_(features),
        num_pieces_(features.count * p.pieces),
        slots_(slots),
        barriers_(barriers),
        policy_(ptx::evict_first_policy()) {
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kSlots; ++i) ptx::mbarrier_init(barrier(i), 1);
      ptx::mbarrier_init_fence();
      for (int i = 0; i < kEarlySlots; ++i) ask(i);
    }
    __syncwarp();
  }

  /// Fills the slots. What is asked for from now on takes nobody's turn.
  __device__ void ask_rest() const {
    if (threadIdx.x % 32 == 0) {
      for (int i = kEarlySlots; i < kSlots; ++i) ask(i);
    }
  }

  /// Of the warp's i-th piece.
  __device__ int piece(int i) const {
    return static_cast<int>(threadIdx.x) / 32 + i * kWarps<Weight>;
  }
  __device__ bool has(int i) const { return piece(i) < num_pieces_; }
  __device__ int feature(int i) const { return piece(i) / p_.pieces; }
  __device__ int column(int i) const { return piece(i) % p_.pieces * p_.piece; }
  __device__ int size(int i) const { return min(p_.piece, p_.in_features - column(i)); }
  __device__ void wait(int i) const {
    ptx::mbarrier_wait(barrier(i), static_cast<uint32_t>(i / kSlots % 2));
  }
  /// By one thread, when the slot is free.
  __device__ void ask(int i) const {
    if (!has(i)) return;
    const auto bytes = static_cast<uint32_t>(size(i)) * uint32_t{sizeof(Weight)};
    const Weight* from = static_cast<const Weight*>(p_.weights) +
                         int64_t{features_.number(feature(i))} * p_.in_features + column(i);
    ptx::mbarrier_arrive_expect(barrier(i), bytes);
    ptx::bulk_load(slots_ + static_cast<uint32_t>(i % kSlots * p_.piece) * sizeof(Weight), from,
                   bytes, barrier(i), policy_);
  }

 private:
  __device__ uint32_t barrier(int i) const {
    return barriers_ + static_cast<uint32_t>(i % kSlots) * 8;
  }
  const ProductParams& p_;
  const Features& features_;
  int num_pieces_;
  uint32_t slots_, barriers_;
  uint64_t policy_;
};

/// Sum over a piece that begins at `column`; every lane gets it. `scales` are those of the row.
template <typename Weight>
__device__ inline float piece_dot(const Weight* weights, const __nv_bfloat16* x, int size,
                                  const float* scales, int column) {
  float sums[2] = {};
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) % 32 * 8; at < size; at += 32 * 8) {
    const Floats<8> a = load<8>(weights + at);
    const Floats<8> b = load<8>(x + at);
    if constexpr (sizeof(Weight) == 1) {
      float terms[2] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i) terms[i % 2] = fmaf(a.values[i], b.values[i], terms[i % 2]);
      sums[0] = fmaf(terms[0] + terms[1], scales[(column + at) / 128], sums[0]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i % 2] = fmaf(a.values[i], b.values[i], sums[i % 2]);
    }
  }
  float sum = sums[0] + sums[1];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  return sum;
}

/// Reads the row into `x`, times the weights of the norm in front of it. Returns the thread's share
/// of the sum of squares that the norm wants.
template <int kThreads>
__device__ float read_row(const ProductParams& p, __nv_bfloat16* x) {
  const int first = static_cast<int>(threadIdx.x) * 8;
  float squares = 0;
  if (p.norm.weight == nullptr) {
    // Copies need no registers, so that all are under way at once.
    const auto* in = static_cast<const __nv_bfloat16*>(p.in);
    for (int at = first; at < p.in_features; at += kThreads * 8) {
      ptx::copy_16(ptx::shared_address(x + at), in + at);
    }
    ptx::commit_copies();
    ptx::wait_for_copies_but<0>();
    return squares;
  }
  const auto* in = static_cast<const float*>(p.in);
#pragma unroll 4
  for (int at = first; at < p.in_features; at += kThreads * 8) {
    Floats<8> row = load<8>(in + at);
    const Floats<8> weight = load<8>(p.norm.weight + at);
    squares += sum_of_squares(row);
#pragma unroll
    for (int i = 0; i < 8; ++i) row.values[i] *= weight.values[i];
    store(row, x + at);
  }
  return squares;
}

/// A thread's output of q, k or v: two columns of a head, which RoPE turns together. What it needs
/// besides the sums is asked for early.
class QkvPair {
 public:
  QkvPair() = default;
  __device__ QkvPair(const QkvParams& p, int pair) : half_(p.head_dim / 2) {
    const int head = pair / half_;
    const int column = pair % half_;
    const QkvRow row(p, 0);
    to_ = row.at(head) + column;
    is_turned_ = !row.is_v(head);
    if (is_turned_) {
      cos_ = p.cos[column];
      sin_ = p.sin[column];
    }
    if (p.bias != nullptr) {
      bias_[0] = p.bias[head * p.head_dim + column];
      bias_[1] = p.bias[head * p.head_dim + column + half_];
    }
  }
  __device__ void store(float low, float high) const {
    const float a = low + bias_[0], b = high + bias_[1];
    to_[0] = __float2bfloat16(is_turned_ ? turned(a, b, cos_, -sin_) : a);
    to_[half_] = __float2bfloat16(is_turned_ ? turned(b, a, cos_, sin_) : b);
  }

 private:
  int half_ = 0;
  __nv_bfloat16* to_ = nullptr;
  bool is_turned_ = false;
  float cos_ = 0, sin_ = 0;
  float bias_[2] = {};
};

/// Of the norm in front, from the warps' sums of squares; 1 without a norm.
template <int kWarps>
__device__ float norm_factor(const ProductParams& p, const float (&squares)[kWarps]) {
  if (p.norm.weight == nullptr) return 1;
  float sum = 0;
  for (const float of_warp : squares) sum += of_warp;
  const float mean = sum / static_cast<float>(p.in_features);
  if (blockIdx.x == 0 && threadIdx.x == 0 && p.norm.noted != nullptr && !isfinite(mean)) {
    atomicMin(p.norm.noted, p.norm.layer);
  }
  return 1.0f / sqrtf(mean + p.norm.eps);
}

template <typename Weight>
__global__ __launch_bounds__(kThreads<Weight>,
                             1) void row_product_kernel(const __grid_constant__ ProductParams p) {
  constexpr bool kIsF8 = sizeof(Weight) == 1;
  constexpr int kThreads = cuda::kThreads<Weight>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ uint64_t barriers[kWarps<Weight> * kSlots];
  __shared__ float squares[kWarps<Weight>];
  const Features features(p);
  const int slots_of_warp = kSlots * p.piece;
  auto* all_slots = reinterpret_cast<Weight*>(dynamic);
  auto* x = reinterpret_cast<__nv_bfloat16*>(all_slots + kWarps<Weight> * slots_of_warp);
  auto* sums = reinterpret_cast<float*>(x + p.in_features);
  float* scales = sums + features.count * p.pieces;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const Weight* slots = all_slots + warp * slots_of_warp;
  const PieceStream<Weight> stream(p, features, ptx::shared_address(slots),
                                   ptx::shared_address(barriers + warp * kSlots));
  const int scales_per_row = p.in_features / 128;
  const int first_scales = features.first_output / 128;
  if constexpr (kIsF8) {
    const int rows = (features.first_output + features.count - 1) / 128 - first_scales + 1;
    for (int i = thread; i < rows * scales_per_row; i += kThreads) {
      scales[i] = p.scales[first_scales * scales_per_row + i];
    }
  }
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  const bool is_qkv = p.after == After::kQkv && thread < features.num_outputs;
  const QkvPair pair = is_qkv ? QkvPair(p.qkv, features.first_output + thread) : QkvPair();
  float squares_of_warp = read_row<kThreads>(p, x);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) squares_of_warp += __shfl_xor_sync(~0u, squares_of_warp, o);
  if (thread % 32 == 0) squares[warp] = squares_of_warp;
  __syncthreads();
  stream.ask_rest();
  for (int i = 0; stream.has(i); ++i) {
    stream.wait(i);
    const int scale_row = (features.first_output + stream.feature(i)) / 128 - first_scales;
    const float sum =
        piece_dot(slots + i % kSlots * p.piece, x + stream.column(i), stream.size(i),
                  kIsF8 ? scales + scale_row * scales_per_row : nullptr, stream.column(i));
    __syncwarp();
    if (thread % 32 == 0) {
      sums[stream.piece(i)] = sum;
      stream.ask(i + kSlots);
    }
  }
  const float factor = norm_factor(p, squares);
  __syncthreads();
  const auto sum_of = [&](int feature) {
    float sum = 0;
    for (int i = 0; i < p.pieces; ++i) sum += sums[feature * p.pieces + i];
    return sum * factor;
  };
  for (int i = thread; i < features.num_outputs; i += kThreads) {
    const float sum = sum_of(i);
    auto* float_out = static_cast<float*>(p.out) + features.first_output + i;
    auto* out = static_cast<__nv_bfloat16*>(p.out) + features.first_output + i;
    if (p.after == After::kQkv) {
      pair.store(sum, sum_of(features.num_outputs + i));
    } else if (p.after == After::kGate) {
      *out = __float2bfloat16(gated(p.gate, sum, sum_of(features.num_outputs + i)));
    } else if (p.after == After::kAdd) {
      atomicAdd(float_out, sum);  // nothing waits for what was there
    } else if (p.stores_f32) {
      *float_out = sum;
    } else {
      *out = __float2bfloat16(sum);
    }
  }
}

template <typename Weight>
bool launch(const ProductParams& p, cudaStream_t stream) {
  if (shared_bytes<Weight>(p) > kMaxSharedBytes) return false;
  const auto kernel = row_product_kernel<Weight>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kMaxSharedBytes)),
             "configuring row_product_kernel");
  launch_overlapping(kernel, blocks_for(p.outputs, p.outputs_per_cta), kThreads<Weight>,
                     static_cast<size_t>(shared_bytes<Weight>(p)), stream,
                     "launching row_product_kernel", p);
  return true;
}

}  // namespace

bool launch_row_product(const RowProduct& product, int num_ctas, cudaStream_t stream) {
  constexpr int64_t kStep = 16;  // a piece of f8 begins at a multiple of 16 bytes too
  const PackedWeights& weights = *product.weights;
  const bool is_f8 = weights.dtype() == DType::kF8E4M3;
  const bool is_gate = product.after == After::kGate, is_qkv = product.after == After::kQkv;
  ProductParams p{};
  p.in = product.in.data;
  p.norm = product.norm;
  p.weights = weights.view().data;
  p.scales = weights.scales().as<const float>();
  p.in_features = static_cast<int>(weights.in_features());
  p.outputs = static_cast<int>(weights.out_features() / (is_gate || is_qkv ? 2 : 1));
  p.outputs_per_cta = static_cast<int>(blocks_for(p.outputs, num_ctas));
  p.pieces = static_cast<int>(blocks_for(p.in_features, kMaxPiece));
  p.piece = static_cast<int>(blocks_for(p.in_features, p.pieces * kStep) * kStep);
  p.after = product.after;
  p.stores_f32 = product.out.dtype == DType::kF32;
  p.gate = product.gate;
  p.out = product.out.data;
  if (is_gate) p.pair_distance = p.outputs;
  if (is_qkv) {
    p.qkv = QkvParams(*product.qkv);
    p.pair_distance = p.qkv.head_dim / 2;
    if (p.outputs_per_cta > kThreads<__nv_bfloat16>) return false;
  }
  if (is_f8) return p.pair_distance == 0 && launch<Float8E4M3>(p, stream);
  return launch<__nv_bfloat16>(p, stream);
}

}  // namespace fovea::cuda
