// K and V of a prompt on their way into pages, with the statistics of the pages that fill: one CTA
// per page and KV head. A key's distance to the centroid can be taken only when all keys are there,
// so a page's rows stay in registers; rows that an earlier launch wrote are read back.
#include "fovea/ops/cuda/qkv_params.cuh"
#include "fovea/ops/cuda/row_kernels.h"
#include "fovea/tensor/cuda/block_statistics.cuh"
#include "fovea/tensor/cuda/launch_overlapping.h"
#include "fovea/tensor/cuda/ptx/grid_dependency.h"

namespace fovea::cuda {
namespace {

struct FinishPagesParams {
  QkvParams to;
  const __nv_bfloat16* qkv;
  int64_t qkv_stride, num_rows;
  const float* k_norm;  // null: none
  float eps;
  StatsArrays<__nv_bfloat16> stats;
};

/// Rows [first_new, end) of a page come with this launch, rows before them lie in it already.
struct PageRows {
  int first_new, end;
  int64_t row_of_slot_0;  // of the launch; negative when the page began before
};

template <int kHeadDim>
class KvWriter {
 public:
  __device__ KvWriter(const FinishPagesParams& p, const PageRows& rows, int kv_head, int64_t page)
      : p_(p), rows_(rows), kv_head_(kv_head), page_(page) {}

  /// Eight columns of V as the product gave them; of rows that came earlier, as the page has them.
  __device__ uint4 load_value(int slot, int column) const {
    const int head = p_.to.num_q_heads + p_.to.num_kv_heads + kv_head_;
    return load(p_.to.v, head, slot, column);
  }
  __device__ uint4 load_key(int slot, int column) const {
    return load(p_.to.k, p_.to.num_q_heads + kv_head_, slot, column);
  }

  /// Takes them into the page. Returns the bits that it then has.
  __device__ uint4 put_value(int slot, int column, uint4 bits) const {
    if (!is_new(slot)) return bits;
    Floats<8> x = widened(bits);
    const int head = p_.to.num_q_heads + p_.to.num_kv_heads + kv_head_;
    if (p_.to.bias != nullptr) add(x, p_.to.bias + head * kHeadDim + column);
    return put(x, at(p_.to.v, slot, column));
  }

  /// The same of K: bias, norm and RoPE. By all threads of a warp.
  __device__ uint4 put_key(int slot, int column, uint4 bits) const {
    constexpr int kHalf = kHeadDim / 2;
    const bool is_low = column < kHalf;
    const int partner_column = is_low ? column + kHalf : column - kHalf;
    Floats<8> own = widened(bits), partner = widened(of_partner(bits));
    if (p_.to.bias != nullptr) {
      const float* bias = p_.to.bias + (p_.to.num_q_heads + kv_head_) * kHeadDim;
      add(own, bias + column);
      add(partner, bias + partner_column);
    }
    if (p_.k_norm != nullptr) {
      float sum = sum_of_squares(own) + sum_of_squares(partner);
#pragma unroll
      for (int o = kHalf / 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
      const float factor = norm_factor(sum, kHeadDim, p_.eps);
      scale(own, factor, p_.k_norm + column);
      scale(partner, factor, p_.k_norm + partner_column);
    }
    if (!is_new(slot)) return bits;
    const int64_t angle = (rows_.row_of_slot_0 + slot) * kHalf + column % kHalf;
    const Floats<8> cos = load_angles(p_.to.cos + angle), sin = load_angles(p_.to.sin + angle);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      own.values[i] = turned(own.values[i], partner.values[i], cos.values[i],
                             is_low ? -sin.values[i] : sin.values[i]);
    }
    return put(own, at(p_.to.k, slot, column));
  }

 private:
  __device__ bool is_new(int slot) const { return slot >= rows_.first_new && slot < rows_.end; }

  __device__ __nv_bfloat16* at(const Pages& pages, int slot, int column) const {
    return pages.data + page_ * pages.page_stride + kv_head_ * pages.head_stride +
           slot * pages.slot_stride + column;
  }

  __device__ uint4 load(const Pages& pages, int head, int slot, int column) const {
    if (slot >= rows_.end) return {};
    if (slot < rows_.first_new) {
      return *reinterpret_cast<const uint4*>(at(pages, slot, column));
    }
    return __ldg(reinterpret_cast<const uint4*>(
        p_.qkv + (rows_.row_of_slot_0 + slot) * p_.qkv_stride + head * kHeadDim + column));
  }

