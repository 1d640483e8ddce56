// Which keys, and which distances, the last queries of a chunk attend to: vertical and slash lines
// of the attention map, and what they make of blocks.
#pragma once

#include "fovea/selector/lab/method.h"

namespace fovea::lab {

/// Columns of all keys written so far.
PackedColumns pack_keys(const Sequence& sequence);

/// Sums of probabilities over the last query rows of one q head.
struct TokenPattern {
  std::vector<double> by_key;       // [kv_len]
  std::vector<double> by_distance;  // [kv_len]: key at so many tokens before the query
  int64_t num_rows = 0;
  bool is_finite = false;  // false: the rows cannot be judged, nothing else is set
};
/// Of the last `num_rows` rows, fewer when the chunk has fewer. Bad blocks are unseen.
TokenPattern token_pattern(const Sequence& sequence, const PackedColumns& keys, int64_t q_head,
                           int64_t num_rows);

/// Marks the `count` largest; equals in order of their number.
std::vector<uint8_t> largest(const std::vector<double>& values, int64_t count);
/// Marks the smallest set of largest values that reaches `coverage` of their sum.
std::vector<uint8_t> largest_to(const std::vector<double>& values, double coverage);

/// Lines rounded out to blocks, for every query block alike.
class LinePattern {
 public:
  LinePattern() = default;
  LinePattern(const TokenPattern& tokens, const std::vector<uint8_t>& keys,
              const std::vector<uint8_t>& distances, int64_t block_size);
  /// A block scores what its columns and its distance hold; it is kept where a chosen line crosses
  /// it. Scores are not finite when the rows could not be judged.
  void judge(const QueryBlock& block, Verdict& verdict) const;

 private:
  bool is_finite_ = false;
  std::vector<double> column_, distance_;  // sums of probabilities, per block and block distance
  std::vector<uint8_t> keep_column_, keep_distance_;
};

}  // namespace fovea::lab
