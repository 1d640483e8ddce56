// Attention over keys and values of 8-bit integers: every backend against the reference, which
// multiplies codes and scales in double, over the table of cases.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "fovea/attention/append_kv.h"
#include "tests/attention/backends_agree.h"
#include "tests/cases/float8_case.h"

namespace fovea {
namespace {

using cases::AttentionCase;
using cases::AttentionData;

/// Pages of i8 with the keys and values of a paged call. What belongs to nobody is not a number.
class I8Pages {
 public:
  explicit I8Pages(const AttentionData& data) : view_(data.params().kv) {
    const KvView& from = data.params().kv;
    const int64_t num_pages = from.num_pages(), heads = from.num_kv_heads();
    k_ = Tensor(DType::kI8, {num_pages, heads, from.page_size, from.head_dim()});
    v_ = Tensor(DType::kI8, {num_pages, heads, from.head_dim(), from.page_size});
    k_scale_ = Tensor(DType::kF32, {num_pages, heads});
    v_scale_ = Tensor(DType::kF32, {num_pages, heads});
    for (const Tensor* codes : {&k_, &v_}) {
      std::memset(codes->as<std::byte>(), 0x80, static_cast<size_t>(codes->size_bytes()));
    }
    for (int64_t i = 0; i < num_pages * heads; ++i) {
      k_scale_.as<float>()[i] = v_scale_.as<float>()[i] = NAN;
    }
    view_.k = k_.view();
    view_.v = v_.view();
    view_.k_scale = k_scale_.view();
    view_.v_scale = v_scale_.view();
    const RaggedBatch& batch = data.params().batch;
    for (int64_t s = 0; s < batch.batch_size; ++s) append_sequence(from, s, batch.kv_lens[s]);
  }
  const KvView& view() const { return view_; }

 private:
  void append_sequence(const KvView& from, int64_t s, int64_t kv_len) {
    if (kv_len == 0) return;
    const int64_t heads = from.num_kv_heads(), head_dim = from.head_dim();
    const Tensor k(DType::kF32, {kv_len, heads, head_dim}),
        v(DType::kF32, {kv_len, heads, head_dim});
    const int32_t* const pages = from.page_table + s * from.page_table_stride;
    for (int64_t t = 0; t < kv_len; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = pages[t / from.page_size] * from.k.stride[0] + h * from.k.stride[1] +
                           t % from.page_size * from.k.stride[2];
        for (int64_t d = 0; d < head_dim; ++d) {
          k.as<float>()[(t * heads + h) * head_dim + d] = cases::get(from.k, at + d);
          v.as<float>()[(t * heads + h) * head_dim + d] = cases::get(from.v, at + d);
        }
      }
    }
    const int64_t position = 0;
    KvView to = view_;
    to.page_table = pages;
    append_kv({k.view(), v.view(), &position, to}, {});
  }

  KvView view_;
  Tensor k_, v_, k_scale_, v_scale_;
};

TEST(I8Attention, EveryBackendAgreesWithTheReference) {
  size_t number = 0;
  for (const AttentionCase& shape : cases::float8_cases()) {
    const DType dtype = number++ % 3 == 0 ? DType::kF32 : DType::kBF16;
    AttentionData data(shape, dtype, 7);
    const I8Pages pages(data);
    data.params().kv = pages.view();
    expect_backends_agree(data, shape.name);
  }
}

}  // namespace
}  // namespace fovea
