// The product of one row with a matrix, as decode has it, bound by reading the matrix. One CTA per
// SM takes a run of output features and cuts their weights into pieces; each warp keeps a few
// pieces in flight by bulk copies, also across features, and asks for the first ones before the
// kernel in front has ended.
#include <algorithm>
#include <type_traits>

#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/ops/cuda/vectors.cuh"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"
#include "fovea/tensor/cuda/ptx/mbarrier.h"
#include "fovea/tensor/cuda/ptx/tma.h"

namespace fovea::cuda {
namespace {

constexpr int kSlots = 6;  // pieces that a warp has in flight
/// Elements. Small enough that a CTA's warps end together also where it has few features.
constexpr int64_t kMaxPiece = 1792;
constexpr int64_t kMaxSharedBytes = 227 * 1024 - 1024;  // a CTA has 227 KB, barriers are in it too

/// Codes of f8 are half the bytes and more work each.
template <typename Weight>
constexpr int kWarps = sizeof(Weight) == 1 ? 16 : 8;
template <typename Weight>
constexpr int kThreads = kWarps<Weight> * 32;

struct ProductParams {
  const __nv_bfloat16* in;
  const void* weights;  // [out_features, in_features]
  const float* scales;  // of f8: [out_features / 128, in_features / 128]
  int in_features, out_features;
  int features_per_cta;
  int pieces, piece;  // of a feature; elements of one
  void* out;
  bool add;
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
  const int64_t scales = p.scales == nullptr ? 0
                                             : int64_t{scale_rows_per_cta(p.features_per_cta)} *
                                                   (p.in_features / 128) * 4;
  return slots + int64_t{p.in_features} * 2 + int64_t{p.features_per_cta} * p.pieces * 4 + scales;
}

/// A warp's pieces on their way.
template <typename Weight>
class PieceStream {
 public:
  __device__ PieceStream(const ProductParams& p, int first_feature, int num_pieces, uint32_t slots,
                         uint32_t barriers)
      : p_(p),
        weights_(static_cast<const Weight*>(p.weights) + int64_t{first_feature} * p.in_features),
        num_pieces_(num_pieces),
        slots_(slots),
        barriers_(barriers) {
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kSlots; ++i) ptx::mbarrier_init(barrier(i), 1);
      ptx::mbarrier_init_fence();
      for (int i = 0; i < kSlots; ++i) ask(i);
    }
    __syncwarp();
  }

  /// Of the warp's i-th piece.
  __device__ int piece(int i) const {
    return static_cast<int>(threadIdx.x) / 32 + i * kWarps<Weight>;
  }
  __device__ int feature(int i) const { return piece(i) / p_.pieces; }
  __device__ int column(int i) const { return piece(i) % p_.pieces * p_.piece; }
  __device__ int size(int i) const { return min(p_.piece, p_.in_features - column(i)); }
  __device__ uint32_t slot(int i) const {
    return slots_ + static_cast<uint32_t>(i % kSlots * p_.piece) * sizeof(Weight);
  }
  __device__ void wait(int i) const {
    ptx::mbarrier_wait(barrier(i), static_cast<uint32_t>(i / kSlots % 2));
  }
  /// By one thread, when the slot is free.
  __device__ void ask(int i) const {
    if (piece(i) >= num_pieces_) return;
    const auto bytes = static_cast<uint32_t>(size(i)) * uint32_t{sizeof(Weight)};
    const Weight* from = weights_ + int64_t{feature(i)} * p_.in_features + column(i);
    ptx::mbarrier_arrive_expect(barrier(i), bytes);
    ptx::bulk_load(slot(i), from, bytes, barrier(i));
  }

