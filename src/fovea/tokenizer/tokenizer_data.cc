#include "fovea/tokenizer/tokenizer_data.h"

#include <cmath>

#include "fovea/base/error.h"
#include "fovea/base/shown.h"

namespace fovea {
namespace {

constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigitPattern = R"(\p{N})";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// o200k: a word is capitals then small letters; marks and letters without case count as both.
constexpr std::string_view kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool is_llama3_pre(std::string_view pre) {
  return pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3";
}

int32_t checked_id(std::optional<int64_t> id, int32_t absent, size_t num_tokens, const char* name) {
  if (!id) return absent < static_cast<int64_t>(num_tokens) ? absent : -1;
  if (*id < 0 || *id >= static_cast<int64_t>(num_tokens)) {
    fail(ErrorCode::kInvalidFile, "{} must be in [0, {}), got {}", name, num_tokens, *id);
  }
  return static_cast<int32_t>(*id);
}

}  // namespace

std::vector<std::string> pretokenizer_patterns(std::string_view pre) {
  if (pre == "gpt-2" || pre == "gpt2") return {std::string(kGpt2Pattern)};
  if (pre == "smollm") return {std::string(kDigitPattern), std::string(kGpt2Pattern)};
  if (is_llama3_pre(pre)) return {std::string(kLlama3Pattern)};
  if (pre == "qwen2" || pre == "qwen3" || pre == "deepseek-r1-qwen") {
    return {std::string(kQwen2Pattern)};
  }
  if (pre == "gpt-4o") return {std::string(kGpt4oPattern)};
  fail(ErrorCode::kUnsupported,
       "pre-tokenizer must be one of gpt-2, smollm, llama-bpe, qwen2, gpt-4o, got \"{}\"",
       shown(pre));
}

TokenizerData tokenizer_data_from_gguf(const GgufTokenizerFields& fields) {
  TokenizerData data;
  const bool is_spm = fields.model == "llama";
  if (!is_spm && fields.model != "gpt2") {
    fail(ErrorCode::kUnsupported,
         "tokenizer.ggml.model must be \"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece), "
         "got \"{}\"",
         shown(fields.model));
  }
  data.model = is_spm ? TokenizerModel::kSpm : TokenizerModel::kByteBpe;
  data.tokens.assign(fields.tokens.begin(), fields.tokens.end());
  data.scores.assign(fields.scores.begin(), fields.scores.end());
  data.types.assign(data.tokens.size(), TokenType::kNormal);
  if (!fields.token_type.empty()) {
    if (fields.token_type.size() != data.tokens.size()) {
      fail(ErrorCode::kInvalidFile, "token_type must have one entry per token, {}, got {}",
           data.tokens.size(), fields.token_type.size());
    }
    for (size_t i = 0; i < data.types.size(); ++i) {
      const int32_t type = fields.token_type[i];
      if (type < 1 || type > 6) {
        fail(ErrorCode::kInvalidFile, "token_type must be in [1, 6], got {} for token {}", type, i);
      }
      data.types[i] = static_cast<TokenType>(type);
    }
  }
  if (!is_spm) {
    data.patterns = pretokenizer_patterns(fields.pre);
    data.ignore_merges = is_llama3_pre(fields.pre);
    data.merges.reserve(fields.merges.size());
    for (const std::string_view merge : fields.merges) {
      // From 1: the left part may itself begin with a space in old files.
      const size_t space = merge.find(' ', 1);
      if (space == std::string_view::npos) {
        fail(ErrorCode::kInvalidFile, "a merge must be two tokens and a space, got \"{}\" at {}",
             shown(merge), data.merges.size());
      }
      data.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    }
  }
  data.add_bos = fields.add_bos_token.value_or(is_spm || is_llama3_pre(fields.pre));
  data.add_space_prefix = is_spm && fields.add_space_prefix.value_or(true);
  const size_t num_tokens = data.tokens.size();
  data.bos_id = checked_id(fields.bos_token_id, is_spm ? 1 : -1, num_tokens, "bos_token_id");
  data.eos_id = checked_id(fields.eos_token_id, is_spm ? 2 : -1, num_tokens, "eos_token_id");
  // Byte-level BPE in GGUF drops a byte without a token, whatever the file names as unknown.
  data.unk_id = checked_id(fields.unknown_token_id, 0, num_tokens, "unknown_token_id");
  if (!is_spm) data.unk_id = -1;
  data.pad_id = checked_id(fields.padding_token_id, -1, num_tokens, "padding_token_id");
  data.chat_template = fields.chat_template;
  check_tokenizer_data(data);
  return data;
}

void check_tokenizer_data(const TokenizerData& data) {
  const size_t num_tokens = data.tokens.size();
  if (num_tokens == 0) fail(ErrorCode::kInvalidFile, "a tokenizer must have tokens, got none");
  if (num_tokens > static_cast<size_t>(INT32_MAX)) {
    fail(ErrorCode::kInvalidFile, "a tokenizer must have at most {} tokens, got {}", INT32_MAX,
         num_tokens);
  }
  if (data.types.size() != num_tokens) {
    fail(ErrorCode::kInvalidFile, "a tokenizer must have one type per token, {}, got {}",
         num_tokens, data.types.size());
  }
  if (data.model == TokenizerModel::kSpm && data.scores.size() != num_tokens) {
    fail(ErrorCode::kInvalidFile,
         "a SentencePiece tokenizer must have one score per token, {}, got {}", num_tokens,
         data.scores.size());
  }
  for (size_t i = 0; i < data.scores.size(); ++i) {
    // NaN has no place in an order of merges.
    if (std::isnan(data.scores[i])) {
      fail(ErrorCode::kInvalidFile, "token scores must be numbers, got NaN for token {}", i);
    }
  }
  for (const int32_t id : {data.bos_id, data.eos_id, data.unk_id, data.pad_id}) {
    if (id < -1 || id >= static_cast<int64_t>(num_tokens)) {
      fail(ErrorCode::kInvalidFile, "bos, eos, unk and pad ids must be in [0, {}), got {}",
           num_tokens, id);
    }
  }
  if (data.add_bos && data.bos_id < 0) {
    fail(ErrorCode::kInvalidFile, "add_bos_token needs a bos_token_id, got none");
  }
}

}  // namespace fovea
