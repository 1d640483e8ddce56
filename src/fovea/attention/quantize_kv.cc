#include "fovea/attention/quantize_kv.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/float8.h"

namespace fovea {
namespace {

bool is_cpu_type(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

float load(const TensorView& view, int64_t offset) {
  return view.dtype == DType::kF32 ? view.as<const float>()[offset]
                                   : to_float(view.as<const BFloat16>()[offset]);
}

// Where token t of sequence `seq` begins in K or V of `kv`.
int64_t token_offset(const KvView& kv, const TensorView& view, int64_t seq, int64_t t,
                     int64_t head) {
  if (!kv.is_paged()) return (kv.kv_offsets[seq] + t) * view.stride[0] + head * view.stride[1];
  const int64_t page = kv.page_table[seq * kv.page_table_stride + t / kv.page_size];
  return page * view.stride[0] + head * view.stride[1] + t % kv.page_size * view.stride[2];
}

// K or V of one head of one page.
class Page {
 public:
  Page(const KvView& from, const KvView& to, int64_t seq, int64_t number, int64_t kv_len,
       int64_t head)
      : from_(from),
        to_(to),
        seq_(seq),
        first_token_(number * to.page_size),
        num_tokens_(std::min(to.page_size, kv_len - first_token_)),
        head_(head),
        page_(to.page_table[seq * to.page_table_stride + number]) {}

  void write_keys() const {
    const float scale = find_scale(from_.k, to_.k_scale);
    const int64_t start = page_ * to_.k.stride[0] + head_ * to_.k.stride[1];
    write(from_.k, scale, [&](int64_t t, int64_t d, Float8E4M3 code) {
      to_.k.as<Float8E4M3>()[start + t * to_.k.stride[2] + d] = code;
    });
  }

  void write_values() const {
    const float scale = find_scale(from_.v, to_.v_scale);
    const int64_t start = page_ * to_.v.stride[0] + head_ * to_.v.stride[1];
    write(from_.v, scale, [&](int64_t t, int64_t d, Float8E4M3 code) {
      to_.v.as<Float8E4M3>()[start + d * to_.v.stride[2] + f8_value_slot(t)] = code;
    });
  }

 private:
  // Writes the page's scale where each page has one.
  float find_scale(const TensorView& view, const TensorView& scale) const {
    if (scale.empty()) return 1;
    if (scale.rank == 1) return scale.as<const float>()[head_];
    float largest = 0;
    for (int64_t t = 0; t < num_tokens_; ++t) {
      const int64_t offset = token_offset(from_, view, seq_, first_token_ + t, head_);
      for (int64_t d = 0; d < from_.head_dim(); ++d) {
        const float magnitude = std::abs(load(view, offset + d));
        if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
      }
    }
    return scale.as<float>()[page_ * scale.stride[0] + head_] = f8_page_scale(largest);
  }

  template <typename Put>
  void write(const TensorView& view, float scale, const Put& put) const {
    for (int64_t t = 0; t < to_.page_size; ++t) {
      const bool exists = t < num_tokens_;
      const int64_t offset = exists ? token_offset(from_, view, seq_, first_token_ + t, head_) : 0;
      for (int64_t d = 0; d < to_.head_dim(); ++d) {
        put(t, d, exists ? to_float8_e4m3(load(view, offset + d) / scale) : Float8E4M3{});
      }
    }
  }

  const KvView& from_;
  const KvView& to_;
  int64_t seq_, first_token_, num_tokens_, head_, page_;
};

void check_scale(const TensorView& scale, const char* name, const KvView& kv) {
  if (scale.empty()) return;
  const int64_t num_kv_heads = kv.num_kv_heads();
  const bool is_per_head = scale.rank == 1 && scale.shape[0] == num_kv_heads;
  const bool is_per_page =
      scale.rank == 2 && scale.shape[0] == kv.num_pages() && scale.shape[1] == num_kv_heads;
  check_argument(scale.dtype == DType::kF32 && (is_per_head || is_per_page) &&
                     scale.stride[static_cast<size_t>(scale.rank - 1)] == 1,
                 "{} must be f32[{}] or f32[{}, {}], got {}", name, num_kv_heads, kv.num_pages(),
                 num_kv_heads, scale.describe());
}

void check_tables(const KvView& from, const KvView& to, int64_t seq, int64_t first_page,
                  int64_t kv_len) {
  for (int64_t i = first_page; i < ceil_div(kv_len, to.page_size); ++i) {
    const int64_t page = to.page_table[seq * to.page_table_stride + i];
    check_argument(page >= 0 && page < to.num_pages(),
                   "sequence {}: page table entry {} is {}, there are {} pages", seq, i, page,
                   to.num_pages());
  }
  if (!from.is_paged()) {
    const int64_t offset = from.kv_offsets[seq];
    check_argument(offset >= 0 && offset <= from.k.shape[0] - kv_len,
                   "sequence {}: keys [{}, {} + {}) lie outside k's {} rows", seq, offset, offset,
                   kv_len, from.k.shape[0]);
    return;
  }
  const int64_t first_token = first_page * to.page_size;
  for (int64_t i = first_token / from.page_size; i < ceil_div(kv_len, from.page_size); ++i) {
    const int64_t page = from.page_table[seq * from.page_table_stride + i];
    check_argument(page >= 0 && page < from.num_pages(),
                   "sequence {}: page table entry {} is {}, there are {} pages to read", seq, i,
                   page, from.num_pages());
  }
}

}  // namespace

void check_code_pages(const KvView& kv) {
  check_argument(kv.holds_codes() && kv.v.dtype == kv.k.dtype,
                 "k and v must be f8e4m3 or i8, got {} and {}", kv.k.describe(), kv.v.describe());
  check_argument(kv.is_paged() && kv.page_size % 16 == 0,
                 "codes of k and v must be in pages of a multiple of 16 tokens, got {}",
                 kv.page_size);
  check_argument(kv.k.rank == 4 && kv.k.shape[2] == kv.page_size, "page_size is {} but k is {}",
                 kv.page_size, kv.k.describe());
  check_argument(kv.v.rank == 4 && kv.v.shape[0] == kv.k.shape[0] &&
                     kv.v.shape[1] == kv.k.shape[1] && kv.v.shape[2] == kv.k.shape[3] &&
                     kv.v.shape[3] == kv.k.shape[2],
                 "codes of v must be k's shape with each page turned, got {} and {}",
                 kv.k.describe(), kv.v.describe());
  check_scale(kv.k_scale, "k_scale", kv);
  check_scale(kv.v_scale, "v_scale", kv);
}

void check_quantize_kv(const KvView& from, const KvView& to, int64_t seq, int64_t first_page,
                       int64_t kv_len, bool dtype_ok) {
  check_argument(dtype_ok && from.v.dtype == from.k.dtype, "cannot quantize {} and {}",
                 from.k.describe(), from.v.describe());
  check_argument(from.k.shape == from.v.shape, "k and v must have the same shape, got {} and {}",
                 from.k.describe(), from.v.describe());
  check_code_pages(to);
  check_argument(to.k.dtype == DType::kF8E4M3, "quantized k and v must be f8e4m3, got {}",
                 to.k.describe());
  check_argument(to.num_kv_heads() == from.num_kv_heads() && to.head_dim() == from.head_dim(),
                 "quantized k must have {} heads of {}, got {}", from.num_kv_heads(),
                 from.head_dim(), to.k.describe());
  for (const TensorView* view : {&from.k, &from.v, &to.k, &to.v}) {
    check_argument(view->stride[static_cast<size_t>(view->rank - 1)] == 1,
                   "the last stride must be 1, got {}",
                   view->stride[static_cast<size_t>(view->rank - 1)]);
  }
  check_argument(seq >= 0 && first_page >= 0 && kv_len >= 0 && kv_len <= INT32_MAX &&
                     ceil_div(kv_len, to.page_size) <= to.page_table_stride,
                 "sequence {}: pages from {} for kv_len {}, the page table holds {}", seq,
                 first_page, kv_len, to.page_table_stride);
  check_argument(!from.is_paged() || ceil_div(kv_len, from.page_size) <= from.page_table_stride,
                 "sequence {}: kv_len {}, the page table to read has {} pages of {}", seq, kv_len,
                 from.page_table_stride, from.page_size);
}

void check_quantize_q(const TensorView& from, const TensorView& scale, const TensorView& to,
                      bool dtype_ok) {
  check_argument(dtype_ok && from.rank == 3 && from.stride[2] == 1, "cannot quantize {}",
                 from.describe());
  check_argument(
      to.dtype == DType::kF8E4M3 && to.rank == 3 && to.shape == from.shape && to.stride[2] == 1,
      "quantized q must be f8e4m3 of the shape of q, {}, got {}", from.describe(), to.describe());
  check_argument(scale.empty() || (scale.dtype == DType::kF32 && scale.rank == 1 &&
                                   scale.shape[0] == from.shape[1]),
                 "q_scale must be f32[{}], got {}", from.shape[1], scale.describe());
}

void quantize_kv(const KvView& from, const KvView& to, int64_t seq, int64_t first_page,
                 int64_t kv_len, const Context& context) {
  check_quantize_kv(from, to, seq, first_page, kv_len, is_cpu_type(from.k.dtype));
  check_tables(from, to, seq, first_page, kv_len);
  const int64_t num_pages = std::max<int64_t>(ceil_div(kv_len, to.page_size) - first_page, 0);
  const int64_t num_kv_heads = to.num_kv_heads();
  parallel_for(context, num_pages * num_kv_heads, [&](int64_t task, int32_t) {
    const Page page(from, to, seq, first_page + task / num_kv_heads, kv_len, task % num_kv_heads);
    page.write_keys();
    page.write_values();
  });
}

void quantize_q(const TensorView& from, const TensorView& scale, const TensorView& to,
                const Context& context) {
  check_quantize_q(from, scale, to, is_cpu_type(from.dtype));
  parallel_for(context, from.shape[0], [&](int64_t row, int32_t) {
    for (int64_t h = 0; h < from.shape[1]; ++h) {
      const float divisor = scale.empty() ? 1 : scale.as<const float>()[h];
      const int64_t in = row * from.stride[0] + h * from.stride[1];
      const int64_t out = row * to.stride[0] + h * to.stride[1];
      for (int64_t d = 0; d < from.shape[2]; ++d) {
        to.as<Float8E4M3>()[out + d] = to_float8_e4m3(load(from, in + d) / divisor);
      }
    }
  });
}

}  // namespace fovea
