// Any bytes as tokenizer.json, tokenizer_config.json and a text, parted by NUL bytes: whatever
// loads must encode and decode without losing its head.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/base/error.h"
#include "fovea/tokenizer/chat_template.h"
#include "fovea/tokenizer/tokenizer.h"
#include "fovea/tokenizer/tokenizer_json.h"

namespace {

// Bytes up to the next NUL, which go from the front of `rest`.
std::string_view next_part(std::string_view& rest) {
  const std::string_view part = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fovea;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view tokenizer_json = next_part(rest);
  const std::string_view config_json = next_part(rest);
  try {
    const Tokenizer tokenizer(parse_tokenizer_json(tokenizer_json, config_json));
    for (const bool parse_special : {false, true}) {
      const std::vector<int32_t> ids = tokenizer.encode(rest, {.parse_special = parse_special});
      StreamDecoder stream(tokenizer);
      std::string streamed;
      for (const int32_t id : ids) streamed += stream.push(id);
      streamed += stream.flush();
      // A stream is the decoded text with malformed bytes replaced: it is never shorter.
      if (streamed.size() < tokenizer.decode(ids).size()) std::abort();
    }
    if (const auto chat = detect_chat_template(tokenizer.chat_template())) {
      const std::vector<ChatMessage> messages = {{"user", std::string(rest)}};
      encode_chat(tokenizer, render_chat(*chat, messages));
    }
  } catch (const Error&) {
  }
  return 0;
}
