#include "apps/cli/prompt.h"

#include <CLI/CLI.hpp>
#include <optional>

#include "apps/cli/parse_values.h"
#include "apps/cli/text_io.h"
#include "fovea/base/error.h"
#include "fovea/model_io/model_config.h"
#include "fovea/tokenizer/tokenizer.h"

namespace fovea::cli {
namespace {

// Text from the token cut on; a character that the cut went through is left out.
std::string text_of(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  const std::string text = tokenizer.decode(tokens);
  size_t first = 0;
  while (first < text.size() && (static_cast<unsigned char>(text[first]) & 0xc0u) == 0x80u) ++first;
  return text.substr(first);
}

std::optional<ChatTemplate> chat_of(const Tokenizer& tokenizer) {
  try {
    return detect_chat_template(tokenizer.chat_template());
  } catch (const Error& error) {
    fail(error.code(), "{}; --raw sends the text as it is", error.what());
  }
}

}  // namespace

void add_prompt_options(CLI::App& command, PromptOptions& options) {
  constexpr const char* kGroup = "Prompt";
  command.add_option("-f,--file", options.file, "File to read; - is standard input")
      ->type_name("FILE")
      ->group(kGroup);
  command.add_option("-p,--prompt", options.text, "Text to read; with -f it follows the file")
      ->type_name("TEXT")
      ->group(kGroup);
  command
      .add_option(
          "--length", options.length,
          "Read the last N tokens only (the front of the text is cut off, so that a question "
          "at its end stays); 8K is 8192")
      ->type_name("N")
      ->group(kGroup);
  command.add_option("--system", options.system, "What the system says before the text, in a chat")
      ->type_name("TEXT")
      ->group(kGroup);
  command
      .add_flag("--raw", options.raw,
                "Send the text as it is, control tokens in it included, without the model's chat "
                "template")
      ->group(kGroup);
  command
      .add_flag(
          "--bos", options.bos,
          "With --raw or without a chat template: begin with the model's bos token even if its "
          "tokenizer adds none (needle_7m wants this)")
      ->group(kGroup);
}

std::string prompt_text(const PromptOptions& options) {
  check_argument(!options.file.empty() || !options.text.empty(),
                 "the prompt is empty: give a text with -p or a file with -f");
  std::string text;
  if (!options.file.empty()) text = read_utf8_text(options.file);
  check_utf8(options.text, "the prompt");
  return text + options.text;
}

std::string_view chat_family_name(ChatFamily family) {
  switch (family) {
    case ChatFamily::kChatml:
      return "chatml";
    case ChatFamily::kGemma:
      return "gemma";
    case ChatFamily::kLlama3:
      return "llama3";
    case ChatFamily::kHarmony:
      return "harmony";
  }
  return "unknown";
}

Prompt make_prompt(const Model& model, const std::string& text, const PromptOptions& options) {
  const Tokenizer& tokenizer = model.tokenizer();
  const int64_t length = options.length.empty() ? 0 : parse_tokens(options.length, "--length");
  const auto chat = options.raw ? std::nullopt : chat_of(tokenizer);
  check_argument(chat || options.system.empty(), "--system needs a chat template, which {}",
                 options.raw ? "--raw leaves out" : "this model does not have");

  Prompt prompt;
  std::vector<int32_t> tokens =
      tokenizer.encode(text, {.add_bos = false, .parse_special = options.raw});
  prompt.text_tokens = static_cast<int64_t>(tokens.size());
  prompt.was_cut = length > 0 && prompt.text_tokens > length;
  if (prompt.was_cut) tokens.erase(tokens.begin(), tokens.end() - length);
  if (chat) {
    std::vector<ChatMessage> messages;
    if (!options.system.empty()) messages.push_back({"system", options.system});
    messages.push_back({"user", prompt.was_cut ? text_of(tokenizer, tokens) : text});
    prompt.tokens = encode_chat(tokenizer, render_chat(*chat, messages));
    prompt.chat = chat_family_name(chat->family);
  } else {
    if (options.bos || tokenizer.add_bos()) {
      const int32_t bos = model.config().bos_id.value_or(tokenizer.bos_id());
      check_argument(bos >= 0, "--bos: this model has no bos token");
      tokens.insert(tokens.begin(), bos);
    }
    prompt.tokens = std::move(tokens);
    prompt.chat = "none";
  }
  const auto num_tokens = static_cast<int64_t>(prompt.tokens.size());
  check_argument(num_tokens > 0, "the prompt is empty: the text makes no token");
  check_argument(num_tokens < model.config().context_length,
                 "the prompt has {} tokens, this model's context {}: cut it with --length",
                 num_tokens, model.config().context_length);
  return prompt;
}

}  // namespace fovea::cli
