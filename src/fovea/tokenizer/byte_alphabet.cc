#include "fovea/tokenizer/byte_alphabet.h"

#include "fovea/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<uint16_t, 256> code_point{};
  std::array<int16_t, 0x144> byte{};  // by code point; -1: not of the alphabet

  constexpr Alphabet() {
    for (int16_t& entry : byte) entry = -1;
    uint16_t next = 0x100;
    for (uint32_t b = 0; b < 256; ++b) {
      code_point[b] = stands_for_itself(b) ? static_cast<uint16_t>(b) : next++;
      byte[code_point[b]] = static_cast<int16_t>(b);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::optional<std::string> bytes_from_alphabet(std::string_view spelled) {
  std::string bytes;
  size_t i = 0;
  while (i < spelled.size()) {
    const auto first = static_cast<uint8_t>(spelled[i]);
    uint32_t code_point = first;
    size_t size = 1;
    if (first >= 0x80) {  // the alphabet ends at U+0143: two bytes are all it needs
      const std::string_view rest = spelled.substr(i);
      const Utf8Sequence sequence = first_utf8_sequence(rest);
      if (sequence.kind != Utf8Sequence::kCharacter || sequence.size != 2) return std::nullopt;
      code_point = (first & 0x1Fu) << 6 | (static_cast<uint8_t>(spelled[i + 1]) & 0x3Fu);
      size = 2;
    }
    if (code_point >= kAlphabet.byte.size() || kAlphabet.byte[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte[code_point]));
    i += size;
  }
  return bytes;
}

std::string alphabet_from_byte(uint8_t byte) {
  std::string spelled;
  append_utf8(kAlphabet.code_point[byte], spelled);
  return spelled;
}

}  // namespace fovea
