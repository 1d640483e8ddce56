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

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kSlots = 3;  // pieces that a warp has in flight
constexpr int64_t kMaxPiece = 3584;
constexpr int64_t kMaxSharedBytes = 227 * 1024 - 256;  // a CTA has 227 KB, barriers are in it too

struct ProductParams {
  const __nv_bfloat16* in;
  const __nv_bfloat16* weights;  // [out_features, in_features]
  int in_features, out_features;
  int features_per_cta;
  int pieces, piece;  // of a feature; elements of one
  void* out;
  bool add;
};

/// Shared memory: slots of pieces, then the input, then sums of pieces.
int64_t slot_bytes(const ProductParams& p) { return int64_t{kWarps} * kSlots * p.piece * 2; }
int64_t shared_bytes(const ProductParams& p) {
  return slot_bytes(p) + int64_t{p.in_features} * 2 + int64_t{p.features_per_cta} * p.pieces * 4;
}

/// A warp's pieces on their way.
class PieceStream {
 public:
  __device__ PieceStream(const ProductParams& p, int first_feature, int num_pieces, uint32_t slots,
                         uint32_t barriers)
      : p_(p),
        weights_(p.weights + int64_t{first_feature} * p.in_features),
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
  __device__ int piece(int i) const { return static_cast<int>(threadIdx.x) / 32 + i * kWarps; }
  __device__ int column(int i) const { return piece(i) % p_.pieces * p_.piece; }
  __device__ int size(int i) const { return min(p_.piece, p_.in_features - column(i)); }
  __device__ uint32_t slot(int i) const {
    return slots_ + static_cast<uint32_t>(i % kSlots * p_.piece * 2);
  }
  __device__ void wait(int i) const {
    ptx::mbarrier_wait(barrier(i), static_cast<uint32_t>(i / kSlots % 2));
  }
  /// By one thread, when the slot is free.
  __device__ void ask(int i) const {
    if (piece(i) >= num_pieces_) return;
    const auto bytes = static_cast<uint32_t>(size(i) * 2);
    const __nv_bfloat16* from =
        weights_ + int64_t{piece(i) / p_.pieces} * p_.in_features + column(i);
    ptx::mbarrier_arrive_expect(barrier(i), bytes);
    ptx::bulk_load(slot(i), from, bytes, barrier(i));
  }

 private:
  __device__ uint32_t barrier(int i) const {
    return barriers_ + static_cast<uint32_t>(i % kSlots) * 8;
  }
  const ProductParams& p_;
  const __nv_bfloat16* weights_;
  int num_pieces_;
  uint32_t slots_, barriers_;
};

/// Sum over a piece; every lane gets it.
__device__ inline float piece_dot(const __nv_bfloat16* weights, const __nv_bfloat16* x, int size) {
  float sums[2] = {};
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) % 32 * 8; at < size; at += 32 * 8) {
    const Floats<8> a = load<8>(weights + at);
    const Floats<8> b = load<8>(x + at);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i % 2] = fmaf(a.values[i], b.values[i], sums[i % 2]);
  }
  float sum = sums[0] + sums[1];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  return sum;
}

template <typename Out>
__global__ __launch_bounds__(kThreads, 1) void row_product_kernel(const ProductParams p) {
  extern __shared__ __align__(128) uint8_t dynamic[];
  __shared__ uint64_t barriers[kWarps * kSlots];
  auto* x = reinterpret_cast<__nv_bfloat16*>(dynamic + kWarps * kSlots * p.piece * 2);
  auto* sums = reinterpret_cast<float*>(x + p.in_features);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int first_feature = static_cast<int>(blockIdx.x) * p.features_per_cta;
  const int num_features = min(p.features_per_cta, p.out_features - first_feature);
  uint8_t* slots = dynamic + warp * kSlots * p.piece * 2;
  const PieceStream stream(p, first_feature, num_features * p.pieces, ptx::shared_address(slots),
                           ptx::shared_address(barriers + warp * kSlots));
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  for (int at = thread * 8; at < p.in_features; at += kThreads * 8) {
    *reinterpret_cast<uint4*>(x + at) = *reinterpret_cast<const uint4*>(p.in + at);
  }
  __syncthreads();
  for (int i = 0; stream.piece(i) < num_features * p.pieces; ++i) {
    stream.wait(i);
    const auto* weights = reinterpret_cast<const __nv_bfloat16*>(slots + i % kSlots * p.piece * 2);
    const float sum = piece_dot(weights, x + stream.column(i), stream.size(i));
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

template <typename Out>
void launch(const ProductParams& p, cudaStream_t stream) {
  check_cuda(
      cudaFuncSetAttribute(row_product_kernel<Out>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(kMaxSharedBytes)),
      "configuring row_product_kernel");
  launch_overlapping(row_product_kernel<Out>, blocks_for(p.out_features, p.features_per_cta),
                     kThreads, static_cast<size_t>(shared_bytes(p)), stream,
                     "launching row_product_kernel", p);
}

}  // namespace

bool launch_row_product(const TensorView& in, const TensorView& weights, const TensorView& out,
                        bool add, int num_ctas, cudaStream_t stream) {
  ProductParams p{};
  p.in = in.as<const __nv_bfloat16>();
  p.weights = weights.as<const __nv_bfloat16>();
  p.in_features = static_cast<int>(weights.shape[1]);
  p.out_features = static_cast<int>(weights.shape[0]);
  p.features_per_cta = static_cast<int>(blocks_for(p.out_features, num_ctas));
  p.pieces = static_cast<int>(blocks_for(p.in_features, kMaxPiece));
  p.piece = static_cast<int>(blocks_for(p.in_features, int64_t{p.pieces} * 8)) * 8;
  p.out = out.data;
  p.add = add;
  if (shared_bytes(p) > kMaxSharedBytes) return false;
  if (out.dtype == DType::kF32) {
    launch<float>(p, stream);
  } else {
    launch<__nv_bfloat16>(p, stream);
  }
  return true;
}

}  // namespace fovea::cuda
