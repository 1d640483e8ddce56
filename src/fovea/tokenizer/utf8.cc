#include "fovea/tokenizer/utf8.h"

#include <algorithm>

namespace fovea {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

// Size that the first byte promises; 0 when it cannot begin a sequence.
int32_t promised_size(uint8_t first) {
  if (first < 0x80) return 1;
  if (first < 0xC0) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF8 ? 4 : 0;
}

// Code point of a sequence of `size` bytes whose continuation bytes are known to be ones.
uint32_t code_point_of(std::string_view text, int32_t size) {
  if (size == 1) return byte_at(text, 0);
  uint32_t code_point = byte_at(text, 0) & (0x7Fu >> size);
  for (int32_t i = 1; i < size; ++i) {
    code_point = code_point << 6 | (byte_at(text, static_cast<size_t>(i)) & 0x3Fu);
  }
  return code_point;
}

// Bytes of the sequence at the front that have the right form, up to the promised size.
int32_t formed_size(std::string_view text, int32_t promised) {
  int32_t size = 1;
  while (size < promised && static_cast<size_t>(size) < text.size() &&
         (byte_at(text, static_cast<size_t>(size)) & 0xC0) == 0x80) {
    ++size;
  }
  return size;
}

}  // namespace

Utf8Sequence first_utf8_sequence(std::string_view bytes) {
  const uint8_t first = byte_at(bytes, 0);
  if (first < 0x80) return {Utf8Sequence::kCharacter, 1};
  const int32_t promised = promised_size(first);
  if (promised == 0 || first < 0xC2 || first > 0xF4) return {Utf8Sequence::kMalformed, 1};
  if (bytes.size() == 1) return {Utf8Sequence::kIncomplete, 1};
  // The second byte alone decides whether a form is overlong, a surrogate or out of range.
  const uint8_t second = byte_at(bytes, 1);
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  if (second < low || second > high) return {Utf8Sequence::kMalformed, 1};
  const int32_t formed = formed_size(bytes, promised);
  if (formed == promised) return {Utf8Sequence::kCharacter, formed};
  const bool at_end = static_cast<size_t>(formed) == bytes.size();
  return {at_end ? Utf8Sequence::kIncomplete : Utf8Sequence::kMalformed, formed};
}

void append_utf8(uint32_t code_point, std::string& out) {
  const auto push = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

std::string_view repair_utf8(std::string_view text, std::string& storage) {
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Sequence sequence = first_utf8_sequence(text.substr(i));
    if (sequence.kind != Utf8Sequence::kCharacter) break;
    i += static_cast<size_t>(sequence.size);
  }
  if (i == text.size()) return text;
  storage.assign(text.substr(0, i));
  while (i < text.size()) {
    const std::string_view rest = text.substr(i);
    const int32_t promised = promised_size(byte_at(rest, 0));
    if (promised != 0 && formed_size(rest, promised) == promised) {
      const uint32_t code_point = code_point_of(rest, promised);
      if (code_point <= 0x10FFFF) {
        append_utf8(code_point, storage);
        i += static_cast<size_t>(promised);
        continue;
      }
    }
    storage.append(kReplacement);
    ++i;
  }
  return storage;
}

int32_t utf8_size_by_first_byte(uint8_t first) {
  if (first < 0xC0) return 1;
  if (first < 0xE0) return 2;
  return first < 0xF0 ? 3 : 4;
}

}  // namespace fovea
