#include "fovea/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>

#include "fovea/base/error.h"
#include "fovea/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Control tokens after which no known chat format goes on, whatever the file names as eos.
constexpr std::array<std::string_view, 8> kEndOfTurnTokens = {
    "<|im_end|>", "<|eot_id|>",    "<|eom_id|>", "<end_of_turn>",
    "<|end|>",    "<|endoftext|>", "<|return|>", "<|end_of_text|>"};

TokenizerData checked(TokenizerData data) {
  check_tokenizer_data(data);
  return data;
}

// Some files call an end-of-turn token a normal one; then text could not be told from it.
TokenizerData with_control_types(TokenizerData data) {
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const auto begin = kEndOfTurnTokens.begin();
    if (std::find(begin, kEndOfTurnTokens.end(), data.tokens[i]) != kEndOfTurnTokens.end()) {
      data.types[i] = TokenType::kControl;
    }
  }
  return data;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerData data)
    : data_(std::make_unique<TokenizerData>(with_control_types(checked(std::move(data))))),
      model_(data_->model == TokenizerModel::kSpm ? make_spm_model(*data_)
                                                  : make_byte_bpe_model(*data_)),
      special_tokens_(*data_) {
  token_bytes_.reserve(data_->tokens.size());
  for (size_t i = 0; i < data_->tokens.size(); ++i) {
    token_bytes_.push_back(model_->token_bytes(data_->tokens[i], data_->types[i]));
  }
  for (const std::string_view token : kEndOfTurnTokens) {
    const int32_t id = token_id(token);
    if (id >= 0) end_of_turn_ids_.push_back(id);
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  check_argument(text.size() <= static_cast<size_t>(INT32_MAX),
                 "text to encode must be below 2 GiB, got {} bytes", text.size());
  std::vector<int32_t> ids;
  if (options.add_bos && data_->add_bos) ids.push_back(data_->bos_id);
  bool after_special = true;  // so is the beginning
  for (const TextFragment& fragment : special_tokens_.split(text, options.parse_special)) {
    if (fragment.id >= 0) {
      ids.push_back(fragment.id);
      after_special = true;
      continue;
    }
    const std::string_view plain = text.substr(fragment.begin, fragment.end - fragment.begin);
    if (data_->add_space_prefix && after_special) {
      std::string prefixed(1, ' ');
      prefixed += plain;
      model_->encode(prefixed, ids);
    } else {
      model_->encode(plain, ids);
    }
    after_special = false;
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (!is_control(id)) text += token_bytes(id);
  }
  if (data_->add_space_prefix && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

const std::string& Tokenizer::token_bytes(int32_t id) const {
  check_id(id);
  return token_bytes_[static_cast<size_t>(id)];
}

int32_t Tokenizer::token_id(std::string_view token) const {
  // Asked a few times per process: a search is cheaper than another table.
  const auto found = std::find(data_->tokens.rbegin(), data_->tokens.rend(), token);
  return static_cast<int32_t>(data_->tokens.rend() - found) - 1;
}

bool Tokenizer::is_control(int32_t id) const {
  check_id(id);
  const TokenType type = data_->types[static_cast<size_t>(id)];
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

bool Tokenizer::is_eos(int32_t id) const {
  return id >= 0 &&
         (id == data_->eos_id || std::find(end_of_turn_ids_.begin(), end_of_turn_ids_.end(), id) !=
                                     end_of_turn_ids_.end());
}

void Tokenizer::check_id(int32_t id) const {
  check_argument(id >= 0 && id < vocab_size(), "token id must be in [0, {}), got {}", vocab_size(),
                 id);
}

std::string StreamDecoder::push(int32_t id) {
  if (tokenizer_->is_control(id)) return {};
  held_ += tokenizer_->token_bytes(id);
  std::string text;
  size_t done = 0;
  while (done < held_.size()) {
    const std::string_view rest = std::string_view(held_).substr(done);
    const Utf8Sequence sequence = first_utf8_sequence(rest);
    if (sequence.kind == Utf8Sequence::kIncomplete) break;
    const auto size = static_cast<size_t>(sequence.size);
    text += sequence.kind == Utf8Sequence::kCharacter ? rest.substr(0, size) : kReplacement;
    done += size;
  }
  held_.erase(0, done);
  return text;
}

std::string StreamDecoder::flush() {
  const bool had_some = !held_.empty();
  held_.clear();
  return had_some ? std::string(kReplacement) : std::string();
}

}  // namespace fovea
