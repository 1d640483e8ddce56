// Splits text into the pieces that byte-level BPE merges one by one, by regular expressions
// (PCRE2).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

/// Compiled patterns. Immutable: any number of threads may split at once.
class PreTokenizer {
 public:
  /// Compiles `patterns` (UTF-8, Unicode classes). Throws kInvalidFile for one that does not
  /// compile.
  explicit PreTokenizer(const std::vector<std::string>& patterns);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  /// End offset of each piece of `text`, ascending; the last one is text.size(). No byte is lost:
  /// what a pattern does not match is a piece as well. Each pattern splits each piece that the one
  /// before left, seeing that piece alone. `text` comes from repair_utf8. Throws kUnsupported when
  /// a pattern backtracks beyond its limit.
  std::vector<size_t> split(std::string_view text) const;

 private:
  struct Pattern;
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

}  // namespace fovea
