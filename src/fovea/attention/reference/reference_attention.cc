#include "fovea/attention/reference/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/float8.h"

namespace fovea {
namespace {

double load(const TensorView& view, int64_t offset) {
  if (view.dtype == DType::kF32) return view.as<const float>()[offset];
  if (view.dtype == DType::kF8E4M3) return to_float(view.as<const Float8E4M3>()[offset]);
  if (view.dtype == DType::kI8) return view.as<const int8_t>()[offset];
  return to_float(view.as<const BFloat16>()[offset]);
}

void store(const TensorView& view, int64_t offset, double value) {
  if (view.dtype == DType::kF32) {
    view.as<float>()[offset] = static_cast<float>(value);
  } else {
    view.as<BFloat16>()[offset] = to_bfloat16(static_cast<float>(value));
  }
}

// One query row of one head, and what it needs to find its keys.
class Row {
 public:
  Row(const AttentionParams& params, int64_t sequence, int64_t q_head, int64_t q_row)
      : params_(params),
        sequence_(sequence),
        q_head_(q_head),
        q_row_(q_row),
        kv_head_(q_head / params.group_size()),
        kv_len_(params.batch.kv_lens[sequence]),
        q_len_(params.batch.q_offsets[sequence + 1] - params.batch.q_offsets[sequence]),
        position_(kv_len_ - q_len_ + q_row - params.batch.q_offsets[sequence]),
        out_(static_cast<size_t>(params.head_dim()), 0.0) {}

  void attend() {
    collect_terms();
    const double sink = params_.sinks.empty() ? -std::numeric_limits<double>::infinity()
                                              : load(params_.sinks, q_head_);
    double max = sink;
    for (const Term& term : terms_) max = std::max(max, term.logit);
    for (const Term& term : terms_) max = std::isnan(term.logit) ? term.logit : max;
    double sum = 0;
    if (max != -std::numeric_limits<double>::infinity()) {
      sum = std::exp(sink - max);
      for (const Term& term : terms_) {
        const double weight = std::exp(term.logit - max);
        sum += weight;
        for (size_t d = 0; d < out_.size(); ++d) {
          out_[d] += weight * term.v_scale *
                     load(*term.v, term.v_offset + static_cast<int64_t>(d) * term.v_step);
        }
      }
    }
    const TensorView& out = params_.out;
    for (size_t d = 0; d < out_.size(); ++d) {
      store(out, q_row_ * out.stride[0] + q_head_ * out.stride[1] + static_cast<int64_t>(d),
            sum == 0 ? 0.0 : out_[d] / sum);
    }
    if (!params_.lse.empty()) {
      params_.lse.as<float>()[q_head_ * params_.lse.stride[0] + q_row_] =
          static_cast<float>(sum == 0 ? max : max + std::log(sum));
    }
  }

 private:
  struct Term {
    double logit;
    const TensorView* v;
    int64_t v_offset;
    int64_t v_step = 1;  // between elements of the value
    double v_scale = 1;
  };

  void collect_terms() {
    const int64_t end = params_.causal ? std::min(kv_len_, position_ + 1) : kv_len_;
    const int64_t begin =
        params_.window_left >= 0 ? std::max<int64_t>(0, position_ - params_.window_left) : 0;
    if (params_.selection == nullptr) {
      for (int64_t t = begin; t < end; ++t) add_key(t);
      return;
    }
    const int64_t block_size = params_.selection->block_size;
    const int64_t q_block = position_ / block_size;
    const std::vector<bool> is_listed = listed_blocks(q_block);
    for (int64_t t = begin; t < end; ++t) {
      if (is_listed[static_cast<size_t>(t / block_size)]) add_key(t);
    }
    if (!params_.periphery.enabled()) return;
    for (int64_t b = 0; b < q_block; ++b) {
      if (!is_listed[static_cast<size_t>(b)] && b * block_size >= begin) add_mean(b);
    }
  }

