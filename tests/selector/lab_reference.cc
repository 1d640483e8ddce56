#include "tests/selector/lab_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/tensor/bfloat16.h"

namespace fovea::testing {
namespace {

using Row = std::vector<double>;

double log_sum_exp(const Row& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

// One sequence, one q head: rows and keys by their positions.
class Head {
 public:
  Head(const SelectorParams& params, const SequencePlan& plan, int64_t q_head)
      : params_(params),
        plan_(plan),
        q_head_(q_head),
        kv_head_(q_head / (params.q.shape[1] / params.kv.num_kv_heads())) {}

  int64_t block_size() const { return params_.settings.block_size; }
  int64_t head_dim() const { return params_.q.shape[2]; }
  int64_t kv_len() const { return plan_.kv_len; }
  int64_t first_position() const { return plan_.kv_len - plan_.q_len; }
  double scale() const {
    return params_.softmax_scale > 0 ? static_cast<double>(params_.softmax_scale)
                                     : 1 / std::sqrt(static_cast<double>(head_dim()));
  }
  const SelectorSettings& settings() const { return params_.settings; }

  Row query(int64_t position) const {
    const int64_t row = plan_.q_row + position - first_position();
    return read(params_.q, row * params_.q.stride[0] + q_head_ * params_.q.stride[1]);
  }
  Row key(int64_t position) const {
    const TensorView& k = params_.kv.k;
    return read(k, stats_entry(params_, plan_.seq, position / block_size()) * k.stride[0] +
                       kv_head_ * k.stride[1] + position % block_size() * k.stride[2]);
  }
  // Positions of the rows that query block `block` has in this call.
  std::vector<int64_t> rows_of(int64_t block) const {
    std::vector<int64_t> rows;
    for (int64_t p = block * block_size(); p < (block + 1) * block_size(); ++p) {
      if (p >= first_position() && p < kv_len()) rows.push_back(p);
    }
    return rows;
  }
  std::vector<Row> keys_of(int64_t block) const {
    std::vector<Row> keys;
    for (int64_t p = block * block_size(); p < std::min((block + 1) * block_size(), kv_len());
         ++p) {
      keys.push_back(key(p));
    }
    return keys;
  }
  // Witnesses and the mean of the rest.
  std::vector<Row> witness_rows(int64_t block) const {
    const BlockStatsView& stats = params_.stats;
    const int64_t entry = stats_entry(params_, plan_.seq, block);
    std::vector<Row> rows;
    for (int64_t w = 0; w < stats.num_witnesses; ++w) {
      rows.push_back(
          read(stats.witness, entry * stats.witness.stride[0] +
                                  (kv_head_ * stats.num_witnesses + w) * stats.witness.stride[1]));
    }
    rows.push_back(read(stats.rest_mean,
                        entry * stats.rest_mean.stride[0] + kv_head_ * stats.rest_mean.stride[1]));
    return rows;
  }

 private:
  Row read(const TensorView& tensor, int64_t offset) const {
    Row row(static_cast<size_t>(head_dim()));
    for (size_t c = 0; c < row.size(); ++c) {
      const int64_t at = offset + static_cast<int64_t>(c);
      row[c] = tensor.dtype == DType::kF32
                   ? static_cast<double>(tensor.as<float>()[at])
                   : static_cast<double>(to_float(tensor.as<BFloat16>()[at]));
    }
    return row;
  }

  const SelectorParams& params_;
  const SequencePlan& plan_;
  int64_t q_head_, kv_head_;
};

// Scores of blocks [0, q_block), and what is kept without a budget.
struct Judged {
  Row score;
  std::vector<bool> keep;
};

struct Question {
  const Head& head;
  int64_t q_block;
  ForcedBlocks forced;
  bool is_forced(int64_t b) const { return b < forced.sink_end || b >= forced.local_begin; }
};

// masses[row][block], in nats -> scores by the settings' aggregation, kept by alpha_base.
Judged judge_by_alpha(const Question& asked, const std::vector<Row>& masses) {
  const SelectorSettings& settings = asked.head.settings();
  Judged judged;
  double best = -std::numeric_limits<double>::infinity();
  for (int64_t b = 0; b < asked.q_block; ++b) {
    Row of_block;
    for (const Row& row : masses) {
      const double shift = settings.aggregation == Aggregation::kMax ? log_sum_exp(row) : 0.0;
      of_block.push_back(row[static_cast<size_t>(b)] - shift);
    }
    const double score = settings.aggregation == Aggregation::kMax
                             ? *std::max_element(of_block.begin(), of_block.end())
                             : log_sum_exp(of_block);
    judged.score.push_back(score);
    if (!asked.is_forced(b) || settings.forced_in_maximum) best = std::max(best, score);
  }
  for (const double score : judged.score) {
    judged.keep.push_back(score >= best + std::log(static_cast<double>(settings.alpha_base)));
  }
  return judged;
}

Judged judge_minmax(const Question& asked) {
  const Head& head = asked.head;
  const std::vector<int64_t> rows = head.rows_of(asked.q_block);
  std::vector<Row> masses(rows.size());
  for (int64_t b = 0; b < asked.q_block; ++b) {
    const std::vector<Row> keys = head.keys_of(b);
    for (size_t r = 0; r < rows.size(); ++r) {
      const Row q = head.query(rows[r]);
      double bound = 0;
      for (size_t c = 0; c < q.size(); ++c) {
        double best = -std::numeric_limits<double>::infinity();
        for (const Row& key : keys) best = std::max(best, q[c] * key[c]);
        bound += best;
      }
      masses[r].push_back(head.scale() * bound);
    }
  }
  return judge_by_alpha(asked, masses);
}

Judged judge(const Question& asked) {
  switch (asked.head.settings().method) {
    case SelectorMethod::kMinMax:
      return judge_minmax(asked);
    default:
      return {};
  }
}

}  // namespace

std::vector<int32_t> lab_reference_list(const SelectorParams& params, const SequencePlan& plan,
                                        int64_t q_head, int64_t q_block) {
  const Head head(params, plan, q_head);
  const Question asked{head, q_block, forced_blocks(params.settings, plan, q_block)};
  Judged judged = judge(asked);
  if (params.settings.density > 0) {
    std::vector<int64_t> candidates;
    for (int64_t b = 0; b < q_block; ++b) {
      if (!asked.is_forced(b)) candidates.push_back(b);
    }
    std::stable_sort(candidates.begin(), candidates.end(), [&](int64_t a, int64_t b) {
      return judged.score[static_cast<size_t>(a)] > judged.score[static_cast<size_t>(b)];
    });
    judged.keep.assign(static_cast<size_t>(q_block), false);
    const int64_t left = plan.budget[static_cast<size_t>(q_block)] - asked.forced.count(q_block);
    for (int64_t i = 0; i < std::min<int64_t>(left, std::ssize(candidates)); ++i) {
      judged.keep[static_cast<size_t>(candidates[static_cast<size_t>(i)])] = true;
    }
  }
  std::vector<int32_t> list;
  for (int64_t b = 0; b <= q_block; ++b) {
    if (asked.is_forced(b) || judged.keep[static_cast<size_t>(b)]) {
      list.push_back(static_cast<int32_t>(b));
    }
  }
  return list;
}

}  // namespace fovea::testing
