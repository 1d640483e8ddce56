#include "fovea/selector/lab/token_pattern.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "fovea/base/checked_math.h"

namespace fovea::lab {
namespace {

std::vector<size_t> descending(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

}  // namespace

PackedColumns pack_keys(const Sequence& sequence) {
  return PackedColumns(
      sequence.num_kv_heads, sequence.plan.kv_len, sequence.head_dim, sequence.context,
      [&](int64_t head, int64_t key, float* column) { sequence.read_key(head, key, column); });
}

TokenPattern token_pattern(const Sequence& sequence, const PackedColumns& keys, int64_t q_head,
                           int64_t num_rows) {
  const int64_t kv_len = sequence.plan.kv_len, d = sequence.head_dim;
  const int64_t kv_head = sequence.kv_head(q_head);
  TokenPattern pattern;
  pattern.num_rows = std::min(num_rows, sequence.plan.q_len);
  Scratch scratch;
  scratch.rows.resize(
      static_cast<size_t>(ceil_div(pattern.num_rows, kRowsAtOnce) * kRowsAtOnce * d));
  for (int64_t r = 0; r < pattern.num_rows; ++r) {
    sequence.read_query(q_head, sequence.plan.q_len - pattern.num_rows + r,
                        scratch.rows.data() + r * d);
  }
  const Plane plane = make_plane(scratch.rows.data(), pattern.num_rows, keys, kv_head, kv_len,
                                 sequence.scale_log2, scratch);
  for (int64_t r = 0; r < pattern.num_rows; ++r) {
    float* const row = plane.row(r);
    const int64_t position = kv_len - pattern.num_rows + r;
    for (int64_t b = 0; b < sequence.num_blocks; ++b) {
      if (!sequence.is_bad(kv_head, b)) continue;
      std::fill_n(row + b * sequence.block_size, sequence.block_size, kUnseen);
    }
    if (!std::all_of(row, row + position + 1, [](float x) { return std::isfinite(x); })) return {};
  }
  pattern.is_finite = true;
  pattern.by_key.resize(static_cast<size_t>(kv_len));
  pattern.by_distance.resize(static_cast<size_t>(kv_len));
  for (int64_t r = 0; r < pattern.num_rows; ++r) {
    float* const row = plane.row(r);
    const int64_t position = kv_len - pattern.num_rows + r;
    const float most = *std::max_element(row, row + position + 1);
    double sum = 0;
    for (int64_t t = 0; t <= position; ++t) {
      row[t] = std::exp2(row[t] - most);
      sum += static_cast<double>(row[t]);
    }
    for (int64_t t = 0; t <= position; ++t) {
      const double probability = static_cast<double>(row[t]) / sum;
      pattern.by_key[static_cast<size_t>(t)] += probability;
      pattern.by_distance[static_cast<size_t>(position - t)] += probability;
    }
  }
  return pattern;
}

std::vector<uint8_t> largest(const std::vector<double>& values, int64_t count) {
  std::vector<uint8_t> chosen(values.size());
  for (const size_t i : descending(values)) {
    if (count-- <= 0) break;
    chosen[i] = 1;
  }
  return chosen;
}

std::vector<uint8_t> largest_to(const std::vector<double>& values, double coverage) {
  std::vector<uint8_t> chosen(values.size());
  double left = coverage * std::accumulate(values.begin(), values.end(), 0.0);
  for (const size_t i : descending(values)) {
    if (left <= 0) break;
    chosen[i] = 1;
    left -= values[i];
  }
  return chosen;
}

LinePattern::LinePattern(const TokenPattern& tokens, const std::vector<uint8_t>& keys,
                         const std::vector<uint8_t>& distances, int64_t block_size)
    : is_finite_(tokens.is_finite) {
  const auto kv_len = static_cast<int64_t>(tokens.by_key.size());
  const auto num_blocks = static_cast<size_t>(ceil_div(kv_len, block_size));
  column_.resize(num_blocks);
  distance_.resize(num_blocks + 1);
  keep_column_.resize(num_blocks);
  keep_distance_.resize(num_blocks + 1);
  for (int64_t t = 0; t < kv_len; ++t) {
    const auto token = static_cast<size_t>(t);
    const auto block = static_cast<size_t>(t / block_size);
    column_[block] += tokens.by_key[token];
    keep_column_[block] |= keys[token];
    // A distance of whole blocks and a part runs through block pairs of two distances, through each
    // over a share of the rows.
    const double part = static_cast<double>(t % block_size) / static_cast<double>(block_size);
    distance_[block] += (1 - part) * tokens.by_distance[token];
    distance_[block + 1] += part * tokens.by_distance[token];
    keep_distance_[block] |= distances[token];
    if (part > 0) keep_distance_[block + 1] |= distances[token];
  }
}

void LinePattern::judge(const QueryBlock& block, Verdict& verdict) const {
  if (!is_finite_) {
    std::fill(verdict.score.begin(), verdict.score.end(), std::numeric_limits<float>::infinity());
    return;
  }
  for (size_t b = 0; b < verdict.score.size(); ++b) {
    const size_t distance = static_cast<size_t>(block.index) - b;
    verdict.score[b] = static_cast<float>(column_[b] + distance_[distance]);
    verdict.keep[b] = keep_column_[b] | keep_distance_[distance];
  }
}

}  // namespace fovea::lab
