#include "tests/cases/float8_case.h"

#include <cmath>
#include <cstring>

#include "fovea/attention/quantize_kv.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/float8.h"

namespace fovea::cases {
namespace {

constexpr Float8E4M3 kNan{0x7f};

void fill_nan(const Tensor& tensor) {
  if (tensor.size_bytes() == 0) return;
  std::memset(tensor.as<uint8_t>(), kNan.bits, static_cast<size_t>(tensor.size_bytes()));
}

Tensor to_bf16(const TensorView& from) {
  Tensor to(DType::kBF16, {from.shape[0], from.shape[1], from.shape[2]});
  for (int64_t i = 0; i < from.num_elements(); ++i) set(to.view(), i, get(from, i));
  return to;
}

float scale_at(const TensorView& scale, int64_t page, int64_t head) {
  if (scale.empty()) return 1;
  return scale.as<const float>()[(scale.rank == 2 ? page * scale.stride[0] : 0) + head];
}

/// Sequences' rows of a paged K/V: visit(page, row in it, KV head).
template <typename Visit>
void for_each_key(const AttentionParams& params, const Visit& visit) {
  const KvView& kv = params.kv;
  for (int64_t s = 0; s < params.batch.batch_size; ++s) {
    for (int64_t t = 0; t < params.batch.kv_lens[s]; ++t) {
      const int64_t page = kv.page_table[s * kv.page_table_stride + t / kv.page_size];
      for (int64_t h = 0; h < kv.num_kv_heads(); ++h) visit(page, t % kv.page_size, h);
    }
  }
}

}  // namespace

std::vector<AttentionCase> float8_cases() {
  std::vector<AttentionCase> all = attention_cases();
  for (AttentionCase& c : all) {
    if (c.has_periphery && c.block_size % 16 != 0) c.has_periphery = false;
    if (c.has_periphery) c.page_size = c.block_size;
    if (c.page_size == 0 || c.page_size % 16 != 0) c.page_size = 128;
  }
  return all;
}

Float8Data::Float8Data(const AttentionData& data, Scales scales) : params_(data.params()) {
  const AttentionParams& source = data.params();
  const int64_t num_kv_heads = source.kv.num_kv_heads(), num_pages = source.kv.num_pages();
  const int64_t head_dim = source.head_dim(), page_size = source.kv.page_size;
  q_ = Tensor(DType::kF8E4M3, {source.q.shape[0], source.num_q_heads(), head_dim});
  k_ = Tensor(DType::kF8E4M3, {num_pages, num_kv_heads, page_size, head_dim});
  v_ = Tensor(DType::kF8E4M3, {num_pages, num_kv_heads, head_dim, page_size});
  out_ = Tensor(DType::kF32, {source.q.shape[0], source.num_q_heads(), head_dim});
  lse_ = Tensor(DType::kF32, {source.num_q_heads(), source.q.shape[0]});
  fill_nan(k_);
  fill_nan(v_);
  if (scales != Scales::kNone) {
    q_scale_ = Tensor(DType::kF32, {source.num_q_heads()});
    for (int64_t h = 0; h < source.num_q_heads(); ++h) {
      q_scale_.as<float>()[h] = 0.01f * static_cast<float>(h % 3 + 1);
    }
  }
  if (scales == Scales::kPerHead) {
    k_scale_ = Tensor(DType::kF32, {num_kv_heads});
    v_scale_ = Tensor(DType::kF32, {num_kv_heads});
    for (int64_t h = 0; h < num_kv_heads; ++h) {
      k_scale_.as<float>()[h] = 0.3f / static_cast<float>(h + 1);
      v_scale_.as<float>()[h] = 0.01f + static_cast<float>(h);
    }
  } else if (scales == Scales::kPowersOfTwo) {
    k_scale_ = Tensor(DType::kF32, {num_kv_heads});
    v_scale_ = Tensor(DType::kF32, {num_kv_heads});
    for (int64_t h = 0; h < num_kv_heads; ++h) {
      k_scale_.as<float>()[h] = h % 2 == 0 ? 0.25f : 0.0625f;
      v_scale_.as<float>()[h] = h % 2 == 0 ? 0x1p-6f : 2.0f;
    }
  } else if (scales == Scales::kPerPage) {
    k_scale_ = Tensor(DType::kF32, {num_pages, num_kv_heads});
    v_scale_ = Tensor(DType::kF32, {num_pages, num_kv_heads});
  }
  params_.q = q_.view();
  params_.q_scale = q_scale_.view();
  params_.kv.k = k_.view();
  params_.kv.v = v_.view();
  params_.kv.k_scale = k_scale_.view();
  params_.kv.v_scale = v_scale_.view();
  params_.out = out_.view();
  params_.lse = lse_.view();
  if (source.periphery.enabled()) {
    k_mean_ = to_bf16(source.periphery.k_mean);
    v_mean_ = to_bf16(source.periphery.v_mean);
    params_.periphery.k_mean = k_mean_.view();
    params_.periphery.v_mean = v_mean_.view();
  }
  quantize_q(source.q, params_.q_scale, params_.q, {});
  for (int64_t s = 0; s < source.batch.batch_size; ++s) {
    quantize_kv(source.kv, params_.kv, s, 0, source.batch.kv_lens[s], {});
  }
  poison_tails();
}

void Float8Data::poison_tails() {
  const KvView& kv = params_.kv;
  for (int64_t s = 0; s < params_.batch.batch_size; ++s) {
    const int64_t kv_len = params_.batch.kv_lens[s];
    if (kv_len % kv.page_size == 0) continue;
    const int64_t page = kv.page_table[s * kv.page_table_stride + kv_len / kv.page_size];
    for (int64_t h = 0; h < kv.num_kv_heads(); ++h) {
      for (int64_t t = kv_len % kv.page_size; t < kv.page_size; ++t) {
        for (int64_t d = 0; d < kv.head_dim(); ++d) {
          k_.as<Float8E4M3>()[page * kv.k.stride[0] + h * kv.k.stride[1] + t * kv.k.stride[2] + d] =
              kNan;
          v_.as<Float8E4M3>()[page * kv.v.stride[0] + h * kv.v.stride[1] + d * kv.v.stride[2] +
                              f8_value_slot(t)] = kNan;
        }
      }
    }
  }
}

void Float8Data::drop_signs_of_values() {
  for (int64_t i = 0; i < v_.view().num_elements(); ++i) v_.as<Float8E4M3>()[i].bits &= 0x7f;
  if (!params_.periphery.enabled()) return;
  const TensorView& v_mean = params_.periphery.v_mean;
  for (int64_t i = 0; i < v_mean.num_elements(); ++i) set(v_mean, i, std::abs(get(v_mean, i)));
}

std::vector<float> Float8Data::out() const {
  return {out_.as<float>(), out_.as<float>() + out_.view().num_elements()};
}

std::vector<float> Float8Data::lse() const {
  return {lse_.as<float>(), lse_.as<float>() + lse_.view().num_elements()};
}

void Float8Data::dequantize_into(AttentionData& data) const {
  const TensorView& q = data.params().q;
  for (int64_t i = 0; i < q.shape[0]; ++i) {
    for (int64_t h = 0; h < q.shape[1]; ++h) {
      for (int64_t d = 0; d < q.shape[2]; ++d) {
        const Float8E4M3 code =
            q_.as<Float8E4M3>()[i * params_.q.stride[0] + h * params_.q.stride[1] + d];
        set(q, i * q.stride[0] + h * q.stride[1] + d,
            to_float(code) * scale_at(params_.q_scale, 0, h));
      }
    }
  }
  const KvView& from = params_.kv;
  const KvView& to = data.params().kv;
  for_each_key(params_, [&](int64_t page, int64_t row, int64_t h) {
    const int64_t to_row = page * to.k.stride[0] + h * to.k.stride[1] + row * to.k.stride[2];
    for (int64_t d = 0; d < from.head_dim(); ++d) {
      const Float8E4M3 key = k_.as<Float8E4M3>()[page * from.k.stride[0] + h * from.k.stride[1] +
                                                 row * from.k.stride[2] + d];
      const Float8E4M3 value = v_.as<Float8E4M3>()[page * from.v.stride[0] + h * from.v.stride[1] +
                                                   d * from.v.stride[2] + f8_value_slot(row)];
      set(to.k, to_row + d, to_float(key) * scale_at(from.k_scale, page, h));
      set(to.v, to_row + d, to_float(value) * scale_at(from.v_scale, page, h));
    }
  });
  for (const auto& [mean, rounded] : {std::pair{&data.params().periphery.k_mean, &k_mean_},
                                      std::pair{&data.params().periphery.v_mean, &v_mean_}}) {
    if (mean->empty()) continue;
    for (int64_t i = 0; i < mean->num_elements(); ++i) set(*mean, i, get(rounded->view(), i));
  }
}

}  // namespace fovea::cases
