#include "fovea/tokenizer/special_tokens.h"

#include <algorithm>
#include <functional>
#include <map>

namespace fovea {
namespace {

uint64_t edge(int32_t node, uint8_t byte) {
  return uint64_t{static_cast<uint32_t>(node)} << 8 | byte;
}

}  // namespace

SpecialTokens::SpecialTokens(const TokenizerData& data) : nodes_(1) {
  root_children_.fill(-1);
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const TokenType type = data.types[i];
    if (type != TokenType::kControl && type != TokenType::kUnknown &&
        type != TokenType::kUserDefined) {
      continue;
    }
    int32_t node = 0;
    for (const char c : data.tokens[i]) {
      const auto byte = static_cast<uint8_t>(c);
      int32_t next = child(node, byte);
      if (next < 0) {
        next = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
        if (node == 0) {
          root_children_[byte] = next;
        } else {
          children_[edge(node, byte)] = next;
        }
      }
      node = next;
    }
    if (node == 0) continue;  // an empty spelling matches nothing
    Node& last = nodes_[static_cast<size_t>(node)];
    last.special_id = static_cast<int32_t>(i);
    if (type == TokenType::kUserDefined) last.always_id = static_cast<int32_t>(i);
  }
}

int32_t SpecialTokens::child(int32_t node, uint8_t byte) const {
  if (node == 0) return root_children_[byte];
  const auto found = children_.find(edge(node, byte));
  return found == children_.end() ? -1 : found->second;
}

TextFragment SpecialTokens::longest_at(std::string_view text, size_t begin, size_t max_size,
                                       bool parse_special) const {
  TextFragment longest{begin, begin, -1};
  int32_t node = 0;
  const size_t end = begin + std::min(max_size, text.size() - begin);
  for (size_t i = begin; i < end; ++i) {
    node = child(node, static_cast<uint8_t>(text[i]));
    if (node < 0) break;
    const Node& at = nodes_[static_cast<size_t>(node)];
    const int32_t id = parse_special ? at.special_id : at.always_id;
    if (id >= 0) longest = {begin, i + 1, id};
  }
  return longest;
}

std::vector<TextFragment> SpecialTokens::split(std::string_view text, bool parse_special) const {
  // Longest first, as llama.cpp does it: a long token is found even where a short one begins before
  // it.
  std::map<size_t, std::vector<TextFragment>, std::greater<>> matches_by_size;
  for (size_t i = 0; i < text.size(); ++i) {
    if (root_children_[static_cast<uint8_t>(text[i])] < 0) continue;
    const TextFragment match = longest_at(text, i, text.size(), parse_special);
    if (match.id >= 0) matches_by_size[match.end - match.begin].push_back(match);
  }
  std::vector<TextFragment> found;
  std::vector<bool> taken(matches_by_size.empty() ? 0 : text.size());
  while (!matches_by_size.empty()) {
    const auto [size, matches] = *matches_by_size.begin();
    matches_by_size.erase(matches_by_size.begin());
    for (const TextFragment& match : matches) {
      if (taken[match.begin]) continue;
      // What is taken is at least as long as this match, so it covers one of its ends if it
      // overlaps.
      if (taken[match.end - 1]) {
        const TextFragment shorter = longest_at(text, match.begin, size - 1, parse_special);
        if (shorter.id < 0) continue;
        std::vector<TextFragment>& others = matches_by_size[shorter.end - shorter.begin];
        const auto later = [](const TextFragment& a, const TextFragment& b) {
          return a.begin < b.begin;
        };
        others.insert(std::upper_bound(others.begin(), others.end(), shorter, later), shorter);
        continue;
      }
      std::fill(taken.begin() + static_cast<ptrdiff_t>(match.begin),
                taken.begin() + static_cast<ptrdiff_t>(match.end), true);
      found.push_back(match);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const TextFragment& a, const TextFragment& b) { return a.begin < b.begin; });
  std::vector<TextFragment> fragments;
  size_t done = 0;
  for (const TextFragment& match : found) {
    if (match.begin > done) fragments.push_back({done, match.begin, -1});
    fragments.push_back(match);
    done = match.end;
  }
  if (done < text.size()) fragments.push_back({done, text.size(), -1});
  return fragments;
}

}  // namespace fovea
