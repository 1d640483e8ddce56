// What a tokenizer is made of, whichever file it came from. Plain data: no lookups, no logic.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fovea {

enum class TokenizerModel {
  kByteBpe,  // bytes, merged by ranked pairs ("gpt2" in GGUF; "BPE" with ByteLevel in
             // tokenizer.json)
  kSpm,      // characters, merged by the score of the result ("llama" in GGUF: Gemma, Llama 2)
};

/// The values are those of `tokenizer.ggml.token_type`.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // matched in text only when the caller asks for it; decodes to nothing
  kUserDefined = 4,  // always matched in text, before anything else
  kUnused = 5,
  kByte = 6,  // "<0x41>": one byte that no other token covers
};

struct TokenizerData {
  TokenizerModel model = TokenizerModel::kByteBpe;
  std::vector<std::string> tokens;  // by id, spelled as in the file; an empty one is a hole
  std::vector<TokenType> types;     // as many as tokens
  std::vector<float> scores;        // as many as tokens (kSpm), or empty
  std::vector<std::pair<std::string, std::string>> merges;  // by rank, spelled as tokens (kByteBpe)
  std::vector<std::string> patterns;  // pre-tokenizer: each splits what the one before it left
  bool ignore_merges = false;         // a piece that is a token as a whole is not merged up to it
  bool add_bos = false;
  bool add_space_prefix = false;  // kSpm: text starts as if after a space
  int32_t bos_id = -1;            // -1: the model has none; the same for the ids below
  int32_t eos_id = -1;
  int32_t unk_id = -1;  // for bytes without a token; -1: they are dropped
  int32_t pad_id = -1;
  std::string chat_template;  // Jinja source, empty when there is none
};

/// Metadata of a GGUF file, each field named after its `tokenizer.ggml.` key. Absent fields stay
/// empty.
struct GgufTokenizerFields {
  std::string_view model;
  std::string_view pre;
  std::span<const std::string_view> tokens;
  std::span<const float> scores;
  std::span<const int32_t> token_type;
  std::span<const std::string_view> merges;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_space_prefix;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> eos_token_id;
  std::optional<int64_t> unknown_token_id;
  std::optional<int64_t> padding_token_id;
  std::string_view chat_template;  // key `tokenizer.chat_template`
};

/// TokenizerData from GGUF metadata, with the defaults that GGUF's own rules give absent fields.
/// Copies everything: the spans may die after the call.
/// Throws kUnsupported for an unknown model or pre-tokenizer, kInvalidFile for sizes or ids that
/// disagree.
TokenizerData tokenizer_data_from_gguf(const GgufTokenizerFields& fields);

/// Patterns that a `tokenizer.ggml.pre` name stands for. Throws kUnsupported for an unknown name.
std::vector<std::string> pretokenizer_patterns(std::string_view pre);

/// Throws kInvalidFile when sizes, ids, types or scores of `data` disagree with each other.
void check_tokenizer_data(const TokenizerData& data);

}  // namespace fovea
