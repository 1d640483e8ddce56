// Generated sequences for the selector tests, in pages that lie in shuffled order.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "fovea/selector/block_selector.h"
#include "fovea/selector/block_stats.h"
#include "fovea/tensor/bfloat16.h"
#include "fovea/tensor/tensor.h"

namespace fovea::testing {

struct CaseShape {
  DType dtype = DType::kF32;
  int64_t num_q_heads = 4, num_kv_heads = 2, head_dim = 32, block_size = 16, num_witnesses = 4;
};

/// One prompt: q, k and v as f32, [len, heads, head_dim].
struct Prompt {
  int64_t len = 0;
  std::vector<float> q, k, v;
};

/// Queries and keys share directions, so that some blocks clearly matter more than others.
inline Prompt make_prompt(const CaseShape& shape, int64_t len, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  auto fill = [&](std::vector<float>& values, int64_t heads, float slow_share) {
    values.resize(static_cast<size_t>(len * heads * shape.head_dim));
    std::vector<float> slow(static_cast<size_t>(heads * shape.head_dim));
    for (int64_t t = 0; t < len; ++t) {
      for (size_t c = 0; c < slow.size(); ++c) {
        if (t % shape.block_size == 0) slow[c] = slow_share * normal(generator);
        values[static_cast<size_t>(t) * slow.size() + c] = slow[c] + normal(generator);
      }
    }
  };
  Prompt prompt;
  prompt.len = len;
  fill(prompt.q, shape.num_q_heads, 0.7f);
  fill(prompt.k, shape.num_kv_heads, 0.7f);
  fill(prompt.v, shape.num_kv_heads, 0.0f);
  return prompt;
}

inline void put(const TensorView& tensor, int64_t index, float value) {
  if (tensor.dtype == DType::kF32) {
    tensor.as<float>()[index] = value;
  } else {
    tensor.as<BFloat16>()[index] = to_bfloat16(value);
  }
}

/// Pages, tables and statistics of several sequences that grow chunk by chunk.
class PagedCase {
 public:
  PagedCase(const CaseShape& shape, int64_t num_pages, int64_t batch_size, uint64_t seed)
      : shape_(shape),
        k_(shape.dtype, {num_pages, shape.num_kv_heads, shape.block_size, shape.head_dim}),
        v_(shape.dtype, {num_pages, shape.num_kv_heads, shape.block_size, shape.head_dim}),
        stats_(shape.dtype, num_pages, shape.num_kv_heads, shape.head_dim, shape.block_size,
               shape.num_witnesses),
        stride_(num_pages),
        table_(static_cast<size_t>(batch_size * num_pages), 0),
        kv_lens_(static_cast<size_t>(batch_size), 0) {
    for (int64_t p = 0; p < num_pages; ++p) free_.push_back(static_cast<int32_t>(p));
    std::shuffle(free_.begin(), free_.end(), std::mt19937_64(seed));
  }

  /// Lets sequence `seq` start with the first `num_blocks` pages of sequence `from`, statistics
  /// included, as a prefix cache does.
  void share_prefix(int64_t seq, int64_t from, int64_t num_blocks) {
    for (int64_t b = 0; b < num_blocks; ++b) table(seq, b) = table(from, b);
    kv_lens_[static_cast<size_t>(seq)] = num_blocks * shape_.block_size;
  }

  /// Writes the next `count` keys of `prompt` and the statistics of the pages that this fills.
  void append(int64_t seq, const Prompt& prompt, int64_t count, const Context& context = {}) {
    const int64_t begin = kv_lens_[static_cast<size_t>(seq)], end = begin + count;
    const int64_t d = shape_.head_dim, heads = shape_.num_kv_heads, size = shape_.block_size;
    for (int64_t t = begin; t < end; ++t) {
      if (t % size == 0) {
        table(seq, t / size) = free_.back();
        free_.pop_back();
      }
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t c = 0; c < d; ++c) {
          const int64_t to = ((table(seq, t / size) * heads + h) * size + t % size) * d + c;
          const auto from = static_cast<size_t>((t * heads + h) * d + c);
          put(k_.view(), to, prompt.k[from]);
          put(v_.view(), to, prompt.v[from]);
        }
      }
    }
    kv_lens_[static_cast<size_t>(seq)] = end;
    compute_block_stats(kv(), seq, begin / size, end / size, 0, stats_.view(), context);
  }

  KvView kv() const {
    KvView view;
    view.k = k_.view();
    view.v = v_.view();
    view.page_table = table_.data();
    view.page_table_stride = stride_;
    view.page_size = shape_.block_size;
    return view;
  }
  const BlockStats& stats() const { return stats_; }
  const CaseShape& shape() const { return shape_; }
  const std::vector<int64_t>& kv_lens() const { return kv_lens_; }
  int32_t& table(int64_t seq, int64_t block) {
    return table_[static_cast<size_t>(seq * stride_ + block)];
  }

 private:
  CaseShape shape_;
  Tensor k_, v_;
  BlockStats stats_;
  int64_t stride_;
  std::vector<int32_t> table_, free_;
  std::vector<int64_t> kv_lens_;
};

/// A call over the last rows of some sequences: owns what SelectorParams points to.
struct Call {
  Tensor q;
  std::vector<int64_t> q_offsets = {0}, kv_lens, prompt_lens;
  SelectorParams params;

  /// q_lens[s] last rows of prompts[s], of which the case has written kv_lens keys.
  Call(PagedCase& pages, const std::vector<const Prompt*>& prompts,
       const std::vector<int64_t>& q_lens, const SelectorSettings& settings) {
    const CaseShape& shape = pages.shape();
    kv_lens = pages.kv_lens();
    for (size_t s = 0; s < q_lens.size(); ++s) {
      q_offsets.push_back(q_offsets.back() + q_lens[s]);
      prompt_lens.push_back(prompts[s] != nullptr ? prompts[s]->len : kv_lens[s]);
    }
    q = Tensor(shape.dtype, {q_offsets.back(), shape.num_q_heads, shape.head_dim});
    const int64_t row = shape.num_q_heads * shape.head_dim;
    for (size_t s = 0; s < q_lens.size(); ++s) {
      const int64_t first = kv_lens[s] - q_lens[s];
      for (int64_t i = 0; i < q_lens[s] * row; ++i) {
        put(q.view(), q_offsets[s] * row + i, prompts[s]->q[static_cast<size_t>(first * row + i)]);
      }
    }
    params.q = q.view();
    params.kv = pages.kv();
    params.batch = {static_cast<int64_t>(q_lens.size()), q_offsets.data(), kv_lens.data()};
    params.stats = pages.stats().view();
    params.prompt_lens = prompt_lens.data();
    params.settings = settings;
    params.settings.block_size = shape.block_size;
    params.settings.num_witnesses = shape.num_witnesses;
  }
};

/// The whole prompt in one call.
struct WholePrompt {
  Prompt prompt;
  PagedCase pages;
  Call call;

  WholePrompt(const CaseShape& shape, Prompt given, const SelectorSettings& settings)
      : prompt(std::move(given)),
        pages(shape, prompt.len / shape.block_size + 1, 1, 7),
        call((pages.append(0, prompt, prompt.len), pages), {&prompt}, {prompt.len}, settings) {}
};

inline std::vector<int32_t> list_of(const BlockSelection& selection, int64_t q_head,
                                    int64_t q_block) {
  const auto r = static_cast<size_t>(q_head * selection.num_q_blocks + q_block);
  const auto begin = selection.blocks.begin() + selection.begin[r];
  return {begin, begin + selection.len[r]};
}

}  // namespace fovea::testing
