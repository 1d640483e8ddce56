// Chat formats by model family. Templates in model files are Jinja programs; we recognise the
// families we know by their markers and write their formats ourselves.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/tokenizer/tokenizer.h"

namespace fovea {

enum class ChatFamily {
  kChatml,   // SmolLM2, Qwen: <|im_start|>role\n...<|im_end|>\n
  kGemma,    // <start_of_turn>user\n...<end_of_turn>\n; the assistant is "model", no system turn
  kLlama3,   // <|start_header_id|>role<|end_header_id|>\n\n...<|eot_id|>
  kHarmony,  // gpt-oss: <|start|>role<|message|>...<|end|>; what we call system is "developer"
};

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

/// A part of a rendered chat: control tokens of the format, or text in which nothing is a control
/// token. Kept apart, so that what a user writes cannot end their turn.
struct ChatPiece {
  std::string text;
  bool is_control;
};

struct ChatTemplate {
  ChatFamily family = ChatFamily::kChatml;
  std::string
      default_system_prompt;  // said when the first message is not a system one; may be empty
};

/// Family of a template's Jinja source and the system prompt that it says by default; none for an
/// empty source: such a model takes text as it is. Throws kUnsupported for a source of no family we
/// know.
std::optional<ChatTemplate> detect_chat_template(std::string_view source);

/// The chat as the family's template writes it, up to the point where the assistant begins to
/// speak. A bos token is not among the pieces: encode_chat puts it. Throws kInvalidArgument for an
/// unknown role, for no messages, or for a system message that is not the first.
std::vector<ChatPiece> render_chat(const ChatTemplate& chat, std::span<const ChatMessage> messages);

/// Ids of a rendered chat, after bos if the model wants one.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const ChatPiece> pieces);

}  // namespace fovea
