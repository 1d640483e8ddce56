// SentencePiece BPE: text starts as one symbol per character, spaces written as U+2581; the
// adjacent pair whose concatenation is the token with the highest score becomes one symbol, the
// leftmost first among equals. Characters that are no token become their bytes' tokens.
#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

#include "fovea/base/error.h"
#include "fovea/tokenizer/token_model.h"
#include "fovea/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

struct Symbol {
  int32_t begin;
  int32_t size;  // 0: swallowed by the symbol to the left
  int32_t prev;
  int32_t next;
};

struct Candidate {
  float score;
  int32_t position;  // of the left symbol
  int32_t size;      // of both together: tells whether one of them has changed since
};

// For a heap whose front merges first.
bool merges_later(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score < b.score : a.position > b.position;
}

// Value of a byte token's spelling, "<0x41>"; -1 when `token` is not one.
int32_t byte_value(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int32_t value = 0;
  for (const char digit : token.substr(3, 2)) {
    int32_t nibble = 0;
    if (digit >= '0' && digit <= '9') {
      nibble = digit - '0';
    } else if (digit >= 'A' && digit <= 'F') {
      nibble = digit - 'A' + 10;
    } else {
      return -1;
    }
    value = value * 16 + nibble;
  }
  return value;
}

class SpmModel : public TokenModel {
 public:
  explicit SpmModel(const TokenizerData& data) : scores_(data.scores), unk_id_(data.unk_id) {
    byte_ids_.fill(-1);
    ids_.reserve(data.tokens.size());
    for (size_t i = 0; i < data.tokens.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      const std::string& token = data.tokens[i];
      if (token.empty()) continue;
      ids_[token] = id;  // of equal ones the last counts
      max_token_size_ = std::max(max_token_size_, token.size());
      const int32_t byte = byte_value(token);
      if (byte >= 0) byte_ids_[static_cast<size_t>(byte)] = id;
    }
    // Vocabularies without byte tokens may have the bytes themselves as tokens.
    for (size_t byte = 0; byte < 256; ++byte) {
      const char character = static_cast<char>(byte);
      if (byte_ids_[byte] < 0) byte_ids_[byte] = find({&character, 1});
    }
  }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    std::string marked;
    marked.reserve(text.size() + text.size() / 2);
    for (const char c : text) {
      if (c == ' ') {
        marked += kSpaceMark;
      } else {
        marked.push_back(c);
      }
    }
    if (marked.size() > static_cast<size_t>(INT32_MAX)) {
      fail(ErrorCode::kInvalidArgument, "text to encode must be below 2 GiB, got {} bytes",
           marked.size());
    }
    encode_marked(marked, ids);
  }

  std::string token_bytes(std::string_view token, TokenType type) const override {
    if (type == TokenType::kByte) {
      const int32_t byte = byte_value(token);
      if (byte >= 0) return std::string(1, static_cast<char>(byte));
    }
    if (type != TokenType::kNormal && type != TokenType::kUserDefined) return std::string(token);
    std::string bytes;
    while (!token.empty()) {
      const size_t mark = token.find(kSpaceMark);
      bytes += token.substr(0, mark);
      if (mark == std::string_view::npos) break;
      bytes.push_back(' ');
      token.remove_prefix(mark + kSpaceMark.size());
    }
    return bytes;
  }

 private:
  int32_t find(std::string_view token) const {
    if (token.size() > max_token_size_) return -1;  // hashing long runs would be quadratic
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }

  void encode_marked(std::string_view text, std::vector<int32_t>& ids) const {
    std::vector<Symbol> symbols;
    for (size_t i = 0; i < text.size();) {
      const auto promised =
          static_cast<size_t>(utf8_size_by_first_byte(static_cast<uint8_t>(text[i])));
      const size_t size = std::min(promised, text.size() - i);
      const auto index = static_cast<int32_t>(symbols.size());
      symbols.push_back(
          {static_cast<int32_t>(i), static_cast<int32_t>(size), index - 1, index + 1});
      i += size;
    }
    if (symbols.empty()) return;
    symbols.back().next = -1;
    const auto at = [&symbols](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
    const auto bytes_of = [text](const Symbol& symbol, int32_t size) {
      return text.substr(static_cast<size_t>(symbol.begin), static_cast<size_t>(size));
    };
    std::vector<Candidate> heap;
    const auto push_candidate = [&](int32_t i) {
      const int32_t size = at(i).size + at(at(i).next).size;
      const int32_t id = find(bytes_of(at(i), size));
      if (id < 0) return;
      heap.push_back({scores_[static_cast<size_t>(id)], i, size});
      std::push_heap(heap.begin(), heap.end(), merges_later);
    };
    for (int32_t i = 0; at(i).next >= 0; i = at(i).next) push_candidate(i);
    while (!heap.empty()) {
      const Candidate best = heap.front();
      std::pop_heap(heap.begin(), heap.end(), merges_later);
      heap.pop_back();
      Symbol& left = at(best.position);
      if (left.size == 0 || left.next < 0 || left.size + at(left.next).size != best.size) continue;
      left.size = best.size;
      at(left.next).size = 0;
      left.next = at(left.next).next;
      if (left.next >= 0) {
        at(left.next).prev = best.position;
        push_candidate(best.position);
      }
      if (left.prev >= 0) push_candidate(left.prev);
    }
    for (int32_t i = 0; i >= 0; i = at(i).next) {
      const std::string_view bytes = bytes_of(at(i), at(i).size);
      const int32_t id = find(bytes);
      if (id >= 0) {
        ids.push_back(id);
      } else {
        for (const char byte : bytes) push_byte(byte, ids);
      }
    }
  }

  void push_byte(char byte, std::vector<int32_t>& ids) const {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    if (id >= 0) {
      ids.push_back(id);
    } else if (unk_id_ >= 0) {
      ids.push_back(unk_id_);
    }
  }

  const std::vector<float>& scores_;
  int32_t unk_id_;
  size_t max_token_size_ = 0;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace

std::unique_ptr<TokenModel> make_spm_model(const TokenizerData& data) {
  return std::make_unique<SpmModel>(data);
}

}  // namespace fovea
