// FlexPrefill, arXiv 2502.20766: a head whose attention between means agrees with its true
// attention, as the last queries show, keeps the best of its whole map of means; any other keeps
// vertical and slash lines. Both cover a share of the attention.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "fovea/base/parallel.h"
#include "fovea/selector/lab/pooled.h"
#include "fovea/selector/lab/token_pattern.h"

namespace fovea::lab {
namespace {

// Square root of the Jensen-Shannon divergence of two distributions, in nats.
double jensen_shannon(const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  const auto add = [&](double x, double mean) {
    if (x > 0) sum += x * std::log(x / mean) / 2;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    add(p[i], (p[i] + q[i]) / 2);
    add(q[i], (p[i] + q[i]) / 2);
  }
  return std::sqrt(std::max(sum, 0.0));
}

class QueryAware final : public Method {
 public:
  explicit QueryAware(const Sequence& sequence)
      : sequence_(sequence), pooled_(sequence), heads_(static_cast<size_t>(sequence.num_q_heads)) {
    const PackedColumns keys = pack_keys(sequence);
    parallel_for(sequence.context, sequence.num_q_heads,
                 [&](int64_t head, int32_t) { look_at(head, keys); });
  }

  void judge(const QueryBlock& block, Scratch& scratch, Verdict& verdict) const override {
    const Head& head = heads_[static_cast<size_t>(block.q_head)];
    if (!head.means_agree) {
      head.lines.judge(block, verdict);
      return;
    }
    const Plane plane = pooled_.logits(block, scratch);
    to_probabilities(plane, block.index + 1);
    for (size_t b = 0; b < verdict.score.size(); ++b) {
      verdict.score[b] = plane.data[b];
      verdict.keep[b] = plane.data[b] >= head.least ? 1 : 0;
    }
  }

 private:
  struct Head {
    bool means_agree = false;
    float least = 0;    // if so: the probability that a pair of blocks must have
    LinePattern lines;  // if not
  };

  // Query rows [first, first + count) of the chunk, as one block that sees blocks up to `index`.
  QueryBlock read_block(int64_t q_head, int64_t index, int64_t first, int64_t count,
                        Scratch& scratch) const {
    const int64_t d = sequence_.head_dim;
    scratch.queries.assign(static_cast<size_t>(count * d), 0.0f);
    for (int64_t r = 0; r < count; ++r) {
      sequence_.read_query(q_head, first + r, scratch.queries.data() + r * d);
    }
    QueryBlock block;
    block.q_head = q_head;
    block.kv_head = sequence_.kv_head(q_head);
    block.index = index;
    block.num_rows = count;
    block.rows = scratch.queries.data();
    return block;
  }

  void look_at(int64_t q_head, const PackedColumns& keys) {
    const SequencePlan& plan = sequence_.plan;
    const SelectorSettings& settings = sequence_.params.settings;
    const double coverage = coverage_of(settings);
    Head& head = heads_[static_cast<size_t>(q_head)];
    const TokenPattern tokens = token_pattern(sequence_, keys, q_head, sequence_.block_size);
    if (!tokens.is_finite) return;
    Scratch scratch;
    const auto num_blocks = static_cast<size_t>(plan.end_block);
    std::vector<double> truth(num_blocks), pooled(num_blocks);
    for (size_t t = 0; t < tokens.by_key.size(); ++t) {
      truth[t / static_cast<size_t>(sequence_.block_size)] +=
          tokens.by_key[t] / static_cast<double>(tokens.num_rows);
    }
    const QueryBlock last = read_block(q_head, plan.end_block - 1, plan.q_len - tokens.num_rows,
                                       tokens.num_rows, scratch);
    const Plane of_last = pooled_.logits(last, scratch);
    to_probabilities(of_last, plan.end_block);
    std::copy_n(of_last.data, num_blocks, pooled.begin());
    head.means_agree =
        jensen_shannon(truth, pooled) < static_cast<double>(settings.most_divergence);
    if (head.means_agree) {
      head.least = least_of_map(q_head, coverage, scratch);
    } else {
      head.lines = LinePattern(tokens, largest_to(tokens.by_key, coverage),
                               largest_to(tokens.by_distance, coverage), sequence_.block_size);
    }
  }

  // The probability down to which pairs of blocks are kept, so that those of the head's whole map
  // hold `coverage` of its sum.
  float least_of_map(int64_t q_head, double coverage, Scratch& scratch) const {
    const SequencePlan& plan = sequence_.plan;
    std::vector<float> map;
    for (int64_t i = plan.first_block; i < plan.end_block; ++i) {
      const int64_t first =
          std::max<int64_t>(0, i * sequence_.block_size - sequence_.first_position());
      const QueryBlock block =
          read_block(q_head, i, first, plan.num_rows(i, sequence_.block_size), scratch);
      const Plane plane = pooled_.logits(block, scratch);
      to_probabilities(plane, i + 1);
      map.insert(map.end(), plane.data, plane.data + i + 1);
    }
    std::sort(map.begin(), map.end(), std::greater<float>());
    double left = coverage * static_cast<double>(plan.num_q_blocks());
    for (const float probability : map) {
      left -= static_cast<double>(probability);
      if (!(left > 0)) return probability;
    }
    return 0;
  }

  const Sequence& sequence_;
  const PooledKeys pooled_;
  std::vector<Head> heads_;
};

}  // namespace

std::unique_ptr<Method> make_query_aware(const Sequence& sequence) {
  return std::make_unique<QueryAware>(sequence);
}

}  // namespace fovea::lab
