// What differs between kinds of tokenizers: how a stretch of plain text becomes ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/tokenizer/tokenizer_data.h"

namespace fovea {

/// Immutable after construction, so that threads may share it.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  /// Appends the ids of `text`, in which special tokens have been cut out already.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;

  /// The bytes that a token stands for, from its spelling in the file.
  virtual std::string token_bytes(std::string_view token, TokenType type) const = 0;
};

/// Both keep views of `data`, which must outlive them; both throw kInvalidFile for data that breaks
/// rules.
std::unique_ptr<TokenModel> make_byte_bpe_model(const TokenizerData& data);
std::unique_ptr<TokenModel> make_spm_model(const TokenizerData& data);

}  // namespace fovea
