// From the text that a user gives to the tokens that a model reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/engine/model.h"
#include "fovea/tokenizer/chat_template.h"

namespace CLI {
class App;
}

namespace fovea::cli {

struct PromptOptions {
  std::string file;    // "-" is standard input
  std::string text;    // comes after the file's
  std::string length;  // "8K"; empty: all of it
  std::string system;  // what the system says, in a chat
  bool raw = false;    // send the text as it is, whatever the model's chat template
  bool bos = false;    // begin with the bos token though the tokenizer would not
};

void add_prompt_options(CLI::App& command, PromptOptions& options);

/// The text of -f and -p, checked: not empty, and UTF-8.
/// Throws kInvalidArgument or kInvalidFile naming what is wrong.
std::string prompt_text(const PromptOptions& options);

/// "chatml", "gemma" or "llama3".
std::string_view chat_family_name(ChatFamily family);

struct Prompt {
  std::vector<int32_t> tokens;
  std::string chat;         // "chatml", or "none" when the text went as it is
  bool was_cut = false;     // by --length
  int64_t text_tokens = 0;  // of the whole text, before the cut
};

/// Tokens of `text`: the last `length` of them if that is given, in the model's chat format unless
/// raw.
/// Throws kUnsupported on a chat template that we do not know, kInvalidArgument on a system prompt
/// without a chat, or when the prompt leaves no room in the model's context.
Prompt make_prompt(const Model& model, const std::string& text, const PromptOptions& options);

}  // namespace fovea::cli
