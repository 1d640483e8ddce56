// The printable alphabet in which byte-level BPE files spell bytes (GPT-2's): bytes that are
// printable in Latin-1 stand for themselves, the other 68 are U+0100, U+0101, ... in ascending
// order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fovea {

/// Bytes that `spelled` (UTF-8) stands for; none when a character of it is not of the alphabet.
std::optional<std::string> bytes_from_alphabet(std::string_view spelled);

/// Spelling of one byte.
std::string alphabet_from_byte(uint8_t byte);

}  // namespace fovea