  std::vector<bool> listed_blocks(int64_t q_block) const {
    const BlockSelectionView& selection = *params_.selection;
    const int64_t list = selection.list(
        q_head_, sequence_, q_block - first_q_block(q_len_, kv_len_, selection.block_size));
    std::vector<bool> is_listed(static_cast<size_t>(end_q_block(kv_len_, selection.block_size)));
    for (int32_t i = 0; i < selection.len[list]; ++i) {
      is_listed[static_cast<size_t>(selection.blocks[selection.begin[list] + i])] = true;
    }
    return is_listed;
  }

  void add_key(int64_t t) {
    const KvView& kv = params_.kv;
    if (!kv.is_paged()) {
      const int64_t row = kv.kv_offsets[sequence_] + t;
      terms_.push_back({logit(kv.k, row * kv.k.stride[0] + kv_head_ * kv.k.stride[1]), &kv.v,
                        row * kv.v.stride[0] + kv_head_ * kv.v.stride[1]});
      return;
    }
    const int64_t page = kv.page_table[sequence_ * kv.page_table_stride + t / kv.page_size];
    const int64_t slot = t % kv.page_size;
    const double dot =
        logit(kv.k, page * kv.k.stride[0] + kv_head_ * kv.k.stride[1] + slot * kv.k.stride[2]);
    const int64_t v_offset = page * kv.v.stride[0] + kv_head_ * kv.v.stride[1];
    if (kv.holds_codes()) {
      terms_.push_back({dot * scale_of(kv.k_scale, page), &kv.v, v_offset + f8_value_slot(slot),
                        kv.v.stride[2], scale_of(kv.v_scale, page)});
    } else {
      terms_.push_back({dot, &kv.v, v_offset + slot * kv.v.stride[2]});
    }
  }

  // Of K or V: one for each head, or for each page and head.
  double scale_of(const TensorView& scale, int64_t page) const {
    if (scale.empty()) return 1;
    return load(scale, (scale.rank == 2 ? page * scale.stride[0] : 0) + kv_head_);
  }

  void add_mean(int64_t b) {
    const Periphery& periphery = params_.periphery;
    const int64_t row = params_.kv.is_paged()
                            ? params_.kv.page_table[sequence_ * params_.kv.page_table_stride + b]
                            : periphery.block_offsets[sequence_] + b;
    const TensorView& k = periphery.k_mean;
    const TensorView& v = periphery.v_mean;
    const double bias = std::log(static_cast<double>(params_.selection->block_size));
    terms_.push_back({logit(k, row * k.stride[0] + kv_head_ * k.stride[1]) + bias, &v,
                      row * v.stride[0] + kv_head_ * v.stride[1]});
  }

  double logit(const TensorView& k, int64_t k_offset) const {
    const int64_t q_offset = q_row_ * params_.q.stride[0] + q_head_ * params_.q.stride[1];
    double dot = 0;
    for (int64_t d = 0; d < params_.head_dim(); ++d) {
      dot += load(params_.q, q_offset + d) * load(k, k_offset + d);
    }
    const double q_scale = params_.q_scale.empty() ? 1 : load(params_.q_scale, q_head_);
    return params_.scale() * q_scale * dot;
  }

  const AttentionParams& params_;
  int64_t sequence_, q_head_, q_row_, kv_head_, kv_len_, q_len_, position_;
  std::vector<Term> terms_;
  std::vector<double> out_;
};

class ReferenceBackend : public AttentionBackend {
 public:
  std::string_view name() const override { return "reference"; }

  std::string why_unsupported(const AttentionParams& params,
                              const Context& context) const override {
    if (context.device.type != DeviceType::kCpu) return "runs on the CPU only";
    if (params.q.dtype == DType::kF16) return "needs f32, bf16 or f8e4m3";
    return "";
  }

  void run(const AttentionParams& params, const Context& context) const override {
    for (int64_t s = 0; s < params.batch.batch_size; ++s) {
      const int64_t first = params.batch.q_offsets[s];
      const int64_t q_len = params.batch.q_offsets[s + 1] - first;
      parallel_for(context, q_len * params.num_q_heads(), [&](int64_t task, int32_t) {
        Row(params, s, task % params.num_q_heads(), first + task / params.num_q_heads()).attend();
      });
    }
  }
};

}  // namespace

const AttentionBackend& reference_attention_backend() {
  static const ReferenceBackend backend;
  return backend;
}

}  // namespace fovea
