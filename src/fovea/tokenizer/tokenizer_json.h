// Tokenizers in the Hugging Face form: tokenizer.json, and beside it tokenizer_config.json.
#pragma once

#include <string>
#include <string_view>

#include "fovea/tokenizer/tokenizer_data.h"

namespace fovea {

/// TokenizerData from the content of tokenizer.json and of tokenizer_config.json (empty: there is
/// none). Byte-level BPE only; the pre-tokenizers Split, ByteLevel and Digits, alone or in a
/// Sequence. A NFC normalizer is accepted and not applied: text is taken as composed already, as
/// llama.cpp takes it. Throws kInvalidFile for what breaks the format and kUnsupported for what it
/// allows and we lack.
TokenizerData parse_tokenizer_json(std::string_view tokenizer_json, std::string_view config_json);

/// The same from `directory`/tokenizer.json and `directory`/tokenizer_config.json, if that exists.
TokenizerData read_tokenizer_json(const std::string& directory);

}  // namespace fovea
