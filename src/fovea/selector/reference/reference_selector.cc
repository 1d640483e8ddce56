#include "fovea/selector/reference/reference_selector.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/base/parallel.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea {
namespace {

using Row = std::vector<double>;

Row read_row(const TensorView& tensor, int64_t offset, int64_t size) {
  Row row(static_cast<size_t>(size));
  for (int64_t c = 0; c < size; ++c) {
    row[static_cast<size_t>(c)] =
        tensor.dtype == DType::kF32
            ? static_cast<double>(tensor.as<float>()[offset + c])
            : static_cast<double>(to_float(tensor.as<BFloat16>()[offset + c]));
  }
  return row;
}

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

double norm(const Row& a) { return std::sqrt(dot(a, a)); }

double log_sum_exp(const std::vector<double>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

// What the selectors know of one block.
struct BlockFacts {
  bool finite = true;
  double radius = 0, uplift = 0;
  Row centroid, rest_mean;
  std::vector<Row> keys;  // witnesses, or for the oracle every key
};

BlockFacts read_block(const SelectorParams& params, int64_t seq, int64_t kv_head, int64_t block) {
  const BlockStatsView& stats = params.stats;
  const int64_t head_dim = params.kv.head_dim();
  const int64_t entry = stats_entry(params, seq, block);
  auto offset = [&](const TensorView& t, int64_t row) {
    return entry * t.stride[0] + row * t.stride[1];
  };
  BlockFacts facts;
  facts.finite = stats.non_finite.as<int32_t>()[offset(stats.non_finite, kv_head)] == 0;
  facts.radius = static_cast<double>(stats.radius.as<float>()[offset(stats.radius, kv_head)]);
  facts.centroid = read_row(stats.centroid, offset(stats.centroid, kv_head), head_dim);
  if (params.settings.method == SelectorMethod::kWitness) {
    facts.rest_mean = read_row(stats.rest_mean, offset(stats.rest_mean, kv_head), head_dim);
    for (int64_t w = 0; w < stats.num_witnesses; ++w) {
      facts.keys.push_back(read_row(
          stats.witness, offset(stats.witness, kv_head * stats.num_witnesses + w), head_dim));
    }
  }
  for (int64_t t = 0; params.settings.method == SelectorMethod::kOracle && t < stats.block_size;
       ++t) {
    const KvView& kv = params.kv;
    const int64_t key = kv.is_paged()
                            ? entry * kv.k.stride[0] + kv_head * kv.k.stride[1] + t * kv.k.stride[2]
                            : (kv.kv_offsets[seq] + block * stats.block_size + t) * kv.k.stride[0] +
                                  kv_head * kv.k.stride[1];
    facts.keys.push_back(read_row(kv.k, key, head_dim));
  }
  return facts;
}

// beta_b r_b, the radius that the rescue branch adds, for blocks [0, num_blocks).
std::vector<double> uplifts(const SelectorParams& params, const SequencePlan& plan, int64_t kv_head,
                            int64_t num_blocks) {
  const SelectorSettings& settings = params.settings;
  const int64_t population =
      settings.quantiles == QuantileMode::kCausal ? num_blocks : plan.kv_len / settings.block_size;
  std::vector<float> radii;
  for (int64_t b = 0; b < population; ++b) {
    const BlockFacts facts = read_block(params, plan.seq, kv_head, b);
    if (facts.finite) radii.push_back(static_cast<float>(facts.radius));
  }
  std::vector<double> result(static_cast<size_t>(num_blocks), 0.0);
  if (radii.empty()) return result;
  const double low = interpolated_quantile(radii, static_cast<double>(settings.quantile_low));
  const double high = interpolated_quantile(radii, static_cast<double>(settings.quantile_high));
  const double most = settings.uplift_clamp > 0
                          ? interpolated_quantile(radii, static_cast<double>(settings.uplift_clamp))
                          : std::numeric_limits<double>::infinity();
  for (int64_t b = 0; b < num_blocks; ++b) {
    const double radius = read_block(params, plan.seq, kv_head, b).radius;
    const double beta = high > low ? std::clamp((radius - low) / (high - low), 0.0, 1.0)
                                   : (radius > low ? 1.0 : 0.0);
    result[static_cast<size_t>(b)] = beta * std::min(radius, most);
  }
  return result;
}

double softmax_scale(const SelectorParams& params) {
  return params.softmax_scale > 0 ? static_cast<double>(params.softmax_scale)
                                  : 1 / std::sqrt(static_cast<double>(params.kv.head_dim()));
}

// Log of the mass that `witness` gives to the mean of the rest.
double log_rest_mass(const SelectorParams& params, const BlockFacts& block, const Row& q) {
  const auto rest = static_cast<double>(params.stats.block_size - params.stats.num_witnesses);
  return softmax_scale(params) * dot(q, block.rest_mean) + std::log(rest);
}

// Log of the mass that each branch gives to one block for one query.
std::vector<double> log_masses(const SelectorParams& params, const BlockFacts& block,
                               const Row& q) {
  const double scale = softmax_scale(params);
  const double base = scale * dot(q, block.centroid);
  switch (params.settings.method) {
    case SelectorMethod::kRescue:
      return {base, base + scale * norm(q) * block.uplift};
    case SelectorMethod::kBound:
      return {base + scale * norm(q) * block.radius};
    case SelectorMethod::kWitness:
    case SelectorMethod::kOracle: {
      std::vector<double> logits;
      for (const Row& key : block.keys) logits.push_back(scale * dot(q, key));
      if (!block.rest_mean.empty()) logits.push_back(log_rest_mass(params, block, q));
      return {log_sum_exp(logits)};
    }
    default:
      return {base};
  }
}

// Best blocks first; equals in order of their number.
std::vector<int64_t> ranked(const std::vector<double>& scores, std::vector<int64_t> blocks) {
  std::sort(blocks.begin(), blocks.end(), [&](int64_t a, int64_t b) {
    const double x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  return blocks;
}

void keep_best(const std::vector<double>& scores, const std::vector<int64_t>& candidates,
               int64_t count, std::vector<bool>& keep) {
  for (int64_t b : ranked(scores, candidates)) {
    if (count == 0) return;
    if (keep[static_cast<size_t>(b)]) continue;
    keep[static_cast<size_t>(b)] = true;
    --count;
  }
}

// Marks the blocks that the scores keep among `candidates`.
void decide(const SelectorParams& params, const SequencePlan& plan, int64_t q_block,
            const ForcedBlocks& forced, const ReferenceScores& scores, std::vector<bool>& keep) {
  const SelectorSettings& settings = params.settings;
  std::vector<int64_t> candidates, in_maximum;
  int64_t non_finite = 0;
  for (int64_t b = 0; b < q_block; ++b) {
    const bool is_forced = b < forced.sink_end || b >= forced.local_begin;
    if (scores.non_finite[static_cast<size_t>(b)]) {
      keep[static_cast<size_t>(b)] = true;
      non_finite += is_forced ? 0 : 1;
      continue;
    }
    if (!is_forced) candidates.push_back(b);
    if (!is_forced || settings.forced_in_maximum) in_maximum.push_back(b);
  }
  if (settings.density > 0) {
    const int64_t left = plan.budget[static_cast<size_t>(q_block)] - forced.count(q_block);
    const int64_t budget =
        std::clamp<int64_t>(left - non_finite, 0, static_cast<int64_t>(candidates.size()));
    const int64_t second = scores.branches.size() > 1 ? rescue_budget(settings, budget) : 0;
    keep_best(scores.branches[0], candidates, budget - second, keep);
    if (second > 0) keep_best(scores.branches[1], candidates, second, keep);
    return;
  }
  for (size_t x = 0; x < scores.branches.size(); ++x) {
    const std::vector<double>& score = scores.branches[x];
    double best = -std::numeric_limits<double>::infinity();
    for (int64_t b : in_maximum) best = std::max(best, score[static_cast<size_t>(b)]);
    const auto alpha = static_cast<double>(x == 0 ? settings.alpha_base : settings.alpha_rescue);
    for (int64_t b : candidates) {
      if (score[static_cast<size_t>(b)] >= best + std::log(alpha)) {
        keep[static_cast<size_t>(b)] = true;
      }
    }
  }
}

class ReferenceSelector final : public SelectorBackend {
 public:
  std::string_view name() const override { return "reference"; }

  std::string why_unsupported(const SelectorParams& params, const Context& context) const override {
    if (context.device.type != DeviceType::kCpu) return "runs on the CPU only";
    return is_lab(params.settings) ? "the lab's references are in its tests" : "";
  }

  void run(const SelectorParams& params, const Context& context,
           BlockSelection& selection) const override {
    const std::vector<SequencePlan> plans = plan_sequences(params);
    SelectionBuilder builder(params, plans, resolve_num_threads(context));
    for (const SequencePlan& plan : plans) {
      const int64_t num_blocks = plan.num_q_blocks();
      parallel_for(context, num_blocks * params.q.shape[1], [&](int64_t task, int32_t thread) {
        select_one(params, plan, task / num_blocks, plan.first_block + task % num_blocks, thread,
                   builder);
      });
    }
    builder.build(selection);
  }

 private:
  static void select_one(const SelectorParams& params, const SequencePlan& plan, int64_t q_head,
                         int64_t q_block, int32_t thread, SelectionBuilder& builder) {
    const ForcedBlocks forced = forced_blocks(params.settings, plan, q_block);
    std::vector<bool> keep(static_cast<size_t>(q_block + 1), false);
    int64_t non_finite = 0;
    if (forced.sink_end < forced.local_begin &&
        params.settings.method != SelectorMethod::kStreaming) {
      const ReferenceScores scores = reference_scores(params, plan, q_head, q_block);
      decide(params, plan, q_block, forced, scores, keep);
      non_finite = std::count(scores.non_finite.begin(), scores.non_finite.end(), true);
    }
    std::vector<int32_t>& pool = builder.pool(thread);
    const auto begin = static_cast<int64_t>(pool.size());
    for (int64_t b = 0; b <= q_block; ++b) {
      if (keep[static_cast<size_t>(b)] || b < forced.sink_end || b >= forced.local_begin) {
        pool.push_back(static_cast<int32_t>(b));
      }
    }
    builder.finish_list(plan, q_head, q_block, thread, begin, forced.count(q_block), non_finite);
  }
};

ReferenceScores scores_of_head(const SelectorParams& params, const SequencePlan& plan,
                               int64_t q_head, int64_t q_block) {
  const int64_t group_size = params.q.shape[1] / params.kv.num_kv_heads();
  const int64_t kv_head = q_head / group_size;
  const int64_t num_rows = plan.num_rows(q_block, params.settings.block_size);
  std::vector<Row> rows;
  double largest_q = 0;
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t row = plan.first_row(q_block, params.settings.block_size) + r;
    rows.push_back(read_row(params.q, row * params.q.stride[0] + q_head * params.q.stride[1],
                            params.q.shape[2]));
    const double length = norm(rows.back());
    largest_q = std::isnan(length) ? length : std::max(largest_q, length);
    if (std::isnan(largest_q)) break;
  }
  std::vector<BlockFacts> blocks;
  double largest_k = 0;
  for (int64_t b = 0; b < q_block; ++b) {
    blocks.push_back(read_block(params, plan.seq, kv_head, b));
    if (blocks.back().finite) {
      largest_k = std::max(largest_k, norm(blocks.back().centroid) + blocks.back().radius);
    }
  }
  ReferenceScores scores;
  const double scale = std::max(1.0, static_cast<double>(params.softmax_scale));
  // Both are false for NaN.
  const bool judged =
      largest_q * largest_q <= kLargestLogit && largest_q * largest_k * scale <= kLargestLogit;
  for (const BlockFacts& block : blocks) scores.non_finite.push_back(!judged || !block.finite);
  scores.branches.assign(params.settings.method == SelectorMethod::kRescue ? 2 : 1,
                         std::vector<double>(static_cast<size_t>(q_block), 0.0));
  if (!judged) return scores;
  if (params.settings.method == SelectorMethod::kRescue) {
    const std::vector<double> uplift = uplifts(params, plan, kv_head, q_block);
    for (size_t b = 0; b < blocks.size(); ++b) blocks[b].uplift = uplift[b];
  }

  // masses[branch][block][row]
  std::vector<std::vector<std::vector<double>>> masses(
      scores.branches.size(), std::vector<std::vector<double>>(blocks.size()));
  std::vector<std::vector<double>> normalisers(scores.branches.size());
  const bool by_means = params.settings.aggregation == Aggregation::kMaxOverMeans &&
                        params.settings.method == SelectorMethod::kWitness;
  for (const Row& q : rows) {
    std::vector<std::vector<double>> of_row(scores.branches.size());
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (!blocks[b].finite) continue;
      const std::vector<double> mass = log_masses(params, blocks[b], q);
      for (size_t x = 0; x < mass.size(); ++x) {
        masses[x][b].push_back(mass[x]);
        of_row[x].push_back(by_means ? log_rest_mass(params, blocks[b], q) : mass[x]);
      }
    }
    for (size_t x = 0; x < of_row.size(); ++x) {
      normalisers[x].push_back(of_row[x].empty() ? 0.0 : log_sum_exp(of_row[x]));
    }
  }
  for (size_t x = 0; x < masses.size(); ++x) {
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (!blocks[b].finite) continue;
      if (params.settings.aggregation == Aggregation::kSum) {
        scores.branches[x][b] = log_sum_exp(masses[x][b]);
      } else {
        double best = -std::numeric_limits<double>::infinity();
        for (size_t r = 0; r < rows.size(); ++r) {
          best = std::max(best, masses[x][b][r] - normalisers[x][r]);
        }
        scores.branches[x][b] = best;
      }
    }
  }
  return scores;
}

}  // namespace

ReferenceScores reference_scores(const SelectorParams& params, const SequencePlan& plan,
                                 int64_t q_head, int64_t q_block) {
  if (!params.settings.lists_per_kv_head) return scores_of_head(params, plan, q_head, q_block);
  const int64_t group_size = params.q.shape[1] / params.kv.num_kv_heads();
  const int64_t first = q_head / group_size * group_size;
  ReferenceScores together = scores_of_head(params, plan, first, q_block);
  for (int64_t h = first + 1; h < first + group_size; ++h) {
    const ReferenceScores scores = scores_of_head(params, plan, h, q_block);
    for (size_t b = 0; b < scores.non_finite.size(); ++b) {
      together.non_finite[b] = together.non_finite[b] || scores.non_finite[b];
      for (size_t x = 0; x < scores.branches.size(); ++x) {
        double& score = together.branches[x][b];
        const double other = scores.branches[x][b];
        score = params.settings.aggregation == Aggregation::kSum ? log_sum_exp({score, other})
                                                                 : std::max(score, other);
      }
    }
  }
  return together;
}

const SelectorBackend& reference_selector() {
  static const ReferenceSelector selector;
  return selector;
}

}  // namespace fovea
