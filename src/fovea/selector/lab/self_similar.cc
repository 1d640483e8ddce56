// SpargeAttention's first stage, arXiv 2502.18137: means may speak only for blocks whose rows are
// alike. Key blocks that are not are kept, query blocks that are not keep everything; among the
// rest the smallest set of blocks that covers a share of the attention between means.
#include <algorithm>
#include <cmath>

#include "fovea/selector/lab/pooled.h"

namespace fovea::lab {
namespace {

// Mean cosine of all pairs of rows, a row with itself included: the squared norm of the mean of the
// rows' directions.
class Similarity {
 public:
  explicit Similarity(int64_t head_dim) : sum_(static_cast<size_t>(head_dim)) {}

  void add(const float* row) {
    double square = 0;
    for (size_t c = 0; c < sum_.size(); ++c) {
      square += static_cast<double>(row[c]) * static_cast<double>(row[c]);
    }
    const double norm = square > 0 ? std::sqrt(square) : 1.0;
    for (size_t c = 0; c < sum_.size(); ++c) sum_[c] += static_cast<double>(row[c]) / norm;
    ++count_;
  }
  double value() const {
    double square = 0;
    for (const double x : sum_) square += x * x;
    return square / static_cast<double>(count_ * count_);
  }

 private:
  std::vector<double> sum_;
  int64_t count_ = 0;
};

class SelfSimilar final : public Method {
 public:
  explicit SelfSimilar(const Sequence& sequence)
      : sequence_(sequence),
        pooled_(sequence),
        least_(static_cast<double>(sequence.params.settings.least_similarity)),
        differs_(static_cast<size_t>(sequence.num_kv_heads * sequence.num_blocks)) {
    std::vector<float> key(static_cast<size_t>(sequence.head_dim));
    for (size_t i = 0; i < differs_.size(); ++i) {
      const auto head = static_cast<int64_t>(i) / sequence.num_blocks;
      const auto block = static_cast<int64_t>(i) % sequence.num_blocks;
      Similarity similarity(sequence.head_dim);
      for (int64_t t = 0; t < sequence.block_size; ++t) {
        sequence.read_key(head, block * sequence.block_size + t, key.data());
        similarity.add(key.data());
      }
      differs_[i] = similarity.value() < least_ ? 1 : 0;
    }
  }

  void judge(const QueryBlock& block, Scratch& scratch, Verdict& verdict) const override {
    const Plane plane = pooled_.logits(block, scratch);
    const float largest = *std::max_element(plane.data, plane.data + block.index + 1);
    const uint8_t* const differs = differs_.data() + block.kv_head * sequence_.num_blocks;
    std::vector<float> rank_of_differing(verdict.score.size());
    for (size_t b = 0; b < verdict.score.size(); ++b) {
      if (differs[b] == 0) continue;
      // A budget takes these before all others, whose scores are probabilities.
      rank_of_differing[b] = 2 + std::exp2(plane.data[b] - largest);
      plane.data[b] = kUnseen;
      verdict.keep[b] = 1;
    }
    to_probabilities(plane, block.index + 1);
    std::copy_n(plane.data, block.index, verdict.score.begin());
    keep_coverage(sequence_, block, static_cast<double>(plane.data[block.index]),
                  coverage_of(sequence_.params.settings), verdict);
    for (size_t b = 0; b < verdict.score.size(); ++b) {
      if (differs[b] != 0) verdict.score[b] = rank_of_differing[b];
    }
    Similarity similarity(sequence_.head_dim);
    for (int64_t r = 0; r < block.num_rows; ++r) {
      similarity.add(block.rows + r * sequence_.head_dim);
    }
    if (similarity.value() < least_)
      std::fill(verdict.keep.begin(), verdict.keep.end(), uint8_t{1});
  }

 private:
  const Sequence& sequence_;
  const PooledKeys pooled_;
  const double least_;
  std::vector<uint8_t> differs_;  // [num_kv_heads, num_blocks]
};

}  // namespace

std::unique_ptr<Method> make_self_similar(const Sequence& sequence) {
  return std::make_unique<SelfSimilar>(sequence);
}

}  // namespace fovea::lab
