#include "fovea/attention/code_pages.h"

#include <algorithm>
#include <array>

#include "fovea/base/error.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/float8.h"

namespace fovea {
namespace {

/// What each code means under a scale: pages have thousands of codes and one scale.
template <typename T>
std::array<T, 256> numbers_of(DType dtype, float scale) {
  std::array<T, 256> numbers;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto bits = static_cast<uint8_t>(i);
    const float code = dtype == DType::kI8 ? static_cast<float>(static_cast<int8_t>(bits))
                                           : to_float(Float8E4M3{bits});
    const float number = code * scale;
    if constexpr (std::is_same_v<T, float>) {
      numbers[i] = number;
    } else {
      numbers[i] = to_bfloat16(number);
    }
  }
  return numbers;
}

template <typename Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::kF32) return body(float{});
  check_argument(dtype == DType::kBF16, "codes become f32 or bf16, not {}", dtype_name(dtype));
  body(BFloat16{});
}

template <typename T>
T* row_of(const CodeRows& to, int64_t i) {
  return reinterpret_cast<T*>(to.data + i * to.row_bytes);
}

}  // namespace

float code_scale(const TensorView& kv_scale, int64_t page, int64_t kv_head) {
  if (kv_scale.empty()) return 1;
  return kv_scale.as<const float>()[(kv_scale.rank == 2 ? page * kv_scale.stride[0] : 0) + kv_head];
}

void read_code_keys(const KvView& kv, int64_t page, int64_t kv_head, int64_t first, int64_t count,
                    const CodeRows& to) {
  const int64_t head_dim = kv.head_dim();
  with_type(to.dtype, [&]<typename T>(T) {
    const std::array<T, 256> numbers =
        numbers_of<T>(kv.k.dtype, code_scale(kv.k_scale, page, kv_head));
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t* const codes = kv.k.as<const uint8_t>() + page * kv.k.stride[0] +
                                   kv_head * kv.k.stride[1] + (first + i) * kv.k.stride[2];
      T* const row = row_of<T>(to, i);
      for (int64_t d = 0; d < head_dim; ++d) row[d] = numbers[codes[d]];
    }
  });
}

void read_code_values(const KvView& kv, int64_t page, int64_t kv_head, int64_t first, int64_t count,
                      const CodeRows& to) {
  const int64_t head_dim = kv.head_dim();
  const uint8_t* const codes =
      kv.v.as<const uint8_t>() + page * kv.v.stride[0] + kv_head * kv.v.stride[1];
  with_type(to.dtype, [&]<typename T>(T) {
    const std::array<T, 256> numbers =
        numbers_of<T>(kv.v.dtype, code_scale(kv.v_scale, page, kv_head));
    // Few tokens at a time: their codes lie side by side, their rows stay in the cache.
    constexpr int64_t kStep = 16;
    for (int64_t i = 0; i < count; i += kStep) {
      const int64_t num = count - i < kStep ? count - i : kStep;
      int64_t slots[kStep];
      for (int64_t t = 0; t < num; ++t) slots[t] = f8_value_slot(first + i + t);
      for (int64_t d = 0; d < head_dim; ++d) {
        const uint8_t* const turned = codes + d * kv.v.stride[2];
        for (int64_t t = 0; t < num; ++t) row_of<T>(to, i + t)[d] = numbers[turned[slots[t]]];
      }
    }
  });
}

void read_code_rows(const KvView& kv, int64_t sequence, int64_t kv_head, int64_t first,
                    int64_t count, DType dtype, std::byte* keys, std::byte* values) {
  const int64_t row_bytes = kv.head_dim() * dtype_bytes(dtype);
  const int32_t* const pages = kv.page_table + sequence * kv.page_table_stride;
  for (int64_t i = 0, num = 0; i < count; i += num) {
    const int64_t page = pages[(first + i) / kv.page_size], slot = (first + i) % kv.page_size;
    num = std::min(count - i, kv.page_size - slot);
    if (keys != nullptr) {
      read_code_keys(kv, page, kv_head, slot, num, {dtype, keys + i * row_bytes, row_bytes});
    }
    if (values != nullptr) {
      read_code_values(kv, page, kv_head, slot, num, {dtype, values + i * row_bytes, row_bytes});
    }
  }
}

}  // namespace fovea
