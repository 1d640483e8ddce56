#include "fovea/quality/attention_mass.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "fovea/attention/code_pages.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea::quality {
namespace {

float read(const TensorView& tensor, int64_t offset) {
  return tensor.dtype == DType::kF32 ? tensor.as<float>()[offset]
                                     : to_float(tensor.as<BFloat16>()[offset]);
}

/// The rows of one query block of one head, and their logits with one page of keys after another.
class QueryBlock {
 public:
  QueryBlock(const SelectorParams& params, int64_t q_head, int64_t q_block)
      : params_(params), head_dim_(params.kv.head_dim()), page_size_(params.kv.page_size) {
    const int64_t kv_len = params.batch.kv_lens[0];
    const int64_t chunk_begin = kv_len - params.batch.q_offsets[1];
    first_position_ = std::max(q_block * page_size_, chunk_begin);
    num_rows_ = std::min((q_block + 1) * page_size_, kv_len) - first_position_;
    kv_head_ = q_head / (params.q.shape[1] / params.kv.num_kv_heads());
    const float scale = params.softmax_scale > 0 ? params.softmax_scale
                                                 : 1 / std::sqrt(static_cast<float>(head_dim_));
    for (int64_t row = 0; row < num_rows_; ++row) {
      const int64_t offset =
          (first_position_ - chunk_begin + row) * params.q.stride[0] + q_head * params.q.stride[1];
      for (int64_t c = 0; c < head_dim_; ++c) q_.push_back(scale * read(params.q, offset + c));
    }
    keys_.resize(static_cast<size_t>(head_dim_ * page_size_));
    logits_.resize(static_cast<size_t>(page_size_));
  }

  int64_t num_rows() const { return num_rows_; }
  int64_t num_keys() const { return first_position_ + num_rows_; }

  void load_page(int64_t page) {
    page_ = page;
    const TensorView& k = params_.kv.k;
    const int64_t begin = params_.kv.page_table[page] * k.stride[0] + kv_head_ * k.stride[1];
    const int64_t count = std::min(page_size_, num_keys() - page * page_size_);
    std::fill(keys_.begin(), keys_.end(), 0.0f);
    const bool holds_codes = params_.kv.holds_codes();
    if (holds_codes) {
      numbers_.resize(keys_.size());
      read_code_keys(params_.kv, params_.kv.page_table[page], kv_head_, 0, count,
                     {DType::kF32, reinterpret_cast<std::byte*>(numbers_.data()),
                      head_dim_ * dtype_bytes(DType::kF32)});
    }
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t c = 0; c < head_dim_; ++c) {
        keys_[static_cast<size_t>(c * page_size_ + t)] =
            holds_codes ? numbers_[static_cast<size_t>(t * head_dim_ + c)]
                        : read(k, begin + t * k.stride[2] + c);
      }
    }
  }

  /// Of the loaded page's keys that row `row` may see.
  std::span<const float> logits(int64_t row) {
    std::fill(logits_.begin(), logits_.end(), 0.0f);
    for (int64_t c = 0; c < head_dim_; ++c) {
      const float q = q_[static_cast<size_t>(row * head_dim_ + c)];
      const float* keys = keys_.data() + c * page_size_;
      for (int64_t t = 0; t < page_size_; ++t) logits_[static_cast<size_t>(t)] += q * keys[t];
    }
    const int64_t visible = first_position_ + row + 1 - page_ * page_size_;
    return std::span(logits_).first(
        static_cast<size_t>(std::clamp<int64_t>(visible, 0, page_size_)));
  }

 private:
  const SelectorParams& params_;
  int64_t head_dim_, page_size_, first_position_ = 0, num_rows_ = 0, kv_head_ = 0, page_ = 0;
  std::vector<float> q_;        // [num_rows, head_dim], scaled
  std::vector<float> keys_;     // [head_dim, page_size]: a row's logits then run along memory
  std::vector<float> numbers_;  // [page_size, head_dim], of keys in f8e4m3
  std::vector<float> logits_;   // [page_size]
};

}  // namespace

AttentionMass attention_mass(const SelectorParams& params, int64_t q_head, int64_t q_block) {
  QueryBlock query(params, q_head, q_block);
  const int64_t page_size = params.kv.page_size;
  const auto num_rows = static_cast<size_t>(query.num_rows());
  std::vector<float> largest(num_rows, -std::numeric_limits<float>::infinity());
  std::vector<double> sum(num_rows, 0.0);
  for (int64_t page = 0; page <= q_block; ++page) {
    query.load_page(page);
    for (size_t row = 0; row < num_rows; ++row) {
      const std::span<const float> logits = query.logits(static_cast<int64_t>(row));
      if (logits.empty()) continue;
      const float top = std::max(largest[row], *std::max_element(logits.begin(), logits.end()));
      double added = 0;
      for (const float logit : logits) added += static_cast<double>(std::exp(logit - top));
      sum[row] = sum[row] * static_cast<double>(std::exp(largest[row] - top)) + added;
      largest[row] = top;
    }
  }
  AttentionMass mass;
  mass.keys.resize(static_cast<size_t>(query.num_keys()), 0.0f);
  mass.blocks.resize(static_cast<size_t>(q_block + 1), 0.0);
  mass.peaks.resize(mass.blocks.size());
  for (int64_t page = 0; page <= q_block; ++page) {
    query.load_page(page);
    float* keys = mass.keys.data() + page * page_size;
    for (size_t row = 0; row < num_rows; ++row) {
      const auto scale = static_cast<float>(1 / sum[row]);
      const std::span<const float> logits = query.logits(static_cast<int64_t>(row));
      BlockPeak peak;
      for (size_t t = 0; t < logits.size(); ++t) {
        const float weight = scale * std::exp(logits[t] - largest[row]);
        keys[t] += weight / static_cast<float>(num_rows);
        peak.mass += weight;
        if (weight <= peak.key_weight) continue;
        peak.key = page * page_size + static_cast<int64_t>(t);
        peak.key_weight = weight;
      }
      BlockPeak& highest = mass.peaks[static_cast<size_t>(page)];
      if (peak.mass > highest.mass) highest = peak;
    }
    const int64_t count = std::min(page_size, query.num_keys() - page * page_size);
    for (int64_t t = 0; t < count; ++t) {
      mass.blocks[static_cast<size_t>(page)] += static_cast<double>(keys[t]);
    }
  }
  return mass;
}

}  // namespace fovea::quality
