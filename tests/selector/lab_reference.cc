#include "tests/selector/lab_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fovea/attention/append_kv.h"
#include "fovea/tensor/bfloat16.h"

namespace fovea::testing {
namespace {

using Row = std::vector<double>;

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

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
  double radius(int64_t block) const {
    const TensorView& radius = params_.stats.radius;
    const int64_t entry = stats_entry(params_, plan_.seq, block);
    return static_cast<double>(
        radius.as<float>()[entry * radius.stride[0] + kv_head_ * radius.stride[1]]);
  }
  Row centroid(int64_t block) const {
    const TensorView& centroid = params_.stats.centroid;
    const int64_t entry = stats_entry(params_, plan_.seq, block);
    return read(centroid, entry * centroid.stride[0] + kv_head_ * centroid.stride[1]);
  }
  // As the type of keys holds it.
  Row stored(const Row& row) const {
    Row result;
    for (const double value : row) {
      const auto single = static_cast<float>(value);
      result.push_back(static_cast<double>(
          params_.q.dtype == DType::kF32 ? single : to_float(to_bfloat16(single))));
    }
    return result;
  }
  // Witnesses that the page keeps and the mean of the rest.
  std::vector<Row> stored_witness_rows(int64_t block) const {
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

double distance(WitnessChoice choice, const Row& key, const Row& from) {
  Row difference = key;
  for (size_t c = 0; c < key.size(); ++c) difference[c] -= from[c];
  if (choice == WitnessChoice::kNorm) return dot(key, difference) / std::sqrt(dot(key, key));
  return dot(difference, difference);
}

// Whether fewer than a share of the radii before the block's are under it.
bool is_calm(const Head& head, int64_t block) {
  std::vector<double> before;
  for (int64_t b = 0; b < block; ++b) before.push_back(head.radius(b));
  if (before.empty()) return false;
  std::sort(before.begin(), before.end());
  const double rank =
      static_cast<double>(head.settings().calm_quantile) * static_cast<double>(before.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const double next = before[std::min(low + 1, before.size() - 1)];
  return head.radius(block) < before[low] + (rank - std::floor(rank)) * (next - before[low]);
}

// Witnesses and the mean of the rest: those of the page, or the variant's.
std::vector<Row> witness_rows(const Head& head, int64_t block) {
  const SelectorSettings& settings = head.settings();
  if (!varies_witnesses(settings)) return head.stored_witness_rows(block);
  std::vector<Row> left = head.keys_of(block), rows;
  const bool calm = settings.calm_quantile > 0 && is_calm(head, block);
  while (!calm && std::ssize(rows) < settings.num_witnesses) {
    size_t best = 0;
    double farthest = -std::numeric_limits<double>::infinity();
    for (size_t t = 0; t < left.size(); ++t) {
      double nearest = distance(settings.witness_choice, left[t], head.centroid(block));
      for (const Row& witness : rows) {
        if (settings.witness_choice == WitnessChoice::kFar) break;
        nearest = std::min(nearest, distance(settings.witness_choice, left[t], witness));
      }
      if (nearest > farthest) best = t;
      farthest = std::max(farthest, nearest);
    }
    rows.push_back(left[best]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
  }
  Row mean(left.front().size());
  for (const Row& key : left) {
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += key[c] / static_cast<double>(left.size());
  }
  rows.push_back(mean);
  double largest = 0;
  for (const Row& row : rows) {
    for (const double value : row) largest = std::max(largest, std::abs(value));
  }
  const auto scale = static_cast<double>(f8_growing_scale(static_cast<float>(largest)));
  for (Row& row : rows) {
    for (double& value : row) {
      if (!settings.f8_witnesses) break;
      value =
          static_cast<double>(to_float(to_float8_e4m3(static_cast<float>(value / scale)))) * scale;
    }
    row = head.stored(row);
  }
  return rows;
}

// masses[row][block] as witnesses estimate them, in nats; or only the largest term of each.
std::vector<Row> witness_masses(const Question& asked, bool largest_term) {
  const Head& head = asked.head;
  std::vector<std::vector<Row>> rows_of_block;
  for (int64_t b = 0; b < asked.q_block; ++b) rows_of_block.push_back(witness_rows(head, b));
  std::vector<Row> masses;
  for (const int64_t position : head.rows_of(asked.q_block)) {
    const Row q = head.query(position);
    Row of_row;
    for (int64_t b = 0; b < asked.q_block; ++b) {
      Row terms;
      for (const Row& row : rows_of_block[static_cast<size_t>(b)]) {
        terms.push_back(head.scale() * dot(q, row));
      }
      const auto num_witnesses = static_cast<int64_t>(terms.size()) - 1;
      terms.back() += std::log(static_cast<double>(head.block_size() - num_witnesses));
      of_row.push_back(largest_term ? *std::max_element(terms.begin(), terms.end())
                                    : log_sum_exp(terms));
    }
    masses.push_back(of_row);
  }
  return masses;
}

Judged judge_nearest(const Question& asked) {
  const std::vector<Row> terms = witness_masses(asked, true);
  Judged judged;
  for (int64_t b = 0; b < asked.q_block; ++b) {
    double least_gap = std::numeric_limits<double>::infinity();
    for (const Row& row : terms) {
      Row others = row;
      others.erase(others.begin() + b);
      const double best = *std::max_element(others.begin(), others.end());
      least_gap = std::min(least_gap, best - row[static_cast<size_t>(b)]);
    }
    judged.score.push_back(-least_gap);
    judged.keep.push_back(least_gap <= static_cast<double>(asked.head.settings().nearest_gap));
  }
  return judged;
}

double coverage_of(const SelectorSettings& settings) {
  return static_cast<double>(settings.coverage > 0 ? settings.coverage
                                                   : default_coverage(settings.method));
}

// Keeps more and more of the best until `coverage` of all shares, `rest` included, is kept; forced
// and already kept blocks count first.
void keep_coverage(const Question& asked, double rest, Judged& judged) {
  const double coverage = coverage_of(asked.head.settings());
  double total = rest, kept = rest;
  std::vector<size_t> candidates;
  judged.keep.resize(judged.score.size());
  for (size_t b = 0; b < judged.score.size(); ++b) {
    total += judged.score[b];
    if (asked.is_forced(static_cast<int64_t>(b)) || judged.keep[b]) {
      kept += judged.score[b];
    } else {
      candidates.push_back(b);
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](size_t a, size_t b) { return judged.score[a] > judged.score[b]; });
  for (const size_t b : candidates) {
    if (kept >= coverage * total) break;
    judged.keep[b] = true;
    kept += judged.score[b];
  }
}

Judged judge_mass(const Question& asked) {
  const std::vector<Row> masses = witness_masses(asked, false);
  Judged judged;
  for (int64_t b = 0; b < asked.q_block; ++b) {
    double sum = 0;
    for (const Row& row : masses) {
      sum += std::pow(std::exp(row[static_cast<size_t>(b)] - log_sum_exp(row)),
                      static_cast<double>(asked.head.settings().mass_power));
    }
    judged.score.push_back(sum / static_cast<double>(masses.size()));
  }
  keep_coverage(asked, 0, judged);
  return judged;
}

Judged judge_peak(const Question& asked) {
  const std::vector<Row> masses = witness_masses(asked, false);
  Judged judged;
  for (int64_t b = 0; b < asked.q_block; ++b) {
    double most = 0;
    for (const Row& row : masses) {
      most = std::max(most, std::exp(row[static_cast<size_t>(b)] - log_sum_exp(row)));
    }
    judged.score.push_back(most);
    judged.keep.push_back(most >= static_cast<double>(asked.head.settings().least_peak));
  }
  return judged;
}

Judged judge_antidiagonal(const Question& asked) {
  const Head& head = asked.head;
  const int64_t stride = head.settings().antidiagonal_stride;
  const std::vector<int64_t> rows = head.rows_of(asked.q_block);
  Row sums(static_cast<size_t>(asked.q_block + 1));
  for (int64_t u = rows.front() / stride; u <= rows.back() / stride; ++u) {
    Row logits;
    for (int64_t w = 0; w <= u; ++w) {
      double sum = 0;
      for (int64_t s = 0; s < stride; ++s) {
        const int64_t query = u * stride + stride - 1 - s, key = w * stride + s;
        if (query < rows.front() || query > rows.back() || key >= head.kv_len()) continue;
        sum += dot(head.query(query), head.key(key));
      }
      logits.push_back(head.scale() * sum / static_cast<double>(stride));
    }
    const double all = log_sum_exp(logits);
    for (size_t w = 0; w < logits.size(); ++w) {
      const int64_t block = static_cast<int64_t>(w) * stride / head.block_size();
      sums[static_cast<size_t>(block)] += std::exp(logits[w] - all);
    }
  }
  Judged judged;
  judged.score.assign(sums.begin(), sums.end() - 1);
  keep_coverage(asked, sums.back(), judged);
  return judged;
}

Row mean_of(const std::vector<Row>& rows) {
  Row mean(rows.front().size());
  for (const Row& row : rows) {
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += row[c] / static_cast<double>(rows.size());
  }
  return mean;
}

double mean_cosine(const std::vector<Row>& rows) {
  double sum = 0;
  for (const Row& a : rows) {
    for (const Row& b : rows) sum += dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
  }
  return sum / static_cast<double>(rows.size() * rows.size());
}

std::vector<Row> queries_at(const Head& head, const std::vector<int64_t>& positions) {
  std::vector<Row> rows;
  for (const int64_t position : positions) rows.push_back(head.query(position));
  return rows;
}

// Logits between the mean of `rows` and of the keys of each of blocks [0, end).
Row mean_logits(const Head& head, const std::vector<Row>& rows, int64_t end) {
  Row logits;
  for (int64_t b = 0; b < end; ++b) {
    logits.push_back(head.scale() * dot(mean_of(rows), mean_of(head.keys_of(b))));
  }
  return logits;
}

Row softmax(const Row& logits) {
  const double all = log_sum_exp(logits);
  Row result;
  for (const double logit : logits) result.push_back(std::exp(logit - all));
  return result;
}

Judged judge_self_similar(const Question& asked) {
  const Head& head = asked.head;
  const auto least = static_cast<double>(head.settings().least_similarity);
  const std::vector<Row> rows = queries_at(head, head.rows_of(asked.q_block));
  const Row logits = mean_logits(head, rows, asked.q_block + 1);
  Judged judged;
  Row alike = logits;
  for (int64_t b = 0; b < asked.q_block; ++b) {
    const bool differs = mean_cosine(head.keys_of(b)) < least;
    judged.keep.push_back(differs);
    if (differs) alike[static_cast<size_t>(b)] = -std::numeric_limits<double>::infinity();
  }
  const Row shares = softmax(alike);
  judged.score.assign(shares.begin(), shares.end() - 1);
  const std::vector<bool> differs = judged.keep;
  keep_coverage(asked, shares.back(), judged);
  for (size_t b = 0; b < differs.size(); ++b) {
    if (differs[b]) judged.score[b] = 1e6 + logits[b];  // before all others, the best of them first
  }
  if (mean_cosine(rows) < least) judged.keep.assign(judged.keep.size(), true);
  return judged;
}

// Probabilities of the last `num_rows` rows of the call, by key and by distance.
struct Lines {
  Row by_key, by_distance;
  std::vector<int64_t> rows;
};

Lines lines_of_last(const Head& head, int64_t num_rows) {
  const auto len = static_cast<size_t>(head.kv_len());
  Lines lines{Row(len), Row(len), {}};
  for (int64_t p = std::max(head.first_position(), head.kv_len() - num_rows); p < head.kv_len();
       ++p) {
    const Row q = head.query(p);
    Row logits;
    for (int64_t t = 0; t <= p; ++t) logits.push_back(head.scale() * dot(q, head.key(t)));
    const Row shares = softmax(logits);
    for (size_t t = 0; t < shares.size(); ++t) {
      lines.by_key[t] += shares[t];
      lines.by_distance[static_cast<size_t>(p) - t] += shares[t];
    }
    lines.rows.push_back(p);
  }
  return lines;
}

std::vector<size_t> best_first(const Row& values) {
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

// The best of `values`: `count` of them, or as many as hold `coverage` of the sum.
std::vector<bool> best(const Row& values, int64_t count, double coverage) {
  std::vector<bool> chosen(values.size());
  double all = 0, kept = 0;
  for (const double value : values) all += value;
  for (const size_t i : best_first(values)) {
    if (count-- <= 0 || kept >= coverage * all) break;
    chosen[i] = true;
    kept += values[i];
  }
  return chosen;
}

// Every pair of a query and a key of two blocks, one by one.
Judged judge_lines(const Question& asked, const Lines& lines, const std::vector<bool>& keys,
                   const std::vector<bool>& distances) {
  const int64_t size = asked.head.block_size();
  Judged judged;
  for (int64_t b = 0; b < asked.q_block; ++b) {
    double mass = 0;
    bool keep = false;
    for (int64_t t = b * size; t < (b + 1) * size; ++t) {
      mass += lines.by_key[static_cast<size_t>(t)];
      keep = keep || keys[static_cast<size_t>(t)];
      for (int64_t q = asked.q_block * size; q < (asked.q_block + 1) * size; ++q) {
        const auto distance = static_cast<size_t>(q - t);
        if (distance >= distances.size()) continue;
        mass += lines.by_distance[distance] / static_cast<double>(size);
        keep = keep || distances[distance];
      }
    }
    judged.score.push_back(mass);
    judged.keep.push_back(keep);
  }
  return judged;
}

Judged judge_vertical_slash(const Question& asked) {
  const SelectorSettings& settings = asked.head.settings();
  const Lines lines = lines_of_last(asked.head, 64);
  return judge_lines(asked, lines, best(lines.by_key, settings.vertical_tokens, 2),
                     best(lines.by_distance, settings.slash_tokens, 2));
}

Judged judge_query_aware(const Question& asked) {
  const Head& head = asked.head;
  const double coverage = coverage_of(head.settings());
  const int64_t size = head.block_size(), end = (head.kv_len() + size - 1) / size;
  const Lines lines = lines_of_last(head, size);
  const Row pooled = softmax(mean_logits(head, queries_at(head, lines.rows), end));
  double divergence = 0;
  for (int64_t b = 0; b < end; ++b) {
    double truth = 0;
    for (int64_t t = b * size; t < std::min((b + 1) * size, head.kv_len()); ++t) {
      truth += lines.by_key[static_cast<size_t>(t)] / static_cast<double>(lines.rows.size());
    }
    const double guess = pooled[static_cast<size_t>(b)], middle = (truth + guess) / 2;
    divergence += truth * std::log(truth / middle) / 2 + guess * std::log(guess / middle) / 2;
  }
  const int64_t all = static_cast<int64_t>(lines.by_key.size()) + 1;
  if (std::sqrt(divergence) >= static_cast<double>(head.settings().most_divergence)) {
    return judge_lines(asked, lines, best(lines.by_key, all, coverage),
                       best(lines.by_distance, all, coverage));
  }
  // The best pairs of blocks of the whole map.
  Row map;
  size_t own = 0;  // where the asked query block's pairs start
  for (int64_t i = head.first_position() / size; i < end; ++i) {
    if (i == asked.q_block) own = map.size();
    const Row shares = softmax(mean_logits(head, queries_at(head, head.rows_of(i)), i + 1));
    map.insert(map.end(), shares.begin(), shares.end());
  }
  const std::vector<bool> chosen = best(map, static_cast<int64_t>(map.size()), coverage);
  Judged judged;
  for (size_t b = 0; b < static_cast<size_t>(asked.q_block); ++b) {
    judged.score.push_back(map[own + b]);
    judged.keep.push_back(chosen[own + b]);
  }
  return judged;
}

Judged judge(const Question& asked) {
  switch (asked.head.settings().method) {
    case SelectorMethod::kAntidiagonal:
      return judge_antidiagonal(asked);
    case SelectorMethod::kVerticalSlash:
      return judge_vertical_slash(asked);
    case SelectorMethod::kQueryAware:
      return judge_query_aware(asked);
    case SelectorMethod::kSelfSimilar:
      return judge_self_similar(asked);
    case SelectorMethod::kNearest:
      return judge_nearest(asked);
    case SelectorMethod::kMass:
      return judge_mass(asked);
    case SelectorMethod::kPeak:
      return judge_peak(asked);
    case SelectorMethod::kMinMax:
      return judge_minmax(asked);
    case SelectorMethod::kWitness:
      return judge_by_alpha(asked, witness_masses(asked, false));
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