 private:
  __device__ uint32_t barrier(int i) const {
    return barriers_ + static_cast<uint32_t>(i % kSlots) * 8;
  }
  const ProductParams& p_;
  const Weight* weights_;
  int num_pieces_;
  uint32_t slots_, barriers_;
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

template <typename Weight, typename Out>
__global__ __launch_bounds__(kThreads<Weight>, 1) void row_product_kernel(const ProductParams p) {
  constexpr bool kIsF8 = sizeof(Weight) == 1;
  constexpr int kThreads = cuda::kThreads<Weight>;
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ uint64_t barriers[kWarps<Weight> * kSlots];
  const int slots_of_warp = kSlots * p.piece;
  auto* all_slots = reinterpret_cast<Weight*>(dynamic);
  auto* x = reinterpret_cast<__nv_bfloat16*>(all_slots + kWarps<Weight> * slots_of_warp);
  auto* sums = reinterpret_cast<float*>(x + p.in_features);
  float* scales = sums + p.features_per_cta * p.pieces;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int first_feature = static_cast<int>(blockIdx.x) * p.features_per_cta;
  const int num_features = min(p.features_per_cta, p.out_features - first_feature);
  const Weight* slots = all_slots + warp * slots_of_warp;
  const PieceStream<Weight> stream(p, first_feature, num_features * p.pieces,
                                   ptx::shared_address(slots),
                                   ptx::shared_address(barriers + warp * kSlots));
  const int scales_per_row = p.in_features / 128;
  if constexpr (kIsF8) {
    const int rows = (first_feature + num_features - 1) / 128 - first_feature / 128 + 1;
    for (int i = thread; i < rows * scales_per_row; i += kThreads) {
      scales[i] = p.scales[first_feature / 128 * scales_per_row + i];
    }
  }
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  for (int at = thread * 8; at < p.in_features; at += kThreads * 8) {
    *reinterpret_cast<uint4*>(x + at) = *reinterpret_cast<const uint4*>(p.in + at);
  }
  __syncthreads();
  for (int i = 0; stream.piece(i) < num_features * p.pieces; ++i) {
    stream.wait(i);
    const int scale_row = (first_feature + stream.feature(i)) / 128 - first_feature / 128;
    const float sum =
        piece_dot(slots + i % kSlots * p.piece, x + stream.column(i), stream.size(i),
                  kIsF8 ? scales + scale_row * scales_per_row : nullptr, stream.column(i));
    __syncwarp();
    if (thread % 32 == 0) {
      sums[stream.piece(i)] = sum;
      stream.ask(i + kSlots);
    }
  }
  __syncthreads();
  for (int feature = thread; feature < num_features; feature += kThreads) {
    float sum = 0;
    for (int i = 0; i < p.pieces; ++i) sum += sums[feature * p.pieces + i];
    Out* out = static_cast<Out*>(p.out) + first_feature + feature;
    if constexpr (std::is_same_v<Out, float>) {
      *out = p.add ? *out + sum : sum;
    } else {
      *out = __float2bfloat16(sum);
    }
  }
}

template <typename Weight, typename Out>
void launch(const ProductParams& p, cudaStream_t stream) {
  const auto kernel = row_product_kernel<Weight, Out>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kMaxSharedBytes)),
             "configuring row_product_kernel");
  launch_overlapping(kernel, blocks_for(p.out_features, p.features_per_cta), kThreads<Weight>,
                     static_cast<size_t>(shared_bytes<Weight>(p)), stream,
                     "launching row_product_kernel", p);
}

template <typename Weight>
bool launch_if_it_fits(const ProductParams& p, DType out, cudaStream_t stream) {
  if (shared_bytes<Weight>(p) > kMaxSharedBytes) return false;
  (out == DType::kF32 ? launch<Weight, float> : launch<Weight, __nv_bfloat16>)(p, stream);
  return true;
}

}  // namespace

bool launch_row_product(const TensorView& in, const PackedWeights& weights, const TensorView& out,
                        bool add, int num_ctas, cudaStream_t stream) {
  constexpr int64_t kStep = 16;  // a piece of f8 begins at a multiple of 16 bytes too
  ProductParams p{};
  p.in = in.as<const __nv_bfloat16>();
  p.weights = weights.view().data;
  p.scales = weights.scales().as<const float>();
  p.in_features = static_cast<int>(weights.in_features());
  p.out_features = static_cast<int>(weights.out_features());
  p.features_per_cta = static_cast<int>(blocks_for(p.out_features, num_ctas));
  p.pieces = static_cast<int>(blocks_for(p.in_features, kMaxPiece));
  p.piece = static_cast<int>(blocks_for(p.in_features, p.pieces * kStep) * kStep);
  p.out = out.data;
  p.add = add;
  return weights.dtype() == DType::kF8E4M3 ? launch_if_it_fits<Float8E4M3>(p, out.dtype, stream)
                                           : launch_if_it_fits<__nv_bfloat16>(p, out.dtype, stream);
}

}  // namespace fovea::cuda