  /// Loads that may pass the stores in front of them: nobody writes what they read.
  static __device__ Floats<8> load_angles(const float* from) {
    const float4 low = __ldg(reinterpret_cast<const float4*>(from));
    const float4 high = __ldg(reinterpret_cast<const float4*>(from) + 1);
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }

  /// The bits of the thread that has the columns which RoPE turns with these.
  static __device__ uint4 of_partner(uint4 bits) {
    constexpr int kDistance = kHeadDim / 16;
    return {__shfl_xor_sync(~0u, bits.x, kDistance), __shfl_xor_sync(~0u, bits.y, kDistance),
            __shfl_xor_sync(~0u, bits.z, kDistance), __shfl_xor_sync(~0u, bits.w, kDistance)};
  }

  static __device__ uint4 put(const Floats<8>& x, __nv_bfloat16* to) {
    const uint4 bits = {rounded2(x.values[0], x.values[1]), rounded2(x.values[2], x.values[3]),
                        rounded2(x.values[4], x.values[5]), rounded2(x.values[6], x.values[7])};
    *reinterpret_cast<uint4*>(to) = bits;
    return bits;
  }

  const FinishPagesParams& p_;
  const PageRows& rows_;
  const int kv_head_;
  const int64_t page_;
};

/// So many CTAs an SM that the registers hold a page.
constexpr int ctas_per_sm(int head_dim, int page_size) {
  return head_dim * page_size <= 128 * 128 ? 2 : 1;
}

template <int kHeadDim, int kPageSize>
__global__ __launch_bounds__(
    kStatsThreads,
    ctas_per_sm(kHeadDim, kPageSize)) void finish_pages_kernel(const FinishPagesParams p) {
  ptx::let_next_grid_begin();
  ptx::wait_for_previous_grid();
  using Rows = BlockRows<__nv_bfloat16, kHeadDim, kPageSize>;
  __shared__ typename Rows::Shared shared;
  const auto kv_head = static_cast<int>(blockIdx.x);
  const int64_t position = *p.to.position + p.to.first_row;
  const int64_t number = position / kPageSize + blockIdx.y;
  PageRows rows;
  rows.row_of_slot_0 = number * kPageSize - position;
  if (rows.row_of_slot_0 >= p.num_rows) return;
  rows.first_new = rows.row_of_slot_0 < 0 ? static_cast<int>(-rows.row_of_slot_0) : 0;
  rows.end = static_cast<int>(min(p.num_rows - rows.row_of_slot_0, int64_t{kPageSize}));
  const int64_t page = p.to.page_table[number];
  const KvWriter<kHeadDim> writer(p, rows, kv_head, page);

  // All of K and V is asked for before anything is stored.
  Rows values([&](int slot, int column) { return writer.load_value(slot, column); });
  Rows keys([&](int slot, int column) { return writer.load_key(slot, column); });
  values.change(
      [&](int slot, int column, uint4 bits) { return writer.put_value(slot, column, bits); });
  keys.change([&](int slot, int column, uint4 bits) { return writer.put_key(slot, column, bits); });
  if (rows.end < kPageSize) return;
  values.mean(shared, p.stats.v_mean.at(page, kv_head));
  keys.keys_statistics(shared, p.stats, page, kv_head);
}

}  // namespace

bool has_finish_pages(int64_t head_dim, int64_t page_size) {
  const auto is_size = [](int64_t size) { return size == 64 || size == 128 || size == 256; };
  return is_size(head_dim) && is_size(page_size) && (head_dim != 256 || page_size != 256);
}

void launch_finish_pages(const QkvTask& task, cudaStream_t stream) {
  const int64_t page_size = task.k.shape[2], num_rows = task.q.shape[0];
  const FinishPagesParams p{.to = QkvParams(task),
                            .qkv = task.qkv.as<const __nv_bfloat16>(),
                            .qkv_stride = task.qkv.stride[0],
                            .num_rows = num_rows,
                            .k_norm = task.k_norm.as<const float>(),
                            .eps = task.eps,
                            .stats = StatsArrays<__nv_bfloat16>(*task.stats)};
  // The first row may lie anywhere in its page.
  const auto num_pages = static_cast<unsigned>((num_rows + page_size - 2) / page_size + 1);
  const dim3 grid(static_cast<unsigned>(task.k.shape[1]), num_pages);
  with_block_shape(task.k.shape[3], page_size, [&]<int kHeadDim, int kPageSize>() {
    launch_overlapping(finish_pages_kernel<kHeadDim, kPageSize>, grid, kStatsThreads, 0, stream,
                       "launching finish_pages_kernel", p);
  });
}

}  // namespace fovea::cuda
