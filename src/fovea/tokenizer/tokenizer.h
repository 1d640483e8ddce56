// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/tokenizer/special_tokens.h"
#include "fovea/tokenizer/token_model.h"
#include "fovea/tokenizer/tokenizer_data.h"

namespace fovea {

struct EncodeOptions {
  bool add_bos = true;  // begin with the bos token, if the model wants one
  bool parse_special =
      false;  // read "<|im_end|>" and the like in the text as the token, not as letters
};

/// Immutable: any number of threads may use one at once.
class Tokenizer {
 public:
  /// Builds the lookup tables. Throws kInvalidFile when `data` breaks the rules of its model.
  explicit Tokenizer(TokenizerData data);

  /// Ids of `text` (any bytes; malformed UTF-8 is read as repair_utf8 says). Empty text gives no
  /// ids but bos. Throws kInvalidArgument for 2 GiB or more, kUnsupported when a pre-tokenizer
  /// pattern gives up.
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  /// Bytes of `ids` one after the other, without control tokens. The space that add_space_prefix
  /// put before the text is taken away again. May be malformed UTF-8 when `ids` end within a
  /// character. Throws kInvalidArgument for an id out of range.
  std::string decode(std::span<const int32_t> ids) const;

  /// Bytes that a token stands for; a control token's spelling. Throws kInvalidArgument for an id
  /// out of range: a model's embedding may have more rows than its tokenizer has tokens.
  const std::string& token_bytes(int32_t id) const;

  /// Id of the token spelled `token` in the file, -1 when there is none.
  int32_t token_id(std::string_view token) const;

  /// True for tokens that steer the model rather than say something ("<|im_start|>").
  bool is_control(int32_t id) const;

  /// True for the eos token and for the tokens that end a turn in a known chat format.
  bool is_eos(int32_t id) const;

  int32_t vocab_size() const { return static_cast<int32_t>(data_->tokens.size()); }
  int32_t bos_id() const { return data_->bos_id; }
  int32_t eos_id() const { return data_->eos_id; }
  bool add_bos() const { return data_->add_bos; }
  const std::string& chat_template() const { return data_->chat_template; }

 private:
  void check_id(int32_t id) const;

  std::unique_ptr<const TokenizerData> data_;  // does not move: model_ keeps views of it
  std::unique_ptr<TokenModel> model_;
  SpecialTokens special_tokens_;
  std::vector<std::string> token_bytes_;
  std::vector<int32_t> end_of_turn_ids_;
};

/// Turns a stream of ids into a stream of well-formed UTF-8, for printing while tokens come.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive this.
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// Text that is complete with this token. An unfinished character is held back (at most 3 bytes);
  /// bytes that can never become one are given as U+FFFD. Control tokens give nothing.
  std::string push(int32_t id);

  /// What was held back, as U+FFFD; the stream starts afresh.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  std::string held_;
};

}  // namespace fovea
