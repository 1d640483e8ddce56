#include "fovea/attention/append_kv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

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

void check_append(const AppendKvTask& task, const Context& context) {
  const KvView& to = task.to;
  const bool on_cpu = context.device.type == DeviceType::kCpu;
  check_argument(task.k.rank == 3 && task.k.shape == task.v.shape && task.k.dtype == task.v.dtype &&
                     task.k.stride[2] == 1 && task.v.stride[2] == 1,
                 "k and v must be rows of the same shape and type, got {} and {}",
                 task.k.describe(), task.v.describe());
  check_argument(!on_cpu || task.k.dtype == DType::kF32 || task.k.dtype == DType::kBF16,
                 "rows must be f32 or bf16, got {}", task.k.describe());
  check_code_pages(to);
  check_argument(on_cpu || to.k.dtype == DType::kF8E4M3, "a GPU's pages must be f8e4m3, got {}",
                 to.k.describe());
  check_argument(on_cpu || to.page_size % 128 == 0,
                 "pages must be of multiples of 128 tokens, got {}", to.page_size);
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

struct F8Codes {
  using Code = Float8E4M3;
  static float growing_scale(float largest) { return f8_growing_scale(largest); }
  static float number(Code code) { return to_float(code); }
  static Code code(float number) { return to_float8_e4m3(number); }
};

struct I8Codes {
  using Code = int8_t;
  static float growing_scale(float largest) { return i8_growing_scale(largest); }
  static float number(Code code) { return code; }
  static Code code(float number) {  // 0 of a NaN, whose scale says what it is
    const float within = number < -127 ? -127.0f : number > 127 ? 127.0f : number;
    return std::isnan(within) ? Code{0} : static_cast<Code>(std::lrint(within));
  }
};

/// K or V of one head and one page, which gets tokens [first_new, end) and holds those from
/// `first_token` on. `offset_of(t)`: where its token t begins, elements `element_stride` apart.
template <typename Codes, typename OffsetOf>
void append_to_page(const TensorView& rows, const TensorView& pages, float& held_scale,
                    int64_t head, int64_t first_token, int64_t first_new, int64_t end,
                    int64_t position, int64_t element_stride, const OffsetOf& offset_of) {
  const int64_t head_dim = rows.shape[2];
  const auto row_offset = [&](int64_t token) {
    return (token - position) * rows.stride[0] + head * rows.stride[1];
  };
  auto* const codes = pages.as<typename Codes::Code>();
  float largest = 0;
  bool any_nan = false;
  for (int64_t token = first_new; token < end; ++token) {
    for (int64_t d = 0; d < head_dim; ++d) {
      const float magnitude = std::abs(load(rows, row_offset(token) + d));
      if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
      any_nan |= std::isnan(magnitude);
    }
  }
  float scale = Codes::growing_scale(largest);
  if (first_new > first_token) {
    any_nan |= std::isnan(held_scale);
    scale = std::max(scale, held_scale);
    for (int64_t token = first_token; scale > held_scale && token < first_new; ++token) {
      for (int64_t d = 0; d < head_dim; ++d) {
        auto& code = codes[offset_of(token - first_token) + d * element_stride];
        code = Codes::code(Codes::number(code) * held_scale / scale);
      }
    }
  }
  held_scale = scale;
  for (int64_t token = first_new; token < end; ++token) {
    for (int64_t d = 0; d < head_dim; ++d) {
      codes[offset_of(token - first_token) + d * element_stride] =
          Codes::code(load(rows, row_offset(token) + d) / scale);
    }
  }
  constexpr bool kHasNan = std::is_same_v<Codes, F8Codes>;
  if (any_nan && !kHasNan) held_scale = std::numeric_limits<float>::quiet_NaN();
}

template <typename Codes>
void append_pages(const AppendKvTask& task, int64_t position, const Context& context) {
  const KvView& to = task.to;
  const int64_t end = position + task.k.shape[0];
  const int64_t first_page = position / to.page_size;
  const int64_t end_page = ceil_div(end, to.page_size);
  const int64_t num_heads = to.num_kv_heads();
  parallel_for(context, (end_page - first_page) * num_heads, [&](int64_t part, int32_t) {
    const int64_t number = first_page + part / num_heads;
    const int64_t head = part % num_heads;
    const int64_t first_token = number * to.page_size;
    const int64_t first_new = std::max(first_token, position);
    const int64_t page_end = std::min(first_token + to.page_size, end);
    const int64_t page = to.page_table[number];
    const int64_t k_start = page * to.k.stride[0] + head * to.k.stride[1];
    const int64_t v_start = page * to.v.stride[0] + head * to.v.stride[1];
    append_to_page<Codes>(task.k, to.k, to.k_scale.as<float>()[page * to.k_scale.stride[0] + head],
                          head, first_token, first_new, page_end, position, 1,
                          [&](int64_t t) { return k_start + t * to.k.stride[2]; });
    append_to_page<Codes>(task.v, to.v, to.v_scale.as<float>()[page * to.v_scale.stride[0] + head],
                          head, first_token, first_new, page_end, position, to.v.stride[2],
                          [&](int64_t t) { return v_start + f8_value_slot(t); });
  });
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
  if (to.k.dtype == DType::kI8) return append_pages<I8Codes>(task, position, context);
  append_pages<F8Codes>(task, position, context);
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
        const int64_t at = row * to.stride[0] + head * to.stride[1] + d;
        const float value = load(from, row * from.stride[0] + head * from.stride[1] + d);
        const float rounded = to_float(to_float8_e4m3(value));
        if (to.dtype == DType::kF32) {
          to.as<float>()[at] = rounded;
        } else {
          to.as<BFloat16>()[at] = to_bfloat16(rounded);
        }
      }
    }
  });
}

}  // namespace fovea
