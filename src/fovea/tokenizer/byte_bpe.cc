// Byte-level BPE: a piece of text starts as one symbol per byte; the adjacent pair with the lowest
// merge rank becomes one symbol, the leftmost first among equals, until no pair has a rank.
#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <unordered_map>

#include "fovea/base/error.h"
#include "fovea/base/shown.h"
#include "fovea/tokenizer/byte_alphabet.h"
#include "fovea/tokenizer/pretokenizer.h"
#include "fovea/tokenizer/token_model.h"
#include "fovea/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr uint32_t kNoRank = UINT32_MAX;

struct Merge {
  uint64_t pair = UINT64_MAX;  // left id, right id
  uint32_t rank = kNoRank;
  int32_t id = -1;
};

// Merges by pair of ids: open addressing, at most half full. One probe is the inner loop of
// encoding.
class MergeTable {
 public:
  explicit MergeTable(size_t num_merges)
      : slots_(std::bit_ceil(2 * num_merges + 2)), shift_(64 - std::countr_zero(slots_.size())) {}

  // The first of equal pairs stays: it has the lower rank.
  void insert(const Merge& merge) {
    Merge& slot = slots_[slot_of(merge.pair)];
    if (slot.rank == kNoRank) slot = merge;
  }

  // Rank kNoRank when the pair does not merge. Negative ids never do.
  const Merge& find(int32_t left, int32_t right) const {
    return slots_[slot_of(pair_of(left, right))];
  }

  static uint64_t pair_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

 private:
  size_t slot_of(uint64_t pair) const {
    size_t i =
        pair * 0x9E3779B97F4A7C15u >> shift_;  // Fibonacci hashing: the high bits are mixed best
    while (slots_[i].rank != kNoRank && slots_[i].pair != pair) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  std::vector<Merge> slots_;
  int shift_;
};

struct Symbol {
  int32_t id;  // -1: a byte without a token, or swallowed by the symbol to the left
  int32_t prev;
  int32_t next;
};

struct Candidate {
  uint32_t rank;
  int32_t position;  // of the left symbol
  int32_t left_id;
  int32_t right_id;
};

// For a heap whose front merges first.
bool merges_later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

// Memory that one call of encode reuses from piece to piece.
struct Scratch {
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

class ByteBpeModel : public TokenModel {
 public:
  explicit ByteBpeModel(const TokenizerData& data)
      : unk_id_(data.unk_id),
        ignore_merges_(data.ignore_merges),
        pretokenizer_(data.patterns),
        merges_(data.merges.size()) {
    std::unordered_map<std::string_view, int32_t>
        ids;  // by spelling; of equal ones the last counts
    ids.reserve(data.tokens.size());
    for (size_t i = 0; i < data.tokens.size(); ++i) ids[data.tokens[i]] = static_cast<int32_t>(i);
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto found = ids.find(alphabet_from_byte(static_cast<uint8_t>(byte)));
      byte_ids_[byte] = found == ids.end() ? unk_id_ : found->second;
    }
    if (ignore_merges_) add_whole_pieces(data);
    add_merges(data, ids);
  }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    std::string storage;
    text = repair_utf8(text, storage);
    Scratch scratch;
    size_t begin = 0;
    for (const size_t end : pretokenizer_.split(text)) {
      encode_piece(text.substr(begin, end - begin), scratch, ids);
      begin = end;
    }
  }

  std::string token_bytes(std::string_view token, TokenType type) const override {
    if (type == TokenType::kNormal) {
      if (auto bytes = bytes_from_alphabet(token)) return *std::move(bytes);
    }
    return std::string(token);
  }

 private:
  void add_whole_pieces(const TokenizerData& data) {
    for (size_t i = 0; i < data.tokens.size(); ++i) {
      if (data.types[i] != TokenType::kNormal) continue;
      if (auto bytes = bytes_from_alphabet(data.tokens[i])) {
        whole_pieces_[*std::move(bytes)] = static_cast<int32_t>(i);
      }
    }
  }

  void add_merges(const TokenizerData& data,
                  const std::unordered_map<std::string_view, int32_t>& ids) {
    const auto id_of = [&](const std::string& token, size_t rank) {
      const auto found = ids.find(token);
      if (found == ids.end()) {
        fail(ErrorCode::kInvalidFile, "merges must name tokens of the vocabulary, got \"{}\" at {}",
             shown(token), rank);
      }
      return found->second;
    };
    for (size_t rank = 0; rank < data.merges.size(); ++rank) {
      const auto& [left, right] = data.merges[rank];
      merges_.insert({MergeTable::pair_of(id_of(left, rank), id_of(right, rank)),
                      static_cast<uint32_t>(rank), id_of(left + right, rank)});
    }
  }

  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
    if (ignore_merges_) {
      const auto found = whole_pieces_.find(std::string(piece));
      if (found != whole_pieces_.end()) {
        ids.push_back(found->second);
        return;
      }
    }
    auto& [symbols, heap] = scratch;
    const auto num_symbols = static_cast<int32_t>(piece.size());
    symbols.clear();
    heap.clear();
    for (int32_t i = 0; i < num_symbols; ++i) {
      const auto byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
      symbols.push_back({byte_ids_[byte], i - 1, i + 1 < num_symbols ? i + 1 : -1});
    }
    const auto at = [&symbols = symbols](int32_t i) -> Symbol& {
      return symbols[static_cast<size_t>(i)];
    };
    const auto candidate_at = [&](int32_t i) -> Candidate {
      const int32_t left = at(i).id;
      const int32_t right = at(at(i).next).id;
      return {left < 0 || right < 0 ? kNoRank : merges_.find(left, right).rank, i, left, right};
    };
    for (int32_t i = 0; i + 1 < num_symbols; ++i) {
      const Candidate candidate = candidate_at(i);
      if (candidate.rank != kNoRank) heap.push_back(candidate);
    }
    std::make_heap(heap.begin(), heap.end(), merges_later);
    const auto push_candidate = [&, &heap = heap](int32_t i) {
      const Candidate candidate = candidate_at(i);
      if (candidate.rank == kNoRank) return;
      heap.push_back(candidate);
      std::push_heap(heap.begin(), heap.end(), merges_later);
    };
    while (!heap.empty()) {
      const Candidate best = heap.front();
      std::pop_heap(heap.begin(), heap.end(), merges_later);
      heap.pop_back();
      Symbol& left = at(best.position);
      // A symbol on either side may have merged away since the candidate was made.
      if (left.id != best.left_id || left.next < 0 || at(left.next).id != best.right_id) continue;
      left.id = merges_.find(best.left_id, best.right_id).id;
      at(left.next).id = -1;
      left.next = at(left.next).next;
      if (left.next >= 0) {
        at(left.next).prev = best.position;
        push_candidate(best.position);
      }
      if (left.prev >= 0) push_candidate(left.prev);
    }
    for (int32_t i = num_symbols > 0 ? 0 : -1; i >= 0; i = at(i).next) {
      // A byte that the vocabulary cannot spell is dropped: the reference tokenizers do so, too.
      if (at(i).id >= 0) ids.push_back(at(i).id);
    }
  }

  int32_t unk_id_;
  bool ignore_merges_;
  PreTokenizer pretokenizer_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<std::string, int32_t> whole_pieces_;
};

}  // namespace

std::unique_ptr<TokenModel> make_byte_bpe_model(const TokenizerData& data) {
  return std::make_unique<ByteBpeModel>(data);
}

}  // namespace fovea
