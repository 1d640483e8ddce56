#include "fovea/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "fovea/base/error.h"
#include "fovea/base/json_file.h"
#include "fovea/base/mapped_file.h"
#include "fovea/base/shown.h"

namespace fovea {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;  // real files reach 6
// Ids may leave holes, but no small file may ask for a large vocabulary.
constexpr int64_t kMaxHoles = 65536;
constexpr size_t kMaxPatterns = 16;

// Member `key` of `object`; nullptr when it is absent or null, or `object` is no object.
const json* member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const json& required(const json& object, const char* key) {
  const json* value = member(object, key);
  if (value == nullptr) fail(ErrorCode::kInvalidFile, "tokenizer.json must have \"{}\"", key);
  return *value;
}

[[noreturn]] void fail_type(const char* key, const char* expected, const json& value) {
  fail(ErrorCode::kInvalidFile, "\"{}\" must be {}, got {}", key, expected, value.type_name());
}

const std::string& as_string(const json& value, const char* key) {
  if (!value.is_string()) fail_type(key, "a string", value);
  return value.get_ref<const std::string&>();
}

bool bool_member(const json& object, const char* key, bool absent) {
  const json* value = member(object, key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) fail_type(key, "true or false", *value);
  return value->get<bool>();
}

std::string string_member(const json& object, const char* key) {
  const json* value = member(object, key);
  return value == nullptr ? std::string() : as_string(*value, key);
}

const json& as_array(const json& value, const char* key) {
  if (!value.is_array()) fail_type(key, "an array", value);
  return value;
}

void unsupported_if(bool condition, const char* what) {
  if (condition)
    fail(ErrorCode::kUnsupported, "tokenizer.json asks for {}, which is not built", what);
}

int64_t as_id(const json& value, int64_t num_entries) {
  if (!value.is_number_integer()) fail_type("id", "an integer", value);
  const bool too_large = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX;
  const int64_t id = too_large ? INT64_MAX : value.get<int64_t>();
  if (id < 0 || id >= num_entries + kMaxHoles) {
    fail(ErrorCode::kInvalidFile, "token ids must be in [0, {}) for {} tokens, got {}",
         num_entries + kMaxHoles, num_entries, id);
  }
  return id;
}

void put_token(TokenizerData& data, int64_t id, const std::string& token, TokenType type) {
  const auto index = static_cast<size_t>(id);
  if (index >= data.tokens.size()) {
    data.tokens.resize(index + 1);
    data.types.resize(index + 1, TokenType::kUnused);
  }
  std::string& slot = data.tokens[index];
  if (!slot.empty() && slot != token) {
    fail(ErrorCode::kInvalidFile, "each id must have one token, got \"{}\" and \"{}\" for {}",
         shown(slot), shown(token), id);
  }
  slot = token;
  data.types[index] = type;
}

void read_added_tokens(const json& added_tokens, int64_t num_entries, TokenizerData& data) {
  for (const json& added : added_tokens) {
    const std::string& content = as_string(required(added, "content"), "content");
    if (content.empty()) fail(ErrorCode::kInvalidFile, "an added token must not be empty");
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      unsupported_if(bool_member(added, flag, false), flag);
    }
    const bool special = bool_member(added, "special", false);
    put_token(data, as_id(required(added, "id"), num_entries), content,
              special ? TokenType::kControl : TokenType::kUserDefined);
  }
}

void read_vocab(const json& root, const json& model, TokenizerData& data) {
  const json& vocab = required(model, "vocab");
  if (!vocab.is_object()) fail_type("vocab", "an object", vocab);
  const json* added = member(root, "added_tokens");
  if (added != nullptr) as_array(*added, "added_tokens");
  const auto num_entries =
      static_cast<int64_t>(vocab.size() + (added == nullptr ? 0 : added->size()));
  for (const auto& [token, id] : vocab.items()) {
    put_token(data, as_id(id, num_entries), token, TokenType::kNormal);
  }
  if (added != nullptr) read_added_tokens(*added, num_entries, data);
}

