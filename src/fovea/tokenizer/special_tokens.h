// Finds tokens that are matched in text as they stand, before any merging: control and added
// tokens.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fovea/tokenizer/tokenizer_data.h"

namespace fovea {

/// A stretch of text: [begin, end) is the token `id`, or plain text when `id` is -1.
struct TextFragment {
  size_t begin;
  size_t end;
  int32_t id;
};

/// Immutable after construction, so that threads may share it.
class SpecialTokens {
 public:
  /// Takes the control, unknown and user-defined tokens of `data` that have a spelling.
  explicit SpecialTokens(const TokenizerData& data);

  /// Fragments of `text` in order, without gaps. Where tokens overlap the longest wins, then the
  /// leftmost. Control and unknown tokens count only with `parse_special`.
  std::vector<TextFragment> split(std::string_view text, bool parse_special) const;

 private:
  struct Node {
    int32_t always_id = -1;   // a user-defined token that ends here
    int32_t special_id = -1;  // a token of any kind that ends here
  };

  int32_t child(int32_t node, uint8_t byte) const;
  // Longest token at text[begin] with at most `max_size` bytes; size 0 when there is none.
  TextFragment longest_at(std::string_view text, size_t begin, size_t max_size,
                          bool parse_special) const;

  std::vector<Node> nodes_;  // a trie of bytes, node 0 its root
  std::array<int32_t, 256> root_children_{};
  std::unordered_map<uint64_t, int32_t> children_;  // by node and byte, below the root
};

}  // namespace fovea
