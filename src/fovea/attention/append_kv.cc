#include "fovea/attention/append_kv.h"

#include <algorithm>
#include <cmath>

#include "fovea/base/checked_math.h"
#include "fovea/base/error.h"
#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"
#ifdef FOVEA_WITH_CUDA
#include "fovea/attention/cuda/quantize_kv_cuda.h"
#endif

namespace fovea {
namespace {

float load(const TensorView& view, int64_t offset) {
  return view.dtype == DType::kF32 ? view.as<const float>()[offset]
                                   : to_float(view.as<const BFloat16>()[offset]);
}

/// The number that `value` becomes under `scale`, a power of two.
void store_rounded(float value, float scale, const TensorView& view, int64_t offset) {
  const float rounded = to_float(to_float8_e4m3(value / scale)) * scale;
  if (view.dtype == DType::kF32) {
    view.as<float>()[offset] = rounded;
  } else {
    view.as<BFloat16>()[offset] = to_bfloat16(rounded);
  }
}

void check_append(const AppendKvTask& task, const Context& context) {
  const KvView& to = task.to;
  const bool on_cpu = context.device.type == DeviceType::kCpu;
  check_argument(task.k.rank == 3 && task.k.shape == task.v.shape && task.k.dtype == task.v.dtype &&
                     task.k.stride[2] == 1 && task.v.stride[2] == 1,
                 "k and v must be rows of the same shape and type, got {} and {}",
                 task.k.describe(), task.v.describe());
  if (on_cpu) {
    check_argument(task.k.dtype == DType::kF32 || task.k.dtype == DType::kBF16,
                   "rows must be f32 or bf16, got {}", task.k.describe());
    check_argument(to.is_paged() && to.k.dtype == task.k.dtype && to.v.dtype == task.k.dtype &&
                       to.k.shape == to.v.shape && to.k.rank == 4 && to.k.stride[3] == 1 &&
                       to.v.stride[3] == 1 && to.k.shape[2] == to.page_size,
                   "pages must be {} like the rows, got {} and {}", dtype_name(task.k.dtype),
                   to.k.describe(), to.v.describe());
  } else {
    check_f8_pages(to);
    check_argument(to.page_size % 128 == 0, "pages must be of multiples of 128 tokens, got {}",
                   to.page_size);
  }
  check_argument(to.num_kv_heads() == task.k.shape[1] && to.head_dim() == task.k.shape[2],
                 "pages must have {} heads of {}, got {}", task.k.shape[1], task.k.shape[2],
                 to.k.describe());
  for (const TensorView* scale : {&to.k_scale, &to.v_scale}) {
    check_argument(
        scale->dtype == DType::kF32 && scale->rank == 2 && scale->shape[0] == to.num_pages() &&
            scale->shape[1] == to.num_kv_heads() && scale->stride[1] == 1,
        "scales must be f32[{}, {}], got {}", to.num_pages(), to.num_kv_heads(), scale->describe());
  }
  check_argument(task.position != nullptr && to.page_table != nullptr,
                 "position and page_table must be given");
}

/// K or V of one head and one page, which gets tokens [first_new, end) and holds those from
/// `first_token` on.
void append_to_page(const TensorView& rows, const TensorView& pages, const TensorView& scales,
                    int64_t page, int64_t head, int64_t first_token, int64_t first_new, int64_t end,
                    int64_t position) {
  const int64_t head_dim = rows.shape[2];
  const auto row_offset = [&](int64_t token) {
    return (token - position) * rows.stride[0] + head * rows.stride[1];
  };
  const auto page_offset = [&](int64_t token) {
    return page * pages.stride[0] + head * pages.stride[1] +
           (token - first_token) * pages.stride[2];
  };
  float largest = 0;
  for (int64_t token = first_new; token < end; ++token) {
    for (int64_t d = 0; d < head_dim; ++d) {
      const float magnitude = std::abs(load(rows, row_offset(token) + d));
      if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
    }
  }
  float& held_scale = scales.as<float>()[page * scales.stride[0] + head];
  float scale = f8_growing_scale(largest);
  if (first_new > first_token) {
    scale = std::max(scale, held_scale);
    for (int64_t token = first_token; scale > held_scale && token < first_new; ++token) {
      for (int64_t at = page_offset(token); at < page_offset(token) + head_dim; ++at) {
        store_rounded(load(pages, at), scale, pages, at);
      }
    }
  }
  held_scale = scale;
  for (int64_t token = first_new; token < end; ++token) {
    for (int64_t d = 0; d < head_dim; ++d) {
      store_rounded(load(rows, row_offset(token) + d), scale, pages, page_offset(token) + d);
    }
  }
}

}  // namespace

void append_kv(const AppendKvTask& task, const Context& context) {
  check_append(task, context);
  const int64_t num_rows = task.k.shape[0];
  if (num_rows == 0) return;
#ifdef FOVEA_WITH_CUDA
  if (context.device.type == DeviceType::kCuda) return append_kv_cuda(task, context);
#endif
  const KvView& to = task.to;
  const int64_t position = *task.position;
  const int64_t end = position + num_rows;
  const int64_t first_page = position / to.page_size;
  const int64_t end_page = ceil_div(end, to.page_size);
  check_argument(position >= 0 && end_page <= to.page_table_stride,
                 "tokens {} ... {} need {} pages, the page table holds {}", position, end - 1,
                 end_page, to.page_table_stride);
  for (int64_t i = first_page; i < end_page; ++i) {
    check_argument(to.page_table[i] >= 0 && to.page_table[i] < to.num_pages(),
                   "page table entry {} is {}, there are {} pages", i, to.page_table[i],
                   to.num_pages());
  }
  const int64_t num_heads = to.num_kv_heads();
  parallel_for(context, (end_page - first_page) * num_heads, [&](int64_t part, int32_t) {
    const int64_t number = first_page + part / num_heads;
    const int64_t head = part % num_heads;
    const int64_t first_token = number * to.page_size;
    const int64_t first_new = std::max(first_token, position);
    const int64_t page_end = std::min(first_token + to.page_size, end);
    const int64_t page = to.page_table[number];
    append_to_page(task.k, to.k, to.k_scale, page, head, first_token, first_new, page_end,
                   position);
    append_to_page(task.v, to.v, to.v_scale, page, head, first_token, first_new, page_end,
                   position);
  });
}

void round_queries(const TensorView& from, const TensorView& to, const Context& context) {
#ifdef FOVEA_WITH_CUDA
  if (context.device.type == DeviceType::kCuda) return quantize_q_cuda(from, {}, to, context);
#endif
  check_argument(from.rank == 3 && from.shape == to.shape && from.dtype == to.dtype &&
                     (from.dtype == DType::kF32 || from.dtype == DType::kBF16) &&
                     from.stride[2] == 1 && to.stride[2] == 1,
                 "queries must be f32 or bf16 and their copy alike, got {} and {}", from.describe(),
                 to.describe());
  parallel_for(context, from.shape[0], [&](int64_t row, int32_t) {
    for (int64_t head = 0; head < from.shape[1]; ++head) {
      for (int64_t d = 0; d < from.shape[2]; ++d) {
        const float value = load(from, row * from.stride[0] + head * from.stride[1] + d);
        store_rounded(value, 1, to, row * to.stride[0] + head * to.stride[1] + d);
      }
    }
  });
}

}  // namespace fovea
