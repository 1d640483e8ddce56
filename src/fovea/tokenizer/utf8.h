// UTF-8 as tokenizers meet it: mostly well formed, sometimes not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fovea {

/// What stands at the beginning of some bytes.
struct Utf8Sequence {
  enum Kind { kCharacter, kIncomplete, kMalformed } kind;
  int32_t size;  // kCharacter: bytes of the character; otherwise bytes to step over (at least 1)
};

/// Classifies the beginning of `bytes` (not empty) by the Unicode standard: overlong forms,
/// surrogates and code points above U+10FFFF are malformed. kIncomplete: more bytes could complete
/// a character.
Utf8Sequence first_utf8_sequence(std::string_view bytes);

/// Appends the UTF-8 form of `code_point` (at most 0x10FFFF; surrogates become three bytes).
void append_utf8(uint32_t code_point, std::string& out);

/// `text` with what is malformed replaced, so that every byte has a meaning for a pre-tokenizer:
/// a byte that does not begin a sequence of the right length becomes U+FFFD, an overlong form
/// becomes the character that it spells, a surrogate stays as its three bytes. These are
/// llama.cpp's rules; sequences above U+10FFFF, on which it fails, become one U+FFFD per byte.
/// Returns `text` itself when nothing changes, else a view of `storage`.
std::string_view repair_utf8(std::string_view text, std::string& storage);

/// Bytes of a character by its first byte alone, as SentencePiece vocabularies split text: 1 to 4.
int32_t utf8_size_by_first_byte(uint8_t first);

}  // namespace fovea