void read_merges(const json& model, TokenizerData& data) {
  for (const json& merge : as_array(required(model, "merges"), "merges")) {
    if (merge.is_array()) {
      if (merge.size() != 2) {
        fail(ErrorCode::kInvalidFile, "a merge must have 2 parts, got {}", merge.size());
      }
      data.merges.emplace_back(as_string(merge[0], "merges"), as_string(merge[1], "merges"));
      continue;
    }
    const std::string& text = as_string(merge, "merges");
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      fail(ErrorCode::kInvalidFile, "a merge must be two tokens and a space, got \"{}\"",
           shown(text));
    }
    data.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
}

// Pattern that matches `literal` itself.
std::string escaped(const std::string& literal) {
  std::string pattern;
  for (const char c : literal) {
    const bool is_plain = static_cast<uint8_t>(c) >= 0x80 || std::isalnum(static_cast<uint8_t>(c));
    if (!is_plain) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

std::string split_pattern(const json& step) {
  const std::string behavior = string_member(step, "behavior");
  const bool invert = bool_member(step, "invert", false);
  // Removed + invert keeps the matches: the same as Isolated for patterns that leave nothing
  // unmatched, as those that files give it with do.
  const bool isolated = (behavior == "Isolated" && !invert) || (behavior == "Removed" && invert);
  unsupported_if(!isolated, "a Split other than Isolated");
  const json& pattern = required(step, "pattern");
  if (const json* regex = member(pattern, "Regex")) return as_string(*regex, "Regex");
  return escaped(as_string(required(pattern, "String"), "String"));
}

void read_pretokenizer(const json& step, bool& is_byte_level, TokenizerData& data) {
  const std::string& type = as_string(required(step, "type"), "type");
  if (data.patterns.size() >= kMaxPatterns) {
    fail(ErrorCode::kUnsupported, "a pre-tokenizer must have at most {} steps", kMaxPatterns);
  }
  if (type == "Sequence") {
    for (const json& inner : as_array(required(step, "pretokenizers"), "pretokenizers")) {
      read_pretokenizer(inner, is_byte_level, data);
    }
  } else if (type == "Split") {
    data.patterns.push_back(split_pattern(step));
  } else if (type == "Digits") {
    data.patterns.push_back(bool_member(step, "individual_digits", false) ? R"(\p{N})"
                                                                          : R"(\p{N}+)");
  } else if (type == "ByteLevel") {
    unsupported_if(bool_member(step, "add_prefix_space", true), "ByteLevel with add_prefix_space");
    is_byte_level = true;
    if (bool_member(step, "use_regex", true)) {
      data.patterns.push_back(pretokenizer_patterns("gpt-2").front());
    }
  } else {
    fail(ErrorCode::kUnsupported,
         "pre-tokenizer must be Sequence, Split, ByteLevel or Digits, got \"{}\"", shown(type));
  }
}

void check_normalizer(const json& normalizer) {
  const std::string& type = as_string(required(normalizer, "type"), "type");
  if (type == "Sequence") {
    for (const json& inner : as_array(required(normalizer, "normalizers"), "normalizers")) {
      check_normalizer(inner);
    }
  } else if (type != "NFC") {
    fail(ErrorCode::kUnsupported, "normalizer must be NFC or none, got \"{}\"", shown(type));
  }
}

// Token that a post-processor puts before a text; empty when there is none.
std::string leading_token(const json& processor) {
  const std::string type = string_member(processor, "type");
  if (type == "Sequence") {
    for (const json& inner : as_array(required(processor, "processors"), "processors")) {
      std::string token = leading_token(inner);
      if (!token.empty()) return token;
    }
  }
  if (type != "TemplateProcessing") return {};
  const json& single = as_array(required(processor, "single"), "single");
  if (single.empty()) return {};
  const json* special = member(single.front(), "SpecialToken");
  return special == nullptr ? std::string() : string_member(*special, "id");
}

int32_t find_token(const TokenizerData& data, const std::string& token) {
  if (token.empty()) return -1;
  const auto found = std::find(data.tokens.begin(), data.tokens.end(), token);
  if (found == data.tokens.end()) {
    fail(ErrorCode::kInvalidFile, "special tokens must be of the vocabulary, got \"{}\"",
         shown(token));
  }
  return static_cast<int32_t>(found - data.tokens.begin());
}

// A special token in tokenizer_config.json is a string or an object with "content".
std::string config_token(const json& config, const char* key) {
  const json* value = member(config, key);
  if (value == nullptr) return {};
  return value->is_object() ? string_member(*value, "content") : as_string(*value, key);
}

// "chat_template" is one string, or a list of named ones, of which "default" counts.
std::string config_chat_template(const json& config) {
  const json* value = member(config, "chat_template");
  if (value == nullptr) return {};
  if (!value->is_array()) return as_string(*value, "chat_template");
  for (const json& named : *value) {
    if (string_member(named, "name") == "default") return string_member(named, "template");
  }
  return {};
}

void read_config(const json& config, TokenizerData& data) {
  const std::string bos = config_token(config, "bos_token");
  if (!bos.empty()) data.bos_id = find_token(data, bos);
  data.eos_id = find_token(data, config_token(config, "eos_token"));
  data.pad_id = find_token(data, config_token(config, "pad_token"));
  data.add_bos = bool_member(config, "add_bos_token", data.add_bos);
  data.chat_template = config_chat_template(config);
}

std::string_view as_text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

TokenizerData parse_tokenizer_json(std::string_view tokenizer_json, std::string_view config_json) {
  const json root = parse_json_object(tokenizer_json, "tokenizer.json", kMaxDepth);
  const json& model = required(root, "model");
  const std::string type = string_member(model, "type");  // old files leave it out
  if (!type.empty() && type != "BPE") {
    fail(ErrorCode::kUnsupported, "tokenizer model must be BPE, got \"{}\"", shown(type));
  }
  unsupported_if(bool_member(model, "byte_fallback", false), "BPE with byte_fallback");
  unsupported_if(!string_member(model, "continuing_subword_prefix").empty(), "a subword prefix");
  unsupported_if(!string_member(model, "end_of_word_suffix").empty(), "a word suffix");
  if (const json* normalizer = member(root, "normalizer")) check_normalizer(*normalizer);

  TokenizerData data;
  data.model = TokenizerModel::kByteBpe;
  data.ignore_merges = bool_member(model, "ignore_merges", false);
  read_vocab(root, model, data);
  read_merges(model, data);
  bool is_byte_level = false;
  if (const json* pretokenizer = member(root, "pre_tokenizer")) {
    read_pretokenizer(*pretokenizer, is_byte_level, data);
  }
  unsupported_if(!is_byte_level, "BPE without a ByteLevel pre-tokenizer");
  data.unk_id = find_token(data, string_member(model, "unk_token"));
  if (const json* processor = member(root, "post_processor")) {
    data.bos_id = find_token(data, leading_token(*processor));
    data.add_bos = data.bos_id >= 0;
  }
  if (!config_json.empty()) {
    read_config(parse_json_object(config_json, "tokenizer_config.json", kMaxDepth), data);
  }
  check_tokenizer_data(data);
  return data;
}

TokenizerData read_tokenizer_json(const std::string& directory) {
  const MappedFile tokenizer(directory + "/tokenizer.json");
  const std::string config_path = directory + "/tokenizer_config.json";
  if (!std::filesystem::exists(config_path)) return parse_tokenizer_json(as_text(tokenizer), {});
  const MappedFile config(config_path);
  return parse_tokenizer_json(as_text(tokenizer), as_text(config));
}

}  // namespace fovea
